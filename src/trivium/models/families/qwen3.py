"""Qwen 3: RMSNorm on every head of q and k, head size independent of the hidden size."""

from __future__ import annotations

from trivium.models.families.family import Decoder, Family, GgufCheckpoint, HuggingFaceCheckpoint
from trivium.models.spec import LayerSpec

__all__ = ["QWEN3"]

_DEFAULT_HEAD_DIM = 128  # of transformers' Qwen3Config, for a config.json without the key


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    bias = checkpoint.config.boolean("attention_bias", False)
    return checkpoint.decoder(
        "qwen3",
        layers=[LayerSpec(window) for window in checkpoint.layer_windows()],
        default_head_dim=_DEFAULT_HEAD_DIM,
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
    )


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    return checkpoint.decoder(qk_norm=True)


QWEN3 = Family("qwen3", ("Qwen3ForCausalLM", "qwen3"), _from_hf, ("qwen3",), _from_gguf)
