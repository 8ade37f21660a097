"""When a sample's tokens end it. Stop strings are the detokenizer's part: they are matched on text."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.engine.outputs import FinishReason
from trivium.engine.sampling import SamplingOptions

__all__ = ["Ending", "StopRule"]


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sample ends. Its last `hidden` tokens do not belong to the text."""

    reason: FinishReason
    stop_reason: str | int | None = None
    hidden: int = 0


class StopRule:
    """The end tokens, stop tokens and stop token sequences of one request.

    Token sequences are left alone until `min_tokens` tokens exist; end and stop tokens cannot come before that, because the
    sampler suppresses them.
    """

    __slots__ = ("_end_hidden", "_longest", "_min_tokens", "_stop_hidden", "end_ids", "sequences", "single_ids", "stop_ids")

    def __init__(self, sampling: SamplingOptions, eos_token_ids: frozenset[int]) -> None:
        sequences = sampling.stop_token_sequences
        self.end_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.stop_ids = frozenset(sampling.stop_token_ids) | {ids[0] for ids in sequences if len(ids) == 1}
        self.single_ids = self.end_ids | self.stop_ids
        self.sequences = [list(ids) for ids in sequences if len(ids) > 1]
        self._longest = max(map(len, self.sequences), default=0)
        self._min_tokens = sampling.min_tokens
        self._end_hidden = sampling.skip_special_tokens
        self._stop_hidden = not sampling.include_stop

    def check(self, tokens: list[int], num_output: int) -> Ending | None:
        """Whether the last of `tokens`, the output's token number `num_output`, ends the sample."""
        token = tokens[-1]
        if token in self.end_ids:
            return Ending("stop", None, int(self._end_hidden))
        if token in self.stop_ids:
            return Ending("stop", token, int(self._stop_hidden))
        if num_output >= self._min_tokens:
            for ids in self.sequences:
                if len(ids) <= num_output and tokens[-len(ids) :] == ids:
                    return Ending("stop", token, len(ids) if self._stop_hidden else 0)
        return None

    def held(self, tokens: list[int], num_output: int) -> int:
        """How many of the last output tokens may still become a stop sequence, and so are no text yet."""
        for count in range(min(self._longest - 1, num_output), 0, -1):
            tail = tokens[-count:]
            if any(len(ids) > count and ids[:count] == tail for ids in self.sequences):
                return count
        return 0
