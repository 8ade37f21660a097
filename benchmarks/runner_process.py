"""A runner's process, seen from the outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["ENGINES", "RunnerError", "RunnerProcess"]

ENGINES = {
    "trivium": "trivium_runner.py",
    "llama.cpp": "llama_cpp_runner.py",
    "openvino": "openvino_runner.py",
    "transformers": "transformers_runner.py",
    "vllm": "vllm_runner.py",
}

_EXIT_SECONDS = 30


class RunnerError(RuntimeError):
    """A runner answered with an error, or ended."""


class RunnerProcess:
    """One engine in a process of its own. Between requests the process is stopped, so that idle threads cannot spin."""

    def __init__(self, engine: str, python: str, log: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        """`python` runs the engine's runner; what it prints goes to the file `log`, or nowhere.

        `environment` is added to this process's own.
        """
        self.engine = engine
        self.description: dict[str, Any] = {}
        with open(log or "/dev/null", "ab") as stderr:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).parent / "runners" / ENGINES[engine])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **(environment or {})},
            )

    def load(self, **job: Any) -> None:
        """Load a model; `description` then has version, details and load seconds. Raises `RunnerError`."""
        self.description = self._ask({"command": "load", **job})

    def run(self, **case: Any) -> dict[str, float]:
        """The rates of a case in tokens per second. Raises `RunnerError`."""
        rates: dict[str, float] = self._ask({"command": "run", **case})["rates"]
        return rates

    def close(self) -> None:
        """Have the process end, by force if it does not."""
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.communicate('{"command": "exit"}\n', timeout=_EXIT_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> RunnerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RunnerError(f"{self.engine}: the runner has no pipes")
        self._process.send_signal(signal.SIGCONT)
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise RunnerError(f"{self.engine}: the runner has ended") from None
        line = stdout.readline()
        if not line:
            raise RunnerError(f"{self.engine}: the runner ended with status {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        reply: dict[str, Any] = json.loads(line)
        if not reply.pop("ok"):
            raise RunnerError(f"{self.engine}: {reply['error']}")
        return reply
