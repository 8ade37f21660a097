"""Qwen 3 with experts: softmax over all experts, then the best few, their weights normalised if the config says so."""

from __future__ import annotations

from trivium.errors import ModelLoadError
from trivium.models.families.family import (
    MAX_EXPERTS,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    Decoder,
    Family,
    GgufCheckpoint,
    HuggingFaceCheckpoint,
    checked_moe,
)
from trivium.models.fields import Fields
from trivium.models.spec import LayerSpec, MoeSpec

__all__ = ["QWEN3_MOE"]


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    config = checkpoint.config
    window = checkpoint.window() if config.boolean("use_sliding_window", False) else None
    bias = config.boolean("attention_bias", False)
    # transformers 5 writes num_local_experts, before it was num_experts.
    experts_key = "num_local_experts" if config.get("num_local_experts") is not None else "num_experts"
    moe = MoeSpec(
        num_experts=config.integer(experts_key, 1, MAX_EXPERTS),
        experts_per_token=config.integer("num_experts_per_tok", 1, MAX_EXPERTS),
        expert_size=config.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE),
        normalize=config.boolean("norm_topk_prob", False),
    )
    return checkpoint.decoder(
        "qwen3_moe",
        layers=[LayerSpec(window, moe) for moe in _moe_layers(config, checkpoint.num_layers)],
        moe=checked_moe(moe, checkpoint.num_layers, config.label),
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
    )


def _moe_layers(config: Fields, num_layers: int) -> list[bool]:
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelLoadError(f"{config.name('mlp_only_layers')} must be a list of layer numbers, got {dense!r:.80}")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    moe = checkpoint.moe(normalize=True)
    return checkpoint.decoder(layers=checkpoint.moe_layers(), moe=moe, qk_norm=True)


QWEN3_MOE = Family("qwen3_moe", ("Qwen3MoeForCausalLM", "qwen3_moe"), _from_hf, ("qwen3moe",), _from_gguf)
