"""From a model's files to a native decoder with its weights packed.

Loading has two passes. The first lists what the native core needs and checks every tensor's name and shape against the
spec, touching no weights: a damaged or hostile model fails here, before anything large is allocated. The second packs
one weight after the other and lets go of its pages, so that the source does not stay resident beside the packed form.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.config import EngineConfig
from trivium.errors import ModelLoadError, ModelNotFoundError
from trivium.models.checkpoint import TensorSource, TensorType
from trivium.models.families import Decoder, Weight, Weights, decoder_from_gguf, decoder_from_hf
from trivium.models.fields import Fields
from trivium.models.gguf import GGUFFile
from trivium.models.safetensors import SafetensorsFolder
from trivium.models.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from trivium import _native

__all__ = ["LoadedDecoder", "load_decoder"]

log = logging.getLogger("trivium")

Progress = Callable[[int, int], None]

_MAX_JSON_BYTES = 16_000_000

# GGUF's names of sampling defaults, and those of generation_config.json.
_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

_SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "top_k": (-1, 2**31 - 1),
}


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    """A decoder ready to run, and what its files say beside the weights.

    `source_bytes` counts the bytes of the tensors that were packed. `metadata` is the GGUF file's, `hf_config` the
    folder's config.json; one of the two is None. `generation_config` has the keys of generation_config.json, with
    sampling values that are in their ranges.
    """

    native: _native.Model
    spec: DecoderSpec
    source_bytes: int
    metadata: dict[str, Any] | None
    hf_config: dict[str, Any] | None
    generation_config: dict[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class _Entry:
    """One weight of the native core: its name there and the parts it is stacked from.

    A vector has no `mode`. A matrix has the mode it is packed with.
    """

    name: str
    parts: tuple[Weight, ...]
    mode: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class _Files(TensorSource, Protocol):
    """A `TensorSource` that holds files open."""

    def close(self) -> None: ...


def load_decoder(path: Path, config: EngineConfig, progress: Progress | None = None) -> LoadedDecoder:
    """Load a `.gguf` file or a Hugging Face folder (config.json and safetensors).

    `progress(done, total)` is called with bytes of tensors, after each weight. The files are closed before returning.

    Raises `ModelNotFoundError` if there is no such path, `UnsupportedModelError` for what Trivium does not run and
    `ModelLoadError` for anything else that is wrong with the files, or too large for the memory.
    """
    if path.is_dir():
        return _load_folder(path, config, progress)
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such file or folder")
    return _load_gguf(path, config, progress)


def _load_gguf(path: Path, config: EngineConfig, progress: Progress | None) -> LoadedDecoder:
    file = GGUFFile.open(path)
    metadata = file.metadata
    with contextlib.closing(file):
        decoder = decoder_from_gguf(Fields(metadata, str(path)), file, config.max_model_len)
        native, source_bytes = _build(path, decoder, config, progress)
    generation = _checked_generation({name: metadata.get(key) for key, name in _SAMPLING_KEYS.items()}, path)
    return LoadedDecoder(native, decoder.spec, source_bytes, metadata, None, generation, path)


def _load_folder(path: Path, config: EngineConfig, progress: Progress | None) -> LoadedDecoder:
    hf_config = _read_json(path / "config.json")
    generation_path = path / "generation_config.json"
    generation = _checked_generation(_read_json(generation_path), generation_path) if generation_path.exists() else {}
    _check_end_tokens(hf_config, path / "config.json")
    _check_end_tokens(generation, generation_path)
    folder: _Files = SafetensorsFolder.open(path)
    with contextlib.closing(folder):
        decoder = decoder_from_hf(Fields(hf_config, str(path / "config.json")), folder, config.max_model_len)
        native, source_bytes = _build(path, decoder, config, progress)
    return LoadedDecoder(native, decoder.spec, source_bytes, None, hf_config, generation, path)


def _check_end_tokens(values: dict[str, Any], path: Path) -> None:
    """Raise `ModelLoadError` if `eos_token_id` is neither an id nor a list of ids."""
    named = values.get("eos_token_id")
    if not all(token is None or type(token) is int for token in (named if isinstance(named, list) else [named])):
        raise ModelLoadError(f"{path}: eos_token_id must be an integer or a list of integers, got {named!r:.80}")


def _checked_generation(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """A model's own defaults without nulls and without sampling values that are wrong, of which the log tells.

    A model that says `do_sample: false` is greedy: its temperature is 0.
    """
    values = {name: value for name, value in given.items() if value is not None}
    wrong = {}
    for name in _SAMPLING_RANGES.keys() & values.keys():
        number = _sampling_number(name, values[name])
        if number is None:
            wrong[name] = values.pop(name)
        else:
            values[name] = number
    if not isinstance(values.get("do_sample", True), bool):
        wrong["do_sample"] = values.pop("do_sample")
    if wrong:
        listed = ", ".join(f"{name}={value!r:.80}" for name, value in sorted(wrong.items()))
        log.warning("%s: sampling defaults out of their ranges are ignored: %s", path, listed)
    if values.get("do_sample") is False:
        values["temperature"] = 0.0
    return values


def _sampling_number(name: str, value: object) -> float | None:
    """The value as an int (top_k) or a float; None if it is wrong."""
    low, high = _SAMPLING_RANGES[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        return None
    if name == "top_k":
        return int(value) if value == int(value) else None
    return float(value)


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a few megabytes at most."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelLoadError(f"{path}: must have at most {_MAX_JSON_BYTES} bytes, got {path.stat().st_size}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: no such file; a model is a .gguf file or a folder with a config.json") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, numbers of too many digits, or nested too deep
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must hold an object, got a {type(value).__name__}")
    return value


def _build(path: Path, decoder: Decoder, config: EngineConfig, progress: Progress | None) -> tuple[_native.Model, int]:
    """Check, then pack. Returns the finished native model and the bytes of its source tensors."""
    entries = list(_Plan(path, decoder, _matrix_mode(config)))
    total = sum(entry.nbytes for entry in entries)
    if config.quantization is not None and not any(_is_wide(entry) for entry in entries):
        log.warning("quantization=%s has no effect: the weights of %s are quantised already", config.quantization, path)
    try:
        return _pack(decoder.spec, config, entries, total, progress), total
    except ValueError as error:
        raise ModelLoadError(f"{path}: {error}") from error
    except MemoryError as error:
        raise ModelLoadError(
            f"{path}: there is not enough memory to load this model; its tensors have {total / 1e9:.1f} GB. "
            f"A smaller quantisation needs less"
        ) from error


def _is_wide(entry: _Entry) -> bool:
    """Whether it is a matrix of 16- or 32-bit elements that may be quantised."""
    wide = (TensorType.F32, TensorType.F16, TensorType.BF16)
    return entry.mode in ("wint8", "wint4") and any(part.type in wide for part in entry.parts)


def _pack(
    spec: DecoderSpec, config: EngineConfig, entries: list[_Entry], total: int, progress: Progress | None
) -> _native.Model:
    from trivium import _native

    model = _native.Model(_native_spec(spec, config.activation_dtype))
    done = 0
    for entry in entries:
        if entry.mode is None:
            model.set_vector(entry.name, _vector(entry.parts))
        else:
            for matrix in _matrices(entry.parts, entry.mode):
                model.set_matrix(entry.name, matrix)
        for part in entry.parts:
            _release(part.tensor.data)
        done += entry.nbytes
        if progress is not None:
            progress(done, total)
    model.finish()
    return model


def _matrices(parts: tuple[Weight, ...], mode: str) -> Iterator[_native.Matrix]:
    """One matrix for each run of parts of one element type."""
    from trivium import _native

    for kind, run in itertools.groupby(parts, key=lambda part: part.type):
        group = list(run)
        rows = sum(part.shape[0] for part in group)
        yield _native.Matrix(rows, group[0].shape[1], [(int(kind), part.read()) for part in group], mode)


def _vector(parts: tuple[Weight, ...]) -> NDArray[np.float32]:
    from trivium import _native

    return np.concatenate([_native.dequantize(int(part.type), part.read(), part.size) for part in parts])


def _release(data: NDArray[np.uint8]) -> None:
    """Drop the pages of a mapped file that `data` covers; they are read again if anyone asks."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = data.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    # Whole pages only: the edges may belong to a neighbour that is yet to be read.
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        base.madvise(mmap.MADV_DONTNEED, first, length)


