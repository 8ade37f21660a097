"""`Pace`: how much of a prompt a step may take on, so that those who read along hardly notice."""

from __future__ import annotations

from trivium.engine.scheduler import StepPlan

__all__ = ["Pace"]

_STRETCH = 4.5  # a step with prompts may take so many times as long as one that only decodes
_LEAST = 16  # rows of prompts that are always allowed, or a slow machine would hold them up for ever
_SAMPLE = 12  # rows of prompts from which on a step tells what a row costs
_SHARED = 0.7  # of the time of a step that only decodes, what decoding takes of one with prompts: both read the weights once
_WEIGHT = 0.2  # of a new measurement
_MOST = 1.5  # times what was known: more is put down to a machine that did something else for a moment
_REFRESH = 32  # steps with prompts, after which one that only decodes shall tell again how long that takes
_DEPTH = 1024.0  # tokens before a row: the unit in which they add to its cost

_UNLIMITED = 2**31


class Pace:
    """Learns from the steps' times. What it says changes when tokens come, never which.

    Three figures: the time of a step that decodes so many sequences and does nothing else, that of one row of a prompt, and
    what the tokens before the row add to it.
    """

    def __init__(self) -> None:
        self._decode_seconds: dict[int, float] = {}  # by the number of sequences, rounded up to a power of two
        self._steps_since: dict[int, int] = {}  # with prompts, since the last that only decodes so many sequences
        self._row_seconds = 0.0
        self._depth_seconds = 0.0

    def record(self, plan: StepPlan, seconds: float) -> None:
        """A step has taken so long."""
        num_decoding = sum(chunk.length == 1 + len(chunk.drafts) for chunk in plan.chunks)
        prompts = [chunk for chunk in plan.chunks if chunk.length > 1 + len(chunk.drafts)]
        num_rows = sum(chunk.length for chunk in prompts)
        before = self._decode_seconds.get(_bucket(num_decoding), 0.0) if num_decoding else 0.0
        if not num_rows:
            self._decode_seconds[_bucket(num_decoding)] = _mixed(before, seconds)
            self._steps_since[_bucket(num_decoding)] = 0
            return
        if num_decoding:
            self._steps_since[_bucket(num_decoding)] = self._steps_since.get(_bucket(num_decoding), 0) + 1
        if num_rows >= _SAMPLE and seconds > before:
            depth = sum(chunk.length * (chunk.start + chunk.length / 2) for chunk in prompts) / num_rows
            self._learn((seconds - _SHARED * before) / num_rows, depth / _DEPTH)

    def prefill_limit(self, num_decoding: int, depth: int) -> int:
        """Rows of a prompt, of which `depth` tokens are computed, that a step may have beside so many decoding sequences.

        None, now and then, though prompts never end: what decoding takes shows only in a step that does nothing else.
        """
        if not num_decoding or not self._row_seconds:
            return _UNLIMITED
        decode_seconds = self._decode_seconds.get(_bucket(num_decoding), 0.0)
        if not decode_seconds or self._steps_since.get(_bucket(num_decoding), 0) >= _REFRESH:
            return 0
        return max(_LEAST, int((_STRETCH - _SHARED) * decode_seconds / self._cost(depth / _DEPTH)))

    def _cost(self, depth: float) -> float:
        """Seconds of a row."""
        return self._row_seconds + self._depth_seconds * depth

    def _learn(self, cost: float, depth: float) -> None:
        """What a row at a depth has cost: both of its parts take their share of the error, as a normalised LMS filter's do."""
        expected = self._cost(depth)
        error = (_mixed(expected, cost) - expected) / (1 + depth * depth)
        self._row_seconds = max(self._row_seconds + error, expected / 8)
        self._depth_seconds = max(self._depth_seconds + error * depth, 0.0)


def _bucket(number: int) -> int:
    return max(0, number - 1).bit_length()


def _mixed(before: float, now: float) -> float:
    return before + _WEIGHT * (min(now, _MOST * before) - before) if before else now
