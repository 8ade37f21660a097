"""The engine as the doors see it. `NativeEngine` implements it here; other engines may stand behind the same doors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.engine.outputs import OutputSink
from trivium.engine.request import GenerationRequest

if TYPE_CHECKING:
    from trivium.config import EngineConfig
    from trivium.models.chat_template import ChatTemplate
    from trivium.models.tokenizer import Tokenizer

__all__ = ["Engine", "EngineStats", "ModelInfo"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a door needs to know of the loaded model."""

    name: str  # as served
    architecture: str
    vocab_size: int
    max_model_len: int  # prompt and output together, in tokens
    eos_token_ids: frozenset[int]
    generation_defaults: dict[str, Any] = field(default_factory=dict)  # temperature, top_p, … of generation_config.json
    config_defaults: dict[str, Any] = field(default_factory=dict)  # top_k, where config.json has it


@dataclass(slots=True)
class EngineStats:
    """A snapshot; counters grow from the engine's start."""

    running: int = 0
    waiting: int = 0
    total_blocks: int = 0
    used_blocks: int = 0  # held by requests; blocks kept only by the prefix cache count as free
    steps: int = 0
    prompt_tokens: int = 0  # computed, without prefix hits
    generated_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens looked up
    prefix_hits: int = 0  # prompt tokens found
    preemptions: int = 0
    drafted: int = 0  # tokens that were guessed
    accepted: int = 0  # of these, right
    step_sizes: dict[int, int] = field(default_factory=dict)  # steps by the logarithm to base 2 of their tokens, rounded up
    finished: dict[str, int] = field(default_factory=dict)  # by finish reason
    rejected: int = 0


class Engine(ABC):
    """Loads one model and answers many requests together. All methods may be called from any thread."""

    config: EngineConfig
    model_info: ModelInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @abstractmethod
    def validate(self, request: GenerationRequest) -> None:
        """Raise `RequestError` if `submit` would refuse the request whatever the load."""

    @abstractmethod
    def submit(self, requests: Sequence[GenerationRequest], sink: OutputSink) -> None:
        """Queue requests, all or none. Each ends exactly once, as `n` last deltas given to `sink`.

        Raises RequestError (first bad request), QueueFullError, EngineDeadError.
        """

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests with finish reason "abort"; unknown or finished ids are ignored."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """A consistent snapshot."""

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests: not after `shutdown`, nor in a forked child."""
        return True

    @property
    def is_own_thread(self) -> bool:
        """Whether this is called on the thread that runs the steps: it must not wait for requests to end."""
        return False

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request uses."""

    @abstractmethod
    def shutdown(self) -> None:
        """Abort what runs, end the engine's thread and free the model. Idempotent."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