def _matrix_mode(config: EngineConfig) -> str:
    if config.activation_dtype == "float32":
        return "float32"
    return config.quantization or "auto"


class _Plan:
    """The entries of a decoder, in the order they are packed; raises `ModelLoadError` for the first wrong tensor."""

    def __init__(self, path: Path, decoder: Decoder, mode: str) -> None:
        self.path = path
        self.spec = decoder.spec
        self.weights: Weights = decoder.weights
        self.mode = mode
        # The output matrix and the embedding suffer most from 4 bits and gain least.
        self.vocab_mode = "wint8" if mode == "wint4" else mode

    def __iter__(self) -> Iterator[_Entry]:
        spec = self.spec
        shape = (spec.vocab_size, spec.hidden_size)
        yield _Entry("output" if spec.tied_output else "embedding", (self._get("embedding", shape),), self.vocab_mode)
        if not spec.tied_output:
            yield _Entry("output", (self._get("output", shape),), self.vocab_mode)
        yield _Entry("final_norm", (self._get("final_norm", (spec.hidden_size,)),))
        for index, layer in enumerate(spec.layers):
            yield from self._attention(index)
            yield from self._feed_forward(index, layer)

    def _attention(self, layer: int) -> Iterator[_Entry]:
        spec, prefix = self.spec, f"layers.{layer}."
        hidden, head = spec.hidden_size, spec.head_dim
        q, kv = spec.num_heads * head, spec.num_kv_heads * head
        yield _Entry(prefix + "attention_norm", (self._get("attention_norm", (hidden,), layer),))
        qkv = tuple(self._get(name, (rows, hidden), layer) for name, rows in (("q", q), ("k", kv), ("v", kv)))
        yield _Entry(prefix + "qkv", qkv, self.mode)
        if spec.qkv_bias:
            biases = tuple(self._get(name, (rows,), layer) for name, rows in (("q_bias", q), ("k_bias", kv), ("v_bias", kv)))
            yield _Entry(prefix + "qkv_bias", biases)
        if spec.qk_norm:
            for name in ("q_norm", "k_norm"):
                yield _Entry(prefix + name, (self._get(name, (head,), layer),))
        yield _Entry(prefix + "attention_output", (self._get("attention_output", (hidden, q), layer),), self.mode)
        if spec.output_bias:
            yield _Entry(prefix + "attention_output_bias", (self._get("attention_output_bias", (hidden,), layer),))

    def _feed_forward(self, index: int, layer: LayerSpec) -> Iterator[_Entry]:
        spec, prefix = self.spec, f"layers.{index}."
        hidden = spec.hidden_size
        yield _Entry(prefix + "ffn_norm", (self._get("ffn_norm", (hidden,), index),))
        if layer.moe:
            yield from self._experts(index)
            return
        yield from self._gated(prefix, "", spec.intermediate_size, index)
        if spec.mlp_bias:
            size = spec.intermediate_size
            biases = (self._get("gate_bias", (size,), index), self._get("up_bias", (size,), index))
            yield _Entry(prefix + "gate_up_bias", biases)
            yield _Entry(prefix + "down_bias", (self._get("down_bias", (hidden,), index),))

    def _experts(self, layer: int) -> Iterator[_Entry]:
        spec, prefix = self.spec, f"layers.{layer}."
        moe = spec.moe
        if moe is None:
            raise ModelLoadError(f"{self.path}: layer {layer} has experts, but the model's metadata does not describe any")
        yield _Entry(prefix + "router", (self._get("router", (moe.num_experts, spec.hidden_size), layer),), "float32")
        bias = self.weights.find("router_bias", layer)
        if bias is not None:
            yield _Entry(prefix + "router_bias", (self._checked(bias, (moe.num_experts,)),))
        for expert in range(moe.num_experts):
            yield from self._gated(f"{prefix}experts.{expert}.", "expert.", moe.expert_size, layer, expert)
        if moe.shared_size:
            yield from self._gated(f"{prefix}shared.", "shared.", moe.shared_size, layer)

    def _gated(self, prefix: str, part: str, size: int, layer: int, expert: int | None = None) -> Iterator[_Entry]:
        """A SwiGLU block of `size` hidden units."""
        hidden = self.spec.hidden_size
        gate_up = tuple(self._get(part + name, (size, hidden), layer, expert) for name in ("gate", "up"))
        yield _Entry(prefix + "gate_up", gate_up, self.mode)
        yield _Entry(prefix + "down", (self._get(part + "down", (hidden, size), layer, expert),), self.mode)

    def _get(self, name: str, shape: tuple[int, ...], layer: int | None = None, expert: int | None = None) -> Weight:
        weight = self.weights.find(name, layer, expert)
        if weight is None:
            raise ModelLoadError(f"{self.path}: there is no tensor {self.weights.tensor_name(name, layer, expert)!r}")
        return self._checked(weight, shape)

    def _checked(self, weight: Weight, shape: tuple[int, ...]) -> Weight:
        """The weight, or `ModelLoadError` naming it, the shape it must have and the one it has."""
        found = weight.shape
        if len(shape) == 1 and math.prod(found[:-1]) == 1:
            found = found[-1:]  # a vector may be stored as [1, n]
        if found != shape:
            raise ModelLoadError(f"{self.path}: tensor {weight.name!r} must have shape {list(shape)}, got {list(weight.shape)}")
        return weight


