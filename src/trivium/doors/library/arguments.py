"""Every argument of `LLM(...)`: honoured, noted or refused. The table in docs/library.md is this one.

honoured: does what its description says. noted: concerns hardware or parts that this engine does not have and changes no
answer; it is accepted and a log line says what happens instead. refused: would change the answers or ask for results that never
come; only the values that switch it off are accepted.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trivium.config import EngineConfig
from trivium.doors.library.hints import unknown_name
from trivium.engine.sampling import LogprobsMode
from trivium.errors import ConfigError
from trivium.parsing import get_reasoning_parser, get_tool_parser

__all__ = ["ARGUMENTS", "ENVIRONMENT", "SPECULATIVE_KEYS", "Argument", "LibraryOptions", "argument_table", "read_arguments"]

logger = logging.getLogger(__name__)

Status = Literal["honoured", "noted", "refused"]
Check = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its fate, what it does or what happens instead, its check, and the values that ask for nothing special.

    `check(name, value)` raises `ConfigError`; None values are not checked. `field` names the `EngineConfig` field it sets.
    """

    name: str
    status: Status
    here: str
    neutral: tuple[Any, ...] = ()
    check: Check | None = None
    field: str | None = None


@dataclass(slots=True)
class LibraryOptions:
    """What `LLM(...)` was asked for, after checking. `limit_mm_per_prompt` counts media parts per kind."""

    config: EngineConfig
    logprobs_mode: LogprobsMode = "raw_logprobs"
    limit_mm_per_prompt: dict[str, int] = field(default_factory=lambda: {"image": 1, "video": 1, "audio": 1})


def _integer(low: int | None = None, high: int | None = None) -> Check:
    def check(name: str, value: Any) -> None:
        inside = isinstance(value, int) and not isinstance(value, bool)
        if not inside or (low is not None and value < low) or (high is not None and value > high):
            bounds = "" if low is None else f" >= {low}" if high is None else f" from {low} to {high}"
            raise ConfigError(f"{name} must be an integer{bounds}, got {value!r}")

    return check


def _number(allowed: str, inside: Callable[[float], bool]) -> Check:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not inside(value):  # NaN is inside no range
            raise ConfigError(f"{name} must be a number {allowed}, got {value!r}")

    return check


def _one_of(*values: Any) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, values))}, got {value!r}")

    return check


def _of_type(*types: type, word: str) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, types):
            raise ConfigError(f"{name} must be {word}, got {value!r}")

    return check


def _limits(name: str, value: Any) -> None:
    _mapping(name, value)
    for kind, limit in value.items():
        if kind not in ("image", "video", "audio"):
            raise ConfigError(f"{name} takes image, video and audio, got {kind!r}")
        _integer(0)(f"{name}[{kind!r}]", limit)


def _quantization(name: str, value: Any) -> None:
    if value not in ("wint8", "wint4"):
        raise ConfigError(f"{name}={value!r} is not supported: use 'wint8' or 'wint4', or a GGUF file quantised as you want it")


def _processors(name: str, value: Any) -> None:
    _of_type(list, tuple, word="a list of names")(name, value)
    for processor in value:
        if processor != "LogitBiasLogitsProcessor":
            raise ConfigError(f"{name}: only 'LogitBiasLogitsProcessor' exists here (and is always on), got {processor!r}")


def _speculative(name: str, value: Any) -> None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{name} is not JSON: {error}") from error
    _mapping(name, value)
    known = {row.name: row for row in SPECULATIVE_KEYS}
    for key, setting in value.items():
        if key not in known:
            raise unknown_name(name, str(key), known)
        _check_value(known[key], f"{name}[{key!r}]", setting)


_bool = _of_type(bool, word="True or False")
_mapping = _of_type(Mapping, word="a dict")
_text = _of_type(str, word="a str")
_share = _number("above 0 and at most 1", lambda v: 0 < v <= 1)


def _honoured(name: str, here: str, field: str | None = None, check: Check | None = None) -> Argument:
    return Argument(name, "honoured", here, check=check, field=field or name)


def _noted(name: str, here: str, *neutral: Any, check: Check | None = None) -> Argument:
    return Argument(name, "noted", here, (None, *neutral), check)


def _refused(name: str, here: str, *neutral: Any) -> Argument:
    return Argument(name, "refused", here, (None, *neutral))


