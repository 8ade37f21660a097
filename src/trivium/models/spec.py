"""What a decoder looks like: the data that the native core executes.

A family (one short file in `families/`) turns a checkpoint's metadata into a `DecoderSpec` and names the
checkpoint's tensors. Nothing below this module knows what "llama" or "qwen3" is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["DecoderSpec", "LayerSpec", "MoeSpec", "RopeSpec"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding, with all scaling already folded into the frequencies.

    `inv_freq` is float32 of shape [rotary_dim / 2]. `interleaved` rotates the pairs (0,1), (2,3), … ; otherwise
    (0, d/2), (1, d/2+1), … . `attention_factor` multiplies cos and sin (YaRN). `sections`, when given, assigns
    consecutive frequencies to the three position components (time, height, width) and sums to rotary_dim / 2.
    """

    inv_freq: NDArray[np.float32]
    interleaved: bool = False
    attention_factor: float = 1.0
    sections: tuple[int, int, int] | None = None

    @property
    def rotary_dim(self) -> int:
        return 2 * int(self.inv_freq.shape[0])


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture-of-experts feed-forward layer.

    The router's float32 logits go through `scoring`; the best `experts_per_token` are taken after adding the optional
    selection bias (tensor `router_bias`), which does not enter the weights; with `normalize` the weights are divided
    by their sum (at least `norm_min`); they are multiplied by `scale`. The shared expert, if any, is always added.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    norm_min: float = 0.0
    scale: float = 1.0
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: its attention window (tokens, the current one included; None: all) and whether it has experts."""

    window: int | None = None
    moe: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer with pre-norm RMSNorm, rotary attention and a SwiGLU feed-forward.

    Sizes are in elements. `attention_scale` multiplies q·k. The multipliers are 1.0 where the family has none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    max_position: int
    layers: tuple[LayerSpec, ...]
    attention_scale: float
    moe: MoeSpec | None = None
    tied_output: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_scale: float = 1.0
    extra: dict[str, str] = field(default_factory=dict)  # what `trivium info` shows beside the sizes

    @property
    def num_layers(self) -> int:
        return len(self.layers)
