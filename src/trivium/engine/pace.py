"""`Pace`: how much of a prompt a step may take on, so that those who read along hardly notice."""

from __future__ import annotations

from trivium.engine.scheduler import StepPlan

__all__ = ["Pace"]

_STRETCH = 4.5  # a step with prompts may take so many times as long as one that only decodes
_LEAST = 48  # rows of prompts that are always allowed: fewer at a time would make prompts slow, and streams little smoother
_SAMPLE = 32  # rows of prompts from which on a step tells what a row costs
_WEIGHT = 0.2  # of a new measurement

_UNLIMITED = 2**31


class Pace:
    """Learns from the steps' times. What it says changes when tokens come, never which.

    Two figures: the time of a step that decodes so many sequences and does nothing else, and that of one row of a step with
    prompts. The latter grows with the length of the prompts, and follows it.
    """

    def __init__(self) -> None:
        self._decode_seconds: dict[int, float] = {}  # by the number of sequences, rounded up to a power of two
        self._row_seconds = 0.0

    def record(self, plan: StepPlan, seconds: float) -> None:
        """A step has taken so long."""
        num_decoding = sum(chunk.length == 1 + len(chunk.drafts) for chunk in plan.chunks)
        num_rows = plan.num_tokens
        if num_decoding == len(plan.chunks):
            bucket = _bucket(num_decoding)
            self._decode_seconds[bucket] = _mixed(self._decode_seconds.get(bucket, 0.0), seconds)
        elif num_rows - num_decoding >= _SAMPLE:
            self._row_seconds = _mixed(self._row_seconds, seconds / num_rows)

    def prefill_limit(self, num_decoding: int) -> int:
        """Rows of prompts that a step may compute beside so many sequences that decode."""
        decode_seconds = self._decode_seconds.get(_bucket(num_decoding), 0.0)
        if not num_decoding or not decode_seconds or not self._row_seconds:
            return _UNLIMITED
        return max(_LEAST, int(_STRETCH * decode_seconds / self._row_seconds) - num_decoding)


def _bucket(number: int) -> int:
    return max(0, number - 1).bit_length()


def _mixed(before: float, now: float) -> float:
    return before + _WEIGHT * (now - before) if before else now