def _native_spec(spec: DecoderSpec, activation: str) -> dict[str, Any]:
    """The spec as the native core's constructor takes it."""
    moe = spec.moe
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_layers": spec.num_layers,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "norm_eps": spec.norm_eps,
        "attention_scale": spec.attention_scale,
        "inv_freq": spec.rope.inv_freq,
        "rope_interleaved": spec.rope.interleaved,
        "attention_factor": spec.rope.attention_factor,
        "sections": list(spec.rope.sections or ()),
        "windows": [layer.window or 0 for layer in spec.layers],
        "moe_layers": [layer.moe for layer in spec.layers],
        "num_experts": moe.num_experts if moe else 0,
        "experts_per_token": moe.experts_per_token if moe else 0,
        "expert_size": moe.expert_size if moe else 0,
        "scoring": moe.scoring if moe else "softmax",
        "normalize": moe.normalize if moe else False,
        "norm_min": moe.norm_min if moe else 0.0,
        "expert_scale": moe.scale if moe else 1.0,
        "shared_size": moe.shared_size if moe else 0,
        "qk_norm": spec.qk_norm,
        "embedding_multiplier": spec.embedding_multiplier,
        "residual_multiplier": spec.residual_multiplier,
        "logit_scale": spec.logit_scale,
        "tied_output": spec.tied_output,
        "activation": activation,
    }
