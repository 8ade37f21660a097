"""`EngineConfig`: the only source of engine options, for the library, the command line, the environment and TOML files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trivium.settings import Settings, option, require

__all__ = ["MAX_KV_BLOCKS", "EngineConfig", "cache_home"]

MAX_KV_BLOCKS = 2**24


@dataclass(slots=True)
class EngineConfig(Settings):
    """Options of one engine. Each is also a flag (`--max-model-len`), a variable (`TRIVIUM_MAX_MODEL_LEN`) and a TOML key.

    Raises `ConfigError` naming the field, what is allowed and what came.
    """

    model: str = option("smollm2", "GGUF file, Hugging Face folder, hf:owner/name, or a catalogue name")
    tokenizer: str | None = option(None, "folder or tokenizer.json to use instead of the model's own")
    chat_template: str | None = option(None, "Jinja template, or the path of one, instead of the model's own")
    served_model_name: str | None = option(None, "name that the doors report; default: the model's name")
    max_model_len: int | None = option(
        None, "prompt and output tokens together; default: the model's maximum, cut to the KV budget"
    )
    max_num_seqs: int = option(32, "sequences that run at once")
    max_num_batched_tokens: int = option(512, "tokens computed in one step; longer prompts are cut into chunks")
    max_waiting: int = option(512, "requests that may wait; more are refused")
    block_size: int = option(64, "tokens per KV block; a multiple of 16")
    kv_cache_memory: int | None = option(
        None, "bytes for the KV cache; default: a quarter of the available memory, at most what is useful"
    )
    num_kv_blocks: int | None = option(None, "exact number of KV blocks instead of a memory budget")
    kv_cache_dtype: Literal["auto", "int16", "int8", "float16", "float32"] = option(
        "auto",
        "int16: with a scale per token and head, as exact as float16, faster; int8: half the memory, nearly as exact; "
        "auto: int16, float32 with activation_dtype=float32",
    )
    enable_prefix_caching: bool = option(True, "reuse the KV of prompts that begin alike")
    prompt_lookup: bool = option(
        True, "guess tokens from what prompt and answer have said before: faster where they repeat, the same answer always"
    )
    quantization: Literal["wint8", "wint4"] | None = option(None, "quantise 16- and 32-bit weights while loading")
    activation_dtype: Literal["auto", "int8", "int16", "float32"] = option(
        "auto",
        "auto: int8 with 4-bit weights, int16 with wider ones; int8: with all quantised weights where the processor multiplies "
        "bytes (AVX-512 VNNI, AVX-VNNI), else as auto; int16: near exact; float32: exact, slow; the commands that run one "
        "sequence at a time take int16 for auto, which costs them nothing",
    )
    num_threads: int | None = option(None, "threads of the kernels; default: the cores this process may use")
    seed: int | None = option(None, "seed from which requests without one draw theirs; default: random")
    reasoning_parser: str | None = option(None, "splits thought from answer")
    tool_call_parser: str | None = option(None, "finds tool calls in the answer")
    max_logprobs: int = option(20, "most alternatives a request may ask for; -1: the whole vocabulary")

    def __post_init__(self) -> None:
        self.coerce()
        require(
            self.max_model_len is None or 16 <= self.max_model_len <= 2**24, "max_model_len", "16..2^24", self.max_model_len
        )
        require(1 <= self.max_num_seqs <= 4096, "max_num_seqs", "1..4096", self.max_num_seqs)
        require(16 <= self.max_num_batched_tokens <= 2**18, "max_num_batched_tokens", "16..2^18", self.max_num_batched_tokens)
        require(1 <= self.max_waiting <= 2**20, "max_waiting", "1..2^20", self.max_waiting)
        blocks = 16 <= self.block_size <= 4096 and self.block_size % 16 == 0
        require(blocks, "block_size", "a multiple of 16, at most 4096", self.block_size)
        require(self.kv_cache_memory is None or self.kv_cache_memory > 0, "kv_cache_memory", "> 0 bytes", self.kv_cache_memory)
        require(
            self.num_kv_blocks is None or 1 <= self.num_kv_blocks <= MAX_KV_BLOCKS,
            "num_kv_blocks",
            "1..2^24",
            self.num_kv_blocks,
        )
        require(self.num_threads is None or 1 <= self.num_threads <= 256, "num_threads", "1..256", self.num_threads)
        require(self.seed is None or 0 <= self.seed < 2**64, "seed", "0..2^64-1", self.seed)
        require(self.max_logprobs >= -1, "max_logprobs", ">= -1", self.max_logprobs)
        quantized = self.quantization is not None and self.activation_dtype == "float32"
        require(not quantized, "quantization", "unset with activation_dtype='float32'", self.quantization)


def cache_home() -> Path:
    """Where fetched models and converted tokenizers are kept: `TRIVIUM_HOME`, else the XDG cache folder."""
    home = os.environ.get("TRIVIUM_HOME")
    if home:
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trivium"
