"""The supported architectures: a family per file, found by the name a checkpoint gives itself."""

from __future__ import annotations

from trivium.errors import UnsupportedModelError
from trivium.models.checkpoint import TensorSource
from trivium.models.families.ernie4_5 import ERNIE4_5
from trivium.models.families.ernie4_5_moe import ERNIE4_5_MOE
from trivium.models.families.family import Decoder, Family, GgufCheckpoint, HuggingFaceCheckpoint
from trivium.models.families.llama import LLAMA
from trivium.models.families.mistral import MISTRAL
from trivium.models.families.qwen2 import QWEN2
from trivium.models.families.qwen3 import QWEN3
from trivium.models.families.qwen3_moe import QWEN3_MOE
from trivium.models.families.weights import Weight, Weights
from trivium.models.fields import Fields

__all__ = ["FAMILIES", "Decoder", "Family", "Weight", "Weights", "decoder_from_gguf", "decoder_from_hf"]

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, ERNIE4_5, ERNIE4_5_MOE)


def decoder_from_hf(config: Fields, source: TensorSource, max_model_len: int | None = None) -> Decoder:
    """The decoder of a Hugging Face folder, by the `architectures` of its config.json, else by its `model_type`.

    Raises `UnsupportedModelError` for an architecture or a quantisation that Trivium does not run, `ModelLoadError`
    for a wrong value. Shapes of tensors are left to whoever reads them.
    """
    name = _hf_name(config)
    for family in FAMILIES:
        if name in family.hf_names:
            _refuse_quantized(config)
            return family.from_hf(HuggingFaceCheckpoint(config, source, max_model_len))
    supported = ", ".join(name for family in FAMILIES for name in family.hf_names if name.endswith("ForCausalLM"))
    raise UnsupportedModelError(f"{config.label}: architecture {name!r:.80} is not supported; supported are {supported}")


def decoder_from_gguf(metadata: Fields, source: TensorSource, max_model_len: int | None = None) -> Decoder:
    """The decoder of a GGUF file, by its `general.architecture`; errors as in `decoder_from_hf`."""
    name = metadata.text("general.architecture")
    for family in FAMILIES:
        if name in family.gguf_names and family.from_gguf is not None:
            return family.from_gguf(GgufCheckpoint(metadata, source, max_model_len))
    supported = ", ".join(name for family in FAMILIES for name in family.gguf_names)
    raise UnsupportedModelError(f"{metadata.label}: architecture {name!r:.80} is not supported; supported are {supported}")


def _hf_name(config: Fields) -> str:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and len(architectures) == 1 and isinstance(architectures[0], str):
        return architectures[0]
    return config.text("model_type")


def _refuse_quantized(config: Fields) -> None:
    for key in ("quantization_config", "compression_config"):
        value = config.get(key)
        if value is None:
            continue
        method = value.get("quant_method", "unnamed") if isinstance(value, dict) else value
        raise UnsupportedModelError(
            f"{config.name(key)}: weights quantised with {method!r:.80} are not supported; use the 16-bit model with "
            f"quantization='wint8' or 'wint4', or a GGUF file such as Q4_K_M"
        )