_PARALLEL = "one process with threads does the work; see `num_threads`"
_CHUNKS = "prompts are always cut into chunks of `max_num_batched_tokens`"
_PORTS = "the library opens no ports"
_MEDIA = "this engine's models read text only"
_CACHE = "cached prefixes live in the KV cache only"
_SPECULATION = "changes the speed only; `prompt_lookup` guesses by its own rules"

ARGUMENTS: tuple[Argument, ...] = (
    _honoured("model", "GGUF file, Hugging Face folder, catalogue name or alias", "model"),
    _refused("revision", "a model is taken as it lies on disk or on the hub's main branch", "master", "main"),
    _honoured("tokenizer", "folder or tokenizer.json used instead of the model's own"),
    _noted("enable_logprob", "logprobs are always available", False, True, check=_bool),
    _honoured("chat_template", "Jinja text, or the path of a template"),
    _honoured("max_model_len", "prompt and output tokens together; unset: the model's maximum, cut to the KV budget"),
    _noted("tensor_parallel_size", _PARALLEL, 1, check=_integer(1)),
    _noted("data_parallel_size", _PARALLEL, 1, check=_integer(1)),
    _noted("enable_expert_parallel", _PARALLEL, False, check=_bool),
    _honoured("block_size", "tokens per KV block, a multiple of 16"),
    _honoured("max_num_seqs", "sequences that run at once (32)"),
    _honoured("max_num_batched_tokens", "tokens computed in one step (512)"),
    _noted("gpu_memory_utilization", "the KV cache is sized by `kv_cache_memory` or `num_kv_blocks`", 0.9, check=_share),
    _honoured("num_gpu_blocks_override", "exact number of KV blocks", "num_kv_blocks"),
    _noted("kv_cache_ratio", "prompts and outputs share all blocks", 0.75, check=_share),
    _honoured("enable_prefix_caching", "reuse the KV of prompts that begin alike"),
    _noted("enable_output_caching", "generated tokens are cached with their prompt", True, check=_bool),
    _noted("swap_space", _CACHE, 0, check=_number(">= 0", lambda v: 0 <= v < math.inf)),
    _noted("kvcache_storage_backend", _CACHE, check=_text),
    _noted("write_policy", _CACHE, "write_through", check=_text),
    _noted("enable_chunked_prefill", _CHUNKS, True, False, check=_bool),
    _noted("max_num_partial_prefills", _CHUNKS, 1, check=_integer(1)),
    _noted("max_long_partial_prefills", _CHUNKS, 1, check=_integer(1)),
    _noted("long_prefill_token_threshold", _CHUNKS, 0, check=_integer(0)),
    _noted("disable_chunked_mm_input", _MEDIA, False, check=_bool),
    _honoured(
        "quantization",
        "'wint8' or 'wint4': quantise 16- and 32-bit weights while loading (the log tells if there are none); refused with "
        "`activation_dtype='float32'`; other forms are refused",
        "quantization",
        _quantization,
    ),
    _refused("load_choices", "weights are always read from the model's files", "default", "default_v1"),
    _refused("dynamic_load_weight", "weights cannot be replaced while the engine runs", False),
    _refused("load_strategy", "weights cannot be replaced while the engine runs", "normal"),
    _honoured("seed", "requests without a seed draw theirs from it; unset: random"),
    _honoured("reasoning_parser", "splits thought from answer"),
    _honoured("tool_call_parser", "finds tool calls in the answer"),
    _refused("tool_parser_plugin", "parsers are built in; take one of the names of `tool_call_parser`"),
    Argument("limit_mm_per_prompt", "honoured", f"most media parts per prompt (1 of each kind); {_MEDIA}", check=_limits),
    _noted("mm_processor_kwargs", _MEDIA, check=_mapping),
    _noted("max_encoder_cache", _MEDIA, -1, check=_number("", lambda v: v == v)),
    _noted("max_processor_cache", _MEDIA, -1, check=_number("", lambda v: v == v)),
    _noted("enable_mm", _MEDIA, False, check=_bool),
    _noted("speculative_config", f"{_SPECULATION}; draft models are refused", check=_speculative),
    _noted(
        "guided_decoding_backend",
        "guided decoding is always on, by llguidance",
        "auto",
        "guidance",
        "off",
        check=_one_of("auto", "guidance", "xgrammar", "off"),
    ),
    _refused("guided_decoding_disable_any_whitespace", "JSON may hold whitespace where JSON allows it", False),
    _honoured("max_logprobs", "most alternatives a request may ask for (20); -1: the whole vocabulary"),
    Argument(
        "logprobs_mode",
        "honoured",
        "what logprobs report, for requests that do not say (`raw_logprobs`)",
        check=_one_of(*get_args(LogprobsMode)),
    ),
    Argument("logits_processors", "honoured", "only `LogitBiasLogitsProcessor`, which is always on", check=_processors),
    _refused("enable_early_stop", "answers are not cut for being repetitive; use a penalty", False),
    _refused("early_stop_config", "answers are not cut for being repetitive; use a penalty"),
    _refused("plas_attention_config", "attention is always complete"),
    _noted(
        "graph_optimization_config",
        "there are no graphs to capture on a CPU",
        check=_of_type(Mapping, str, word="a dict or JSON"),
    ),
    _refused("splitwise_role", "prefill and decode always run in one engine", "mixed"),
    _refused("runner", "models generate text; there is no pooling", "auto", "generate"),
    _refused("convert", "models generate text; there is no pooling", "auto", "none"),
    _noted("model_impl", "there is one implementation", "auto", check=_text),
    _noted("lm_head_fp32", "logits are float32; `activation_dtype='float32'` computes them so throughout", False, check=_bool),
    _refused("enable_entropy", "entropies are not reported", False),
    _refused("enable_keep_sampling_mask", "sampling masks are not reported", False),
    _noted("disable_custom_all_reduce", _PARALLEL, False, check=_bool),
    _noted("enable_overlap_schedule", "scheduling has its own way", False, True, check=_bool),
    _noted("enable_chunked_moe", "experts are computed in rows grouped by expert", False, check=_bool),
    _noted("chunked_moe_size", "experts are computed in rows grouped by expert", 256, check=_integer(1)),
    _noted("port", _PORTS),
    _noted("metrics_port", _PORTS),
    _noted("engine_worker_queue_port", _PORTS),
    _noted("cache_queue_port", _PORTS),
    _honoured("served_model_name", "name in logs"),
    _honoured("num_threads", "threads of the kernels; unset: the cores this process may use"),
    _honoured("kv_cache_memory", "bytes for the KV cache; unset: a quarter of the available memory, at most what is useful"),
    _honoured("num_kv_blocks", "exact number of KV blocks"),
    _honoured("kv_cache_dtype", "'auto', 'int16', 'int8' (about half the memory), 'float16' or 'float32'"),
    _honoured("prompt_lookup", "guess tokens from what prompt and answer have said before (True); no answer changes"),
    _honoured(
        "activation_dtype",
        "'auto', 'int8' (for 6- and 8-bit weights too: faster, less exact), 'int16' (near exact) or 'float32' (exact, slow)",
    ),
    _honoured("max_waiting", "requests that wait inside the engine (512); longer batches are fed gradually"),
)

