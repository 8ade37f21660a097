"""`EngineConfig`: the only source of engine options, for the library, the command line, the environment and TOML files."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from trivium.errors import ConfigError

__all__ = ["MAX_KV_BLOCKS", "EngineConfig", "cache_home"]

MAX_KV_BLOCKS = 2**24


def _option(default: Any, help: str) -> Any:
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(slots=True)
class EngineConfig:
    """Options of one engine. Each is also a flag (`--max-model-len`), a variable (`TRIVIUM_MAX_MODEL_LEN`) and a TOML key.

    Raises `ConfigError` naming the field, what is allowed and what came.
    """

    model: str = _option("smollm2", "GGUF file, Hugging Face folder, hf:owner/name, or a catalogue name")
    tokenizer: str | None = _option(None, "folder or tokenizer.json to use instead of the model's own")
    chat_template: str | None = _option(None, "Jinja template, or the path of one, instead of the model's own")
    served_model_name: str | None = _option(None, "name that the doors report; default: the model's name")
    max_model_len: int | None = _option(
        None, "prompt and output tokens together; default: the model's maximum, cut to the KV budget"
    )
    max_num_seqs: int = _option(32, "sequences that run at once")
    max_num_batched_tokens: int = _option(512, "tokens computed in one step; longer prompts are cut into chunks")
    max_waiting: int = _option(512, "requests that may wait; more are refused")
    block_size: int = _option(64, "tokens per KV block; a multiple of 16")
    kv_cache_memory: int | None = _option(
        None, "bytes for the KV cache; default: a quarter of the available memory, at most what is useful"
    )
    num_kv_blocks: int | None = _option(None, "exact number of KV blocks instead of a memory budget")
    kv_cache_dtype: Literal["auto", "float16", "float32"] = _option(
        "auto", "auto: float16, float32 with activation_dtype=float32"
    )
    enable_prefix_caching: bool = _option(True, "reuse the KV of prompts that begin alike")
    quantization: Literal["wint8", "wint4"] | None = _option(None, "quantise 16- and 32-bit weights while loading")
    activation_dtype: Literal["auto", "int8", "int16", "float32"] = _option(
        "auto",
        "int8: with 4-bit weights (wider ones take int16); int16: near exact; float32: exact, slow; auto: int8; the commands "
        "that run one sequence at a time take int16, which costs them nothing",
    )
    num_threads: int | None = _option(None, "threads of the kernels; default: the cores this process may use")
    seed: int | None = _option(None, "seed from which requests without one draw theirs; default: random")
    reasoning_parser: str | None = _option(None, "splits thought from answer")
    tool_call_parser: str | None = _option(None, "finds tool calls in the answer")
    max_logprobs: int = _option(20, "most alternatives a request may ask for; -1: the whole vocabulary")

    def __post_init__(self) -> None:
        for f in fields(self):
            setattr(self, f.name, _coerce(f.name, getattr(self, f.name), _hints()[f.name]))
        _require(
            self.max_model_len is None or 16 <= self.max_model_len <= 2**24, "max_model_len", "16..2^24", self.max_model_len
        )
        _require(1 <= self.max_num_seqs <= 4096, "max_num_seqs", "1..4096", self.max_num_seqs)
        _require(16 <= self.max_num_batched_tokens <= 2**18, "max_num_batched_tokens", "16..2^18", self.max_num_batched_tokens)
        _require(1 <= self.max_waiting <= 2**20, "max_waiting", "1..2^20", self.max_waiting)
        blocks = 16 <= self.block_size <= 4096 and self.block_size % 16 == 0
        _require(blocks, "block_size", "a multiple of 16, at most 4096", self.block_size)
        _require(self.kv_cache_memory is None or self.kv_cache_memory > 0, "kv_cache_memory", "> 0 bytes", self.kv_cache_memory)
        _require(
            self.num_kv_blocks is None or 1 <= self.num_kv_blocks <= MAX_KV_BLOCKS,
            "num_kv_blocks",
            "1..2^24",
            self.num_kv_blocks,
        )
        _require(self.num_threads is None or 1 <= self.num_threads <= 256, "num_threads", "1..256", self.num_threads)
        _require(self.seed is None or 0 <= self.seed < 2**64, "seed", "0..2^64-1", self.seed)
        _require(self.max_logprobs >= -1, "max_logprobs", ">= -1", self.max_logprobs)
        quantized = self.quantization is not None and self.activation_dtype == "float32"
        _require(not quantized, "quantization", "unset with activation_dtype='float32'", self.quantization)

    @property
    def activations(self) -> Literal["int8", "int16", "float32"]:
        """`activation_dtype` with "auto" decided."""
        return "int8" if self.activation_dtype == "auto" else self.activation_dtype

    @classmethod
    def help(cls) -> dict[str, str]:
        """Field name -> one line of help."""
        return {f.name: str(f.metadata["help"]) for f in fields(cls)}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a field."""
        f = next(f for f in fields(cls) if f.name == name)
        return f.default_factory() if f.default_factory is not MISSING else f.default

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> EngineConfig:
        """Merge options: flags stand above `TRIVIUM_…` variables, above the TOML file, above the defaults."""
        names = [f.name for f in fields(cls)]
        values: dict[str, Any] = {}
        if file is not None:
            values.update(_read_toml(Path(file), names))
        for name in names:
            text = (os.environ if environ is None else environ).get(f"TRIVIUM_{name.upper()}")
            if text is not None:
                values[name] = _parse(name, text, _hints()[name])
        for name, value in (flags or {}).items():
            if name not in names:
                raise ConfigError(f"unknown option {name!r}")
            if value is not None:
                values[name] = value
        return cls(**values)


def cache_home() -> Path:
    """Where fetched models and converted tokenizers are kept: `TRIVIUM_HOME`, else the XDG cache folder."""
    home = os.environ.get("TRIVIUM_HOME")
    if home:
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trivium"


def _hints() -> dict[str, Any]:
    return typing.get_type_hints(EngineConfig)


def _require(condition: bool, name: str, allowed: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if kind is type(None) and value is None:
            return None
        if typing.get_origin(kind) is Literal and value in typing.get_args(kind):
            return value
        if kind is str and isinstance(value, (str, os.PathLike)):
            return os.fspath(value)
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind is int and isinstance(value, float) and math.isfinite(value) and value == int(value):
            return int(value)
        if kind is bool and isinstance(value, bool):
            return value
    raise ConfigError(f"{name} must be {_describe(hint)}, got {value!r}")


def _parse(name: str, text: str, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if kind is bool and text.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            return text.lower() in ("1", "true", "yes", "on")
        if kind is int and re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            return int(text)
        if kind is str or (typing.get_origin(kind) is Literal and text in typing.get_args(kind)):
            return text
    raise ConfigError(f"TRIVIUM_{name.upper()} must be {_describe(hint)}, got {text!r}")


def _describe(hint: Any) -> str:
    words = []
    for kind in _alternatives(hint):
        if kind is type(None):
            words.append("unset")
        elif typing.get_origin(kind) is Literal:
            words += [repr(v) for v in typing.get_args(kind)]
        else:
            words.append({int: "an integer", bool: "true or false", str: "a string"}[kind])
    return " or ".join(words)


def _read_toml(path: Path, names: list[str]) -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        with path.open("rb") as file:
            values: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for name in values:
        if name not in names:
            raise ConfigError(f"{path}: unknown option {name!r}; known are {', '.join(names)}")
    return values
