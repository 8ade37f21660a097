"""Llama 1 to 3 and what shares its architecture: SmolLM2, TinyLlama, DeepSeek-Coder, Yi; GGUF files of Mistral.

Converters reorder the rows of q and k in GGUF files so that the rotated pairs are neighbours; config.json folders keep
the halves apart.
"""

from __future__ import annotations

from trivium.errors import UnsupportedModelError
from trivium.models.families.family import Decoder, Family, GgufCheckpoint, HuggingFaceCheckpoint

__all__ = ["LLAMA"]


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    attention_bias = checkpoint.config.boolean("attention_bias", False)
    return checkpoint.decoder(
        "llama",
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=checkpoint.config.boolean("mlp_bias", False),
    )


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    if checkpoint.integer("expert_count", 0, 1 << 31, 0):
        raise UnsupportedModelError("architecture 'llama' with experts (Mixtral) is not supported; use a dense model")
    return checkpoint.decoder(interleaved=True)


LLAMA = Family("llama", ("LlamaForCausalLM", "LLaMAForCausalLM", "llama"), _from_hf, ("llama",), _from_gguf)
