"""`python -m trivium.fastdeploy SCRIPT ARGS…`: run a FastDeploy script on Trivium."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from pathlib import Path

from trivium.fastdeploy.aliases import install_aliases

__all__ = ["main"]

USAGE = "usage: python -m trivium.fastdeploy SCRIPT [ARGS…]"


def main(argv: list[str]) -> int | None:
    """Run `argv[0]` as `__main__` with `argv` as its arguments. Returns an exit code if there is nothing to run."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__, file=sys.stdout if argv else sys.stderr)
        print(USAGE, file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    script = Path(argv[0])
    if not script.is_file():
        print(f"{USAGE}\nthere is no file {argv[0]!r}", file=sys.stderr)
        return 2
    _write_log(Path(os.environ.get("FD_LOG_DIR") or "log"))
    install_aliases()
    sys.argv = argv
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")
    return None


def _write_log(folder: Path) -> None:
    """Have Trivium's log lines written to fastdeploy.log; without a writable folder the script still runs."""
    logger = logging.getLogger("trivium")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(folder / "fastdeploy.log", encoding="utf-8")
    except OSError as error:
        logger.warning("no log file: %s", error)
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
