"""How many KV blocks an engine gets, and the context that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trivium.config import EngineConfig
from trivium.errors import ConfigError

__all__ = ["MEMORY_SHARE", "MIN_CONTEXT", "KvBudget", "kv_cache_dtype", "plan_kv_blocks"]

MEMORY_SHARE = 0.25  # of the available memory, when nothing is configured
MIN_CONTEXT = 16  # tokens


@dataclass(frozen=True, slots=True)
class KvBudget:
    """`num_blocks` blocks of `block_bytes` bytes each; `max_model_len` tokens of context fit one sequence."""

    num_blocks: int
    block_bytes: int
    max_model_len: int

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes


def kv_cache_dtype(config: EngineConfig) -> Literal["int16", "int8", "float16", "float32"]:
    """The element type of the cache: what is configured, else int16, or float32 where everything else is."""
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    return "float32" if config.activation_dtype == "float32" else "int16"


def plan_kv_blocks(
    config: EngineConfig, *, block_bytes: int, model_max_len: int, available_memory: Callable[[], int]
) -> KvBudget:
    """Divide memory into KV blocks.

    `block_bytes` is one block over all layers, `model_max_len` the model's own maximum in tokens; `available_memory` (bytes) is
    asked only when the configuration names neither blocks nor bytes. Without a configured `max_model_len` the context is the
    model's maximum cut to what the blocks hold. Raises `ConfigError` when not even 16 tokens fit, or a configured
    `max_model_len` does not.
    """
    if config.max_model_len is not None and config.max_model_len > model_max_len:
        raise ConfigError(
            f"max_model_len must be <= {model_max_len}, the most this model was made for, got {config.max_model_len}"
        )
    context = min(config.max_model_len or model_max_len, model_max_len)
    num_blocks, origin = _count_blocks(config, block_bytes, context, available_memory)
    capacity = num_blocks * config.block_size
    if capacity < MIN_CONTEXT:
        raise ConfigError(
            f"{origin} holds {capacity} tokens of KV cache, fewer than {MIN_CONTEXT}: "
            f"a block of {config.block_size} tokens takes {block_bytes} bytes; give kv_cache_memory at least that"
        )
    if config.max_model_len is not None and config.max_model_len > capacity:
        needed = -(-config.max_model_len // config.block_size)
        raise ConfigError(
            f"max_model_len={config.max_model_len} does not fit the KV cache: {origin} holds {capacity} tokens; "
            f"use max_model_len <= {capacity}, or kv_cache_memory >= {needed * block_bytes} ({needed} blocks)"
        )
    return KvBudget(num_blocks, block_bytes, min(context, capacity))


def _count_blocks(config: EngineConfig, block_bytes: int, context: int, available_memory: Callable[[], int]) -> tuple[int, str]:
    """The number of blocks and, for messages, what decided it."""
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks, f"num_kv_blocks={config.num_kv_blocks}"
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory // block_bytes, f"kv_cache_memory={config.kv_cache_memory}"
    share = int(available_memory() * MEMORY_SHARE)
    useful = config.max_num_seqs * -(-context // config.block_size)
    return min(share // block_bytes, useful), f"{MEMORY_SHARE:.0%} of the available memory ({share} bytes)"
