"""What a door asks of the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.engine.sampling import SamplingOptions
from trivium.errors import RequestError

__all__ = ["MAX_CACHE_SALT", "EmbeddingSpan", "GenerationRequest"]

MAX_CACHE_SALT = 1024  # characters: the prefix cache keeps those of every prompt that it knows


@dataclass(frozen=True, slots=True)
class EmbeddingSpan:
    """Ready embeddings (an image, video or audio) that take the place of prompt tokens.

    `start` is the first prompt position they replace, `values` is float32 [positions, hidden_size], `digest` identifies the
    content for the prefix cache. `layer_additions` holds, per layer index, float32 [positions, hidden_size] added after
    that layer.
    """

    start: int
    values: NDArray[np.float32]
    digest: bytes
    layer_additions: dict[int, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(slots=True)
class GenerationRequest:
    """One prompt and how to continue it: what every door turns its input into.

    `prompt_token_ids` is never changed by the engine. `priority`: lower runs first. `timeout` is seconds from `arrival_time`
    (time.monotonic clock) to the end of the answer. `n` samples share one prefill and end separately, each as its own `index`.
    `cache_salt`, of at most MAX_CACHE_SALT characters, separates the prefix caches of tenants. `thinking` tells whether the
    prompt ends inside an open thought. `position_ids`, when given, is int32 [3, len(prompt)]. `delta_tokens`: a delta that is
    not the last has at least so many tokens, and some text if it is more than one; a door that gathers tokens anyway is woken
    the less. But for the first of a sample, which comes as soon as it can, they come together with those of other samples.
    `streamed`: someone reads along; while it is so, prompts of others come in pieces small enough for its tokens to keep
    flowing.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    n: int = 1
    priority: int = 0
    timeout: float | None = None
    cache_salt: str | None = None
    thinking: bool | None = None
    embeddings: tuple[EmbeddingSpan, ...] = ()
    position_ids: NDArray[np.int32] | None = None
    delta_tokens: int = 1
    streamed: bool = True
    arrival_time: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise RequestError("the prompt has no tokens", field="prompt", allowed="at least one token", value=[])
        _require_int("n", self.n, 1)
        _require_int("priority", self.priority, None)
        _require_int("delta_tokens", self.delta_tokens, 1)
        if self.cache_salt is not None and not (isinstance(self.cache_salt, str) and len(self.cache_salt) <= MAX_CACHE_SALT):
            allowed, value = f"a string of at most {MAX_CACHE_SALT} characters", self.cache_salt
            raise RequestError.out_of_range(
                "cache_salt", allowed, f"{len(value)} characters" if isinstance(value, str) else value
            )
        if self.timeout is not None and not (
            isinstance(self.timeout, (int, float)) and not isinstance(self.timeout, bool) and self.timeout > 0
        ):
            raise RequestError.out_of_range("timeout", "a number of seconds > 0", self.timeout)


def _require_int(name: str, value: Any, low: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low):
        raise RequestError.out_of_range(name, "an integer" if low is None else f"an integer >= {low}", value)
