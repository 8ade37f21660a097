"""Progress bars: for batches, and for loading big models."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from tqdm import tqdm

from trivium.engine.outputs import OutputDelta

__all__ = ["BatchProgress", "LoadProgress"]


class _Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar without tqdm's monitor: a thread that outlives the bar is one more to be wary of at a fork."""

    monitor_interval = 0


class BatchProgress:
    """The bar "Processed prompts": one tick per finished prompt, with input and output tokens per second."""

    def __init__(self, samples: Sequence[int], *, enabled: bool) -> None:
        """`samples` holds each prompt's number of samples."""
        self._bar = _Bar(total=len(samples), desc="Processed prompts", unit="prompt", dynamic_ncols=True) if enabled else None
        self._left = list(samples)
        self._start = time.monotonic()
        self._input = 0
        self._output = 0

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def take(self, prompt: int, delta: OutputDelta) -> None:
        """Count a delta of prompt number `prompt`."""
        if self._bar is None:
            return
        self._output += len(delta.token_ids)
        if not delta.finished:
            return
        self._left[prompt] -= 1
        if self._left[prompt]:
            return
        self._input += delta.num_prompt_tokens
        seconds = max(time.monotonic() - self._start, 1e-9)
        self._bar.set_postfix_str(
            f"input {self._input / seconds:.1f} tok/s, output {self._output / seconds:.1f} tok/s", refresh=False
        )
        self._bar.update(1)


class LoadProgress:
    """A bar for reading a model of more than 300 MB, on a terminal, unless `TRIVIUM_PROGRESS=0`.

    Called with bytes done and bytes in all.
    """

    BIG = 300_000_000

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: _Bar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if total <= self.BIG or not sys.stderr.isatty() or os.environ.get("TRIVIUM_PROGRESS") == "0":
                return
            self._bar = _Bar(total=total, desc=f"Loading {self._name}", unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
