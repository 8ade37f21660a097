"""From an `EngineConfig` to the parts of a `NativeEngine`: files found, weights packed, memory divided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trivium.config import MAX_KV_BLOCKS, EngineConfig
from trivium.engine.engine import ModelInfo
from trivium.engine.kv_budget import KvBudget, kv_cache_dtype, plan_kv_blocks
from trivium.engine.machine import available_memory, instruction_set, usable_cores
from trivium.engine.prompt_lookup import PromptLookup
from trivium.errors import ConfigError
from trivium.models.catalogue import resolve_model
from trivium.models.chat_template import ChatTemplate, find_template, read_template
from trivium.models.loader import LoadedDecoder, load_decoder
from trivium.models.tokenizer import Tokenizer
from trivium.parsing.structured import GuidedCompiler

__all__ = ["assemble"]

log = logging.getLogger("trivium")


def assemble(config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Keyword arguments of `NativeEngine`. Raises `ModelLoadError` and its kinds, and `ConfigError`."""
    from trivium import _native

    isa = instruction_set()
    if config.chat_template is not None:
        read_template(config.chat_template)  # a wrong one is known before minutes of packing
    path = resolve_model(config.model)
    _native.set_num_threads(config.num_threads or usable_cores())
    decoder = load_decoder(path, config, progress)
    tokenizer = _tokenizer(config, decoder)
    budget = _allocate_cache(config, decoder)
    info = ModelInfo(
        name=config.served_model_name or _model_name(config.model),
        architecture=decoder.spec.architecture,
        vocab_size=decoder.spec.vocab_size,
        max_model_len=budget.max_model_len,
        eos_token_ids=_eos_token_ids(decoder, tokenizer),
        generation_defaults=decoder.generation_config,
        config_defaults=_config_defaults(decoder),
    )
    native = decoder.native
    log.info("model: %s (%s), %.1f MB of weights from %s", info.name, info.architecture, native.weight_bytes / 1e6, path)
    log.info("threads: %d, instruction set: %s", _native.num_threads(), isa)
    if config.activation_dtype == "int8" and not _native.bytes_by_bytes():
        log.warning(
            "activation_dtype=int8 holds for 4-bit weights only: with %s, 6- and 8-bit ones take int16, as with auto", isa
        )
    log.info("total_block_num: %d blocks of %d tokens, %.1f MB", budget.num_blocks, config.block_size, budget.nbytes / 1e6)
    log.info("max_model_len: %d tokens (the model's maximum is %d)", budget.max_model_len, decoder.spec.max_position)
    return {
        "native": native,
        "sampler_type": _native.Sampler,
        "spec": decoder.spec,
        "model_info": info,
        "num_blocks": budget.num_blocks,
        "tokenizer": tokenizer,
        "chat_template": _chat_template(config, decoder, tokenizer),
        "propose": PromptLookup() if config.prompt_lookup else None,
        "compile_guided": GuidedCompiler(tokenizer, info.vocab_size, info.eos_token_ids).compile,
    }


def _allocate_cache(config: EngineConfig, decoder: LoadedDecoder) -> KvBudget:
    native, dtype = decoder.native, kv_cache_dtype(config)
    budget = plan_kv_blocks(
        config,
        block_bytes=native.block_bytes(config.block_size, dtype),
        model_max_len=decoder.spec.max_position,
        available_memory=available_memory,
    )
    if budget.num_blocks > MAX_KV_BLOCKS:
        raise ConfigError(
            f"the KV cache must have at most {MAX_KV_BLOCKS} blocks, got {budget.num_blocks}; give a smaller kv_cache_memory "
            f"or a larger block_size"
        )
    try:
        native.allocate_cache(budget.num_blocks, config.block_size, dtype)
    except MemoryError as error:
        raise ConfigError(f"{budget.nbytes} bytes of KV cache cannot be allocated; give a smaller kv_cache_memory") from error
    return budget


def _tokenizer(config: EngineConfig, decoder: LoadedDecoder) -> Tokenizer:
    if config.tokenizer is not None:
        return Tokenizer.from_folder(config.tokenizer)
    if decoder.metadata is None:
        return Tokenizer.from_folder(decoder.path)
    status = decoder.path.stat()
    return Tokenizer.from_gguf(decoder.metadata, cache_key=f"{decoder.path.resolve()}:{status.st_size}:{status.st_mtime_ns}")


def _chat_template(config: EngineConfig, decoder: LoadedDecoder, tokenizer: Tokenizer) -> ChatTemplate | None:
    if config.chat_template is not None:
        return ChatTemplate.load(config.chat_template, tokenizer)
    source = find_template(decoder.path if decoder.metadata is None else decoder.metadata)
    return None if source is None else ChatTemplate(source, tokenizer)


def _eos_token_ids(decoder: LoadedDecoder, tokenizer: Tokenizer) -> frozenset[int]:
    """End tokens of the tokenizer, and those that the model's own configuration adds: one id or a list."""
    hf_config = decoder.hf_config or {}
    named = decoder.generation_config.get("eos_token_id", hf_config.get("eos_token_id"))
    ids = {*tokenizer.eos_token_ids, *(named if isinstance(named, list) else [named])}
    return frozenset(token for token in ids if isinstance(token, int) and 0 <= token < decoder.spec.vocab_size)


def _config_defaults(decoder: LoadedDecoder) -> dict[str, Any]:
    """Sampling defaults of config.json, where models had them before there was a generation_config.json."""
    top_k = (decoder.hf_config or {}).get("top_k")
    return {"top_k": top_k} if type(top_k) is int and 0 <= top_k < 2**31 else {}


def _model_name(model: str) -> str:
    """The name doors report: a file's stem, a folder's name, or the name that was asked for."""
    path = Path(model)
    if path.is_file():
        return path.stem
    return path.resolve().name if path.is_dir() else model.removeprefix("hf:")