SPECULATIVE_KEYS: tuple[Argument, ...] = (
    Argument("method", "refused", f"{_SPECULATION}; 'mtp' is refused", (None, "ngram", "ngram_match", "suffix")),
    _refused("model", "draft models are not run"),
    _refused("quantization", "draft models are not run"),
    _refused("mtp_strategy", "draft models are not run", "default"),
    _noted("num_speculative_tokens", _SPECULATION, check=_integer(1, 5)),
    _noted("num_model_steps", _SPECULATION, check=_integer(1, 5)),
    _noted("max_ngram_size", _SPECULATION, check=_integer(1)),
    _noted("min_ngram_size", _SPECULATION, check=_integer(1)),
    _noted("verify_window", _SPECULATION, check=_integer(1)),
    _noted("max_candidate_len", _SPECULATION, check=_integer(1)),
    _noted("suffix_decoding_max_tree_depth", _SPECULATION, check=_integer(1)),
    _noted("suffix_decoding_max_cached_requests", _SPECULATION, check=_integer(-1)),
    _noted("suffix_decoding_max_spec_factor", _SPECULATION, check=_number(">= 0", lambda v: v >= 0)),
    _noted("suffix_decoding_min_token_prob", _SPECULATION, check=_number("from 0 to 1", lambda v: 0 <= v <= 1)),
)

