"""What a model's files say about it, and the memory it will take, without loading it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trivium.config import EngineConfig
from trivium.engine.kv_budget import kv_cache_dtype, plan_kv_blocks
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.spec import DecoderSpec

__all__ = ["ModelFacts", "packed_bits", "read_facts"]

# Bits per weight after packing: codes, scales and minima (native/matrix.h, native/kernels/packed_block.h).
_PACKED_BITS = {
    TensorType.Q4_0: 4.5,
    TensorType.Q4_1: 5.0,
    TensorType.Q4_K: 4.625,
    TensorType.Q5_0: 8.5,
    TensorType.Q8_0: 8.5,
    TensorType.IQ4_NL: 8.5,
    TensorType.Q5_1: 9.0,
    TensorType.Q5_K: 8.625,
    TensorType.Q6_K: 6.625,
    TensorType.F16: 16.0,
    TensorType.BF16: 16.0,
    TensorType.F32: 32.0,
}
_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model and its memory plan; `types` maps element types to their bytes in the file."""

    path: Path
    spec: DecoderSpec
    num_parameters: int
    types: dict[str, int]
    weight_bytes: int  # after packing
    block_bytes: int  # of one KV block
    num_blocks: int
    max_model_len: int  # tokens

    @property
    def file_bytes(self) -> int:
        return sum(self.types.values())


def read_facts(path: Path, config: EngineConfig, available_memory: int) -> ModelFacts:
    """Read the headers of a GGUF file or Hugging Face folder and plan its memory, as loading it with `config` would.

    `available_memory` is in bytes, before the weights take their share. Raises `ModelLoadError`, `ConfigError`.
    """
    spec, tensors = _read(path, config)
    weight_bytes = sum(_packed_bytes(tensor, spec, config) for tensor in tensors)
    block_bytes = _block_bytes(spec, config)
    budget = plan_kv_blocks(
        config,
        block_bytes=block_bytes,
        model_max_len=spec.max_position,
        available_memory=lambda: max(0, available_memory - weight_bytes),
    )
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.type.name] = types.get(tensor.type.name, 0) + tensor.data.nbytes
    return ModelFacts(
        path=path,
        spec=spec,
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        types=types,
        weight_bytes=weight_bytes,
        block_bytes=block_bytes,
        num_blocks=budget.num_blocks,
        max_model_len=budget.max_model_len,
    )


def packed_bits(kind: TensorType, mode: str = "auto") -> float:
    """Bits per weight of a packed matrix; `mode` as in `_native.Matrix`: auto, float32, wint8 or wint4."""
    if mode == "float32":
        return 32.0
    if kind in _FLOATS and mode != "auto":
        return _PACKED_BITS[TensorType.Q8_0 if mode == "wint8" else TensorType.Q4_1]
    return _PACKED_BITS[kind]


def _read(path: Path, config: EngineConfig) -> tuple[DecoderSpec, list[Tensor]]:
    from trivium.models.families import decoder_from_gguf, decoder_from_hf
    from trivium.models.fields import Fields
    from trivium.models.gguf import GGUFFile
    from trivium.models.safetensors import SafetensorsFolder
    from trivium.models.tokenizer_folder import read_json_object

    if path.is_dir():
        fields = Fields(read_json_object(path / "config.json"), str(path / "config.json"))
        with contextlib.closing(SafetensorsFolder.open(path)) as folder:
            spec = decoder_from_hf(fields, folder, config.max_model_len).spec
            return spec, _used(folder.tensors.values(), spec)
    with contextlib.closing(GGUFFile.open(path)) as file:
        spec = decoder_from_gguf(Fields(file.metadata, str(path)), file, config.max_model_len).spec
        return spec, _used(file.tensors.values(), spec)


def _used(tensors: Iterable[Tensor], spec: DecoderSpec) -> list[Tensor]:
    """The tensors that are loaded: with a tied output the vocabulary's matrix is there once, whatever the file holds."""
    tensors = list(tensors)
    vocabulary = [tensor for tensor in tensors if _is_vocabulary(tensor, spec)]
    surplus = [tensor.name for tensor in vocabulary[1:]] if spec.tied_output else []
    return [tensor for tensor in tensors if tensor.name not in surplus]


def _is_vocabulary(tensor: Tensor, spec: DecoderSpec) -> bool:
    return tensor.shape == (spec.vocab_size, spec.hidden_size)


def _packed_bytes(tensor: Tensor, spec: DecoderSpec, config: EngineConfig) -> int:
    if len(tensor.shape) == 1:
        return 4 * tensor.shape[0]
    mode = "float32" if config.activation_dtype == "float32" else config.quantization or "auto"
    if mode == "wint4" and _is_vocabulary(tensor, spec):
        mode = "wint8"
    if spec.moe is not None and tensor.shape == (spec.moe.num_experts, spec.hidden_size):
        mode = "float32"
    rows, cols = _round_up(tensor.shape[-2], 16), tensor.shape[-1]
    bits = packed_bits(tensor.type, mode)
    if bits < 16:
        cols = _round_up(cols, 32)
    return int(math.prod(tensor.shape[:-2]) * rows * cols * bits / 8)


def _block_bytes(spec: DecoderSpec, config: EngineConfig) -> int:
    """Keys and values of one block over all layers; heads are padded to 16 elements (native/kv_cache.h)."""
    elements = _round_up(spec.head_dim, 16)
    sizes = {"int16": 2 * elements + 4, "int8": elements + 4, "float16": 2 * elements, "float32": 4 * elements}
    head_bytes = sizes[kv_cache_dtype(config)]
    return 2 * spec.num_layers * spec.num_kv_heads * config.block_size * head_bytes


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
