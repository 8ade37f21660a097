"""One sample as the native engine keeps it: the scheduler's sequence and what becomes of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trivium.engine.outputs import OutputDelta, OutputSink, TokenLogprobs
from trivium.engine.request import GenerationRequest
from trivium.engine.sequence import Sequence
from trivium.engine.stop_strings import StopPatterns
from trivium.engine.stopping import StopRule
from trivium.engine.thought import Thought

__all__ = ["ActiveRequest", "Sample"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request between `submit` and the end of its last sample."""

    request: GenerationRequest
    sink: OutputSink
    sampler_arguments: dict[str, Any]
    stop_rule: StopRule
    stop_patterns: StopPatterns | None = None
    samples: list[Sample] = field(default_factory=list)
    unfinished: int = 0


@dataclass(slots=True, eq=False)
class Sample(Sequence):
    """A `Sequence` with the native engine's own state.

    `plain` samples have no mask, thought, logprobs, ready embeddings or positions of their own. `position_shift` is added to
    positions after the prompt. `num_shown` output tokens have been given to the detokenizer. `prompt_rows` collects prompt
    logprobs until the first delta takes them. `held` is a delta with less than the request's `delta_tokens`.
    """

    active: ActiveRequest = field(kw_only=True)
    plain: bool = True
    ended: bool = False
    thought: Thought | None = None
    position_shift: int = 0
    num_shown: int = 0
    prompt_rows: list[TokenLogprobs | None] | None = None
    held: OutputDelta | None = None
    num_gathered: int = 0  # deltas given out, if they are gathered
    mask_row: int = -1  # of the step being built

    @property
    def constrained(self) -> bool:
        """Whether the grammar decides about the next token. It waits for the end of an open thought."""
        return self.matcher is not None and not (self.thought is not None and self.thought.open)