ENVIRONMENT: tuple[Argument, ...] = (
    Argument("FD_LOG_DIR", "honoured", "`python -m trivium.fastdeploy` writes fastdeploy.log there"),
    Argument("FD_MAX_STOP_SEQS_NUM", "noted", "any number of stop strings is taken"),
    Argument("FD_STOP_SEQS_MAX_LEN", "noted", "stop strings may have any length"),
    Argument("FD_SAMPLING_CLASS", "noted", "temperature, min_p, top_k and top_p are always all honoured"),
    Argument("FD_USE_GET_SAVE_OUTPUT_V1", "noted", "logprobs are limited by `max_logprobs` alone"),
    Argument("FD_DETERMINISTIC_MODE", "noted", "greedy and seeded answers are always reproducible"),
    Argument("FD_ATTENTION_BACKEND", "noted", "there is one attention"),
    Argument("FD_USE_HF_TOKENIZER", "noted", "the model's own tokenizer is used"),
    Argument("FD_DISABLE_CHUNKED_PREFILL", "noted", _CHUNKS),
    Argument("ENABLE_V1_KVCACHE_SCHEDULER", "noted", "there is one scheduler"),
    Argument("FD_MODEL_SOURCE", "noted", "names are found on disk, in the cache, the catalogue, or the hub"),
    Argument("FD_MODEL_CACHE", "noted", "fetched models are kept under `TRIVIUM_HOME`"),
)


def read_arguments(model: Any, environ: Mapping[str, str] | None = None, **kwargs: Any) -> LibraryOptions:
    """Check everything `LLM` was given and build its configuration; log a line for each noted argument that asks for something.

    Raises `TypeError` for an unknown name (with the nearest known one), `ConfigError` (a `ValueError`) for a wrong or refused
    value (unknown parsers: a `KeyError` too), `OSError` if `chat_template` is a `Path` that cannot be read.
    """
    rows = {row.name: row for row in ARGUMENTS}
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}  # of the argument that set a field
    for name, value in {"model": model, **kwargs}.items():
        if name not in rows:
            raise unknown_name("LLM", name, rows)
        row = rows[name]
        _check_value(row, name, value)
        if row.status == "noted" and value not in row.neutral:
            logger.warning("%s=%r has no effect: %s", name, value, row.here)
        if row.field is None or value is None:
            continue
        if row.field in settings:
            raise ConfigError(f"{names[row.field]} and {name} name the same thing: give one of them")
        settings[row.field] = value
        names[row.field] = name
    if "chat_template" in settings:
        settings["chat_template"] = read_template(settings["chat_template"])
    if settings.get("model") is None:
        raise ConfigError(f"model must be a path or a name, got {model!r}")
    environ = os.environ if environ is None else environ
    for row in ENVIRONMENT:
        if row.status == "noted" and row.name in environ:
            logger.warning("%s is set but has no effect: %s", row.name, row.here)
    options = LibraryOptions(EngineConfig.load(settings, environ=environ))
    if options.config.reasoning_parser is not None:
        get_reasoning_parser(options.config.reasoning_parser)  # a wrong name is known before the model is read
    if options.config.tool_call_parser is not None:
        get_tool_parser(options.config.tool_call_parser)
    options.logprobs_mode = kwargs.get("logprobs_mode") or options.logprobs_mode
    options.limit_mm_per_prompt.update(kwargs.get("limit_mm_per_prompt") or {})
    return options


def read_template(template: Any) -> str:
    """A chat template's text: given itself, or as the path of a file.

    A str without braces or line breaks is a path; `ConfigError` if it cannot be read, `OSError` for a `Path`.
    """
    if isinstance(template, Path):
        return template.read_text(encoding="utf-8")
    if not isinstance(template, str):
        raise ConfigError(f"chat_template must be Jinja text or a path, got {template!r}")
    if any(c in template for c in "{}\n"):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template {template!r} looks like a path but cannot be read: {error}") from error


def argument_table(rows: tuple[Argument, ...]) -> str:
    """The rows as the Markdown table of docs/library.md."""
    lines = ["| argument | status | here |", "|---|---|---|"]
    for row in rows:
        kept = [repr(v) for v in row.neutral if v is not None] if row.status == "refused" else []
        status = row.status + (f" unless {' or '.join(kept)}" if kept else "")
        lines.append(f"| `{row.name}` | {status} | {row.here} |")
    return "\n".join(lines) + "\n"


def _check_value(row: Argument, name: str, value: Any) -> None:
    if value is None:
        return
    if row.status == "refused":
        if not any(value is v if isinstance(v, bool) else value == v for v in row.neutral):
            kept = [repr(v) for v in row.neutral if v is not None]
            allowed = f"; only {' or '.join(kept)} is accepted" if kept else "; leave it out"
            raise ConfigError(f"{name}={value!r} is not supported: {row.here}{allowed}")
        return
    if row.check is not None:
        row.check(name, value)
