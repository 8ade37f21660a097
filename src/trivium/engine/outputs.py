"""What the engine tells a door: a stream of deltas per request, ending exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

__all__ = ["FinishReason", "OutputDelta", "OutputSink", "RequestTimes", "TokenLogprobs"]

# stop: an end token, stop string or stop id; length: max_tokens or the context's end; abort: the door asked for it;
# timeout: the deadline passed; error: the engine failed (`OutputDelta.error` says how).
FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of one token of the text and of the most likely alternatives, best first.

    `rank` counts from 1. `top` holds (token id, logprob) pairs, ranked from 1, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class RequestTimes:
    """Moments of a request's life on the time.monotonic clock; 0.0 until they happen."""

    arrival: float = 0.0
    scheduled: float = 0.0  # first step that ran any of it
    first_token: float = 0.0
    last_token: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class OutputDelta:
    """What is new of one sample (`index` of the request's `n`) since the last delta.

    `text` never holds part of a character nor anything of a stop string that may still match; so `text` may lag behind
    `token_ids`. The last delta, and only that, has a `finish_reason`. `stop_reason` is the stop string or stop token id that
    ended it (None for an end-of-text token). `prompt_logprobs` comes once, with the first delta: one entry per prompt token,
    None for the first. `num_cached_tokens` of the prompt were found in the prefix cache. `seed` is the one in use. `time` is
    when the step ended, on the time.monotonic clock; `times` is shared by all deltas of a sample and moves on with it.
    """

    request_id: str
    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: Exception | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    seed: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)
    time: float = 0.0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class OutputSink(Protocol):
    """Where a door receives deltas: called on the engine's thread, once per step with all of that step's deltas.

    It must return quickly and never raise; what it raises is logged and the requests it belongs to are aborted.
    """

    def __call__(self, outputs: Sequence[OutputDelta]) -> None: ...
