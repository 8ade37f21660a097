"""Mistral 7B, Nemo and Small: Llama with a sliding window in some versions. Its GGUF files call themselves llama."""

from __future__ import annotations

from trivium.models.families.family import Decoder, Family, HuggingFaceCheckpoint
from trivium.models.spec import LayerSpec

__all__ = ["MISTRAL"]

_DEFAULT_WINDOW = 4096  # of transformers' MistralConfig, for a config.json without the key


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    window = checkpoint.window(_DEFAULT_WINDOW)
    return checkpoint.decoder("mistral", layers=[LayerSpec(window)] * checkpoint.num_layers)


MISTRAL = Family("mistral", ("MistralForCausalLM", "mistral"), _from_hf)
