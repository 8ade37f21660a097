"""ERNIE 4.5 with experts (21B-A3B, 300B-A47B): softmax routing with a selection bias, and experts that all tokens share."""

from __future__ import annotations

from trivium.errors import UnsupportedModelError
from trivium.models.families.ernie4_5 import ernie_decoder
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

__all__ = ["ERNIE4_5_MOE"]

_NORM_MIN = 1e-12  # of transformers' Ernie4_5_MoeConfig; GGUF files do not say


def _from_hf(checkpoint: HuggingFaceCheckpoint) -> Decoder:
    config = checkpoint.config
    if config.boolean("use_bias", False):
        raise UnsupportedModelError(f"{config.name('use_bias')}: experts with biases are not supported")
    scoring = config.text("moe_gate_act", "softmax")
    if scoring != "softmax":
        raise UnsupportedModelError(f"{config.name('moe_gate_act')} must be softmax, got {scoring!r:.80}")
    size = config.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    moe = MoeSpec(
        num_experts=config.integer("moe_num_experts", 1, MAX_EXPERTS),
        experts_per_token=config.integer("moe_k", 1, MAX_EXPERTS),
        expert_size=size,
        norm_min=config.number("moe_norm_min", 0.0, 1.0, _NORM_MIN),
        shared_size=size * config.integer("moe_num_shared_experts", 0, 64, 0),
    )
    layers = [LayerSpec(moe=moe) for moe in _moe_layers(config, checkpoint.num_layers)]
    return ernie_decoder(checkpoint, "ernie4_5_moe", layers=layers, moe=checked_moe(moe, checkpoint.num_layers, config.label))


def _moe_layers(config: Fields, num_layers: int) -> list[bool]:
    start = config.integer("moe_layer_start_index", 0, MAX_LAYERS, 1)
    end = config.integer("moe_layer_end_index", -1, MAX_LAYERS, -1)
    interval = config.integer("moe_layer_interval", 1, MAX_LAYERS, 1)
    last = num_layers - 1 if end == -1 else end
    return [start <= layer <= last and (layer + 1) % interval == 0 for layer in range(num_layers)]


def _from_gguf(checkpoint: GgufCheckpoint) -> Decoder:
    # expert_shared_feed_forward_length is derived from unrelated sizes by converters; this product is what it should be.
    shared = checkpoint.integer("expert_shared_count", 0, 64, 0)
    size = checkpoint.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE)
    moe = checkpoint.moe(normalize=True, norm_min=_NORM_MIN, shared_size=shared * size)
    return checkpoint.decoder(layers=checkpoint.moe_layers(), moe=moe, interleaved=True)


ERNIE4_5_MOE = Family("ernie4_5_moe", ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), _from_hf, ("ernie4_5-moe",), _from_gguf)
