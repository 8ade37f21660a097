"""ERNIE 4.5 without experts (0.3B): Llama with interleaved rotary pairs, from PyTorch or Paddle folders and GGUF.

Converters to GGUF leave the rows of q and k as they are, and llama.cpp rotates neighbouring pairs: the same form.
"""

from __future__ import annotations

from typing import Any

from trivium.models.families.family import Decoder, Family, GgufCheckpoint, HuggingFaceCheckpoint
from trivium.models.families.weights import ErnieWeights, is_transposed

__all__ = ["ERNIE4_5", "ernie_decoder"]

_DEFAULT_HEAD_DIM = 128  # of transformers' Ernie4_5Config, for a config.json without the key


def ernie_decoder(
    checkpoint: HuggingFaceCheckpoint, architecture: str, default_head_dim: int | None = None, **features: Any
) -> Decoder:
    """What ERNIE with and without experts have in common."""
    qkv_sizes = checkpoint.qkv_sizes(default_head_dim)
    transposed = is_transposed(checkpoint.source, qkv_sizes, checkpoint.hidden_size, checkpoint.intermediate_size)
    bias = checkpoint.config.boolean("use_bias", False)
    return checkpoint.decoder(
        architecture,
        weights=ErnieWeights(checkpoint.source, qkv_sizes, transposed),
        default_head_dim=default_head_dim,
        default_theta=500_000.0,
        default_eps=1e-5,
        default_tied=True,
        interleaved=True,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        **features,
    )


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    return ernie_decoder(checkpoint, "ernie4_5", _DEFAULT_HEAD_DIM)


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    return checkpoint.decoder(interleaved=True)


ERNIE4_5 = Family("ernie4_5", ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "ernie4_5"), _from_hf, ("ernie4_5",), _from_gguf)
