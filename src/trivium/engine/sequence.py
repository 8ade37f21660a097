"""One sample of a request inside the engine: its tokens, its KV blocks and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from trivium.engine.outputs import RequestTimes
from trivium.engine.request import GenerationRequest

if TYPE_CHECKING:
    from trivium.engine.detokenizer import Detokenizer
    from trivium.parsing.structured import GuidedMatcher

__all__ = ["Sequence", "SequenceStatus"]


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Scheduler state of one sample.

    `tokens` is prompt + output. `num_computed` counts the tokens whose KV is in the cache; a decoding sequence has
    `num_computed == len(tokens) - 1`. `blocks` are physical block numbers, in order. `parent` is set on samples 1..n-1 of a
    request until sample 0 has finished the prompt: they wait, then fork its blocks.
    """

    request: GenerationRequest
    index: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int  # resolved limit of generated tokens
    deadline: float | None  # time.monotonic
    seed: int
    order: int  # arrival number: ties of priority
    status: SequenceStatus = SequenceStatus.WAITING
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_hashed_blocks: int = 0  # full blocks already offered to the prefix cache
    num_cached_tokens: int = 0
    predictable: bool = True  # drafts are allowed: no mask and no forced token depends on the token before it
    parent: Sequence | None = None
    preemptions: int = 0
    waiting_since: float = 0.0
    times: RequestTimes = field(default_factory=RequestTimes)
    # set by the native engine:
    sampler: Any = None
    detokenizer: Detokenizer | None = None
    matcher: GuidedMatcher | None = None
    forced: list[int] = field(default_factory=list)  # tokens that must come next (end of thought)
    drafting: Any = None  # what the scheduler's proposer remembers of the sequence

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def key(self) -> tuple[str, int]:
        return (self.request.request_id, self.index)
