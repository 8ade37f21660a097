"""How long importing takes, in fresh interpreters with a warm disk cache.

python benchmarks/import_time.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from machine import busy_cores, warn_if_busy
from rates import spread

STATEMENTS = ("import trivium", "from trivium import LLM, SamplingParams", "import trivium.cli.main")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11, help="interpreters per statement (default: 11)")
    options = parser.parse_args()
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    for statement in STATEMENTS:
        time_import(statement)  # fills the disk cache and the .pyc files
        times = [time_import(statement) for _ in range(options.repeats)]
        print(f"{statement:45} {spread(times)} ms")


def time_import(statement: str) -> float:
    """Milliseconds of the statement alone, without the interpreter's own start."""
    program = f"import time; start = time.perf_counter(); {statement}; print(1000 * (time.perf_counter() - start))"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
