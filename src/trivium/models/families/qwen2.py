"""Qwen 2 and 2.5: biases on q, k and v, a sliding window in upper layers if switched on."""

from __future__ import annotations

from trivium.models.families.family import Decoder, Family, GgufCheckpoint, HuggingFaceCheckpoint
from trivium.models.spec import LayerSpec

__all__ = ["QWEN2"]


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    layers = [LayerSpec(window) for window in checkpoint.layer_windows()]
    return checkpoint.decoder("qwen2", layers=layers, qkv_bias=True)


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    return checkpoint.decoder()


QWEN2 = Family("qwen2", ("Qwen2ForCausalLM", "qwen2"), _from_hf, ("qwen2",), _from_gguf)
