"""Where a checkpoint keeps a weight: canonical names to tensors, one class per file layout.

Canonical names: "embedding", "output", "final_norm"; per layer "attention_norm", "ffn_norm", "q", "k", "v",
"attention_output", "q_norm", "k_norm", "gate", "up", "down", "router", "router_bias", "shared.gate" …, "expert.gate" …;
biases "q_bias", "k_bias", "v_bias", "attention_output_bias", "gate_bias", "up_bias", "down_bias".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.checkpoint import Tensor, TensorSource, TensorType

__all__ = ["ErnieWeights", "GgufWeights", "HuggingFaceWeights", "Weight", "Weights", "is_transposed"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [out, in] or a vector inside a tensor, read only when asked for.

    `start` and `stop` cut the output dimension; `transposed` says that the tensor is stored [in, out].
    """

    tensor: Tensor
    start: int
    stop: int
    transposed: bool = False

    @classmethod
    def whole(cls, tensor: Tensor, transposed: bool = False) -> Weight:
        if not tensor.shape:
            raise ModelLoadError(f"tensor {tensor.name!r} is a scalar")
        return cls(tensor, 0, tensor.shape[-1 if transposed else 0], transposed)

    def half(self, index: int) -> Weight:
        """The first (0) or second (1) half of the outputs, for tensors that hold gate and up."""
        middle = (self.start + self.stop) // 2
        return Weight(self.tensor, middle if index else self.start, self.stop if index else middle, self.transposed)

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def type(self) -> TensorType:
        return self.tensor.type

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in] for matrices, [n] for vectors; leading dimensions of 1 of a vector are kept."""
        if self.transposed:
            return (self.stop - self.start, *self.tensor.shape[:-1])
        return (self.stop - self.start, *self.tensor.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.tensor.data.nbytes * (self.stop - self.start) // self.tensor.shape[-1 if self.transposed else 0]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def read(self) -> NDArray[np.uint8]:
        """The bytes of whole rows [out, in], a view of the file unless transposed."""
        tensor = self.tensor
        if not self.transposed:
            row = tensor.data.shape[0] // tensor.shape[0]
            return tensor.data[self.start * row : self.stop * row]
        if tensor.type.block_size != 1:
            raise UnsupportedModelError(f"tensor {tensor.name!r} of type {tensor.type.name} is stored transposed")
        elements = tensor.data.view(np.dtype(f"u{tensor.type.block_bytes}")).reshape(tensor.shape)
        return np.ascontiguousarray(elements[:, self.start : self.stop].T).reshape(-1).view(np.uint8)


class Weights(Protocol):
    """A checkpoint's weights by canonical name."""

    def find(self, name: str, layer: int | None = None, expert: int | None = None) -> Weight | None:
        """The weight, or None if the checkpoint has none of that name."""
        ...

    def tensor_name(self, name: str, layer: int | None = None, expert: int | None = None) -> str:
        """What the checkpoint calls it, for errors."""
        ...


_HF_GLOBAL = {
    "embedding": "embed_tokens.weight",
    "final_norm": "norm.weight",
}
_HF_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attention_output": "self_attn.o_proj.weight",
    "attention_output_bias": "self_attn.o_proj.bias",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
    "router": "mlp.gate.weight",
    "router_bias": "mlp.moe_statics.e_score_correction_bias",
    "shared.gate": "mlp.shared_experts.gate_proj.weight",
    "shared.up": "mlp.shared_experts.up_proj.weight",
    "shared.down": "mlp.shared_experts.down_proj.weight",
    "expert.gate": "mlp.experts.{expert}.gate_proj.weight",
    "expert.up": "mlp.experts.{expert}.up_proj.weight",
    "expert.down": "mlp.experts.{expert}.down_proj.weight",
}


class HuggingFaceWeights:
    """Names of transformers' `…ForCausalLM` classes. Experts may be stacked, as transformers 5 holds them in memory:
    `experts.gate_up_proj` [E, 2 × size, hidden] with the gate first, `experts.down_proj` [E, hidden, size]."""

    prefix = "model"

    def __init__(self, source: TensorSource) -> None:
        self.source = source

    def find(self, name: str, layer: int | None = None, expert: int | None = None) -> Weight | None:
        tensor_name = self.tensor_name(name, layer, expert)
        if tensor_name in self.source:
            return Weight.whole(self.source.tensor(tensor_name))
        if expert is not None:
            return self._stacked(name, layer, expert)
        return None

    def tensor_name(self, name: str, layer: int | None = None, expert: int | None = None) -> str:
        if name == "output":
            return "lm_head.weight"
        if layer is None:
            return f"{self.prefix}.{_HF_GLOBAL[name]}"
        return f"{self.prefix}.layers.{layer}." + _HF_LAYER[name].format(expert=expert)

    def _stacked(self, name: str, layer: int | None, expert: int) -> Weight | None:
        part = name.removeprefix("expert.")
        stacked = f"{self.prefix}.layers.{layer}.mlp.experts.{'down_proj' if part == 'down' else 'gate_up_proj'}"
        if stacked not in self.source:
            return None
        weight = _expert_of(self.source.tensor(stacked), expert)
        return weight if part == "down" else weight.half(1 if part == "up" else 0)


class ErnieWeights(HuggingFaceWeights):
    """ERNIE folders, in the PyTorch layout or in Paddle's.

    Paddle's, as the vendor's paddle2torch converter reads it: linear weights are stored [in, out], the router and an
    untied lm_head too, the embedding is not; the prefix is "ernie." instead of "model."; q, k and v are one `qkv_proj`
    in that order, gate and up one `up_gate_proj` with the gate first. Each of these is told apart by itself, for there
    are folders in between. Rotary pairs are interleaved in both layouts.
    """

    def __init__(self, source: TensorSource, qkv_sizes: tuple[int, int, int], transposed: bool) -> None:
        super().__init__(source)
        self.prefix = _ernie_prefix(source)
        self.transposed = transposed
        q, k, v = qkv_sizes
        self._qkv_rows = {"q": (0, q), "k": (q, q + k), "v": (q + k, q + k + v)}

    def find(self, name: str, layer: int | None = None, expert: int | None = None) -> Weight | None:
        tensor_name = self.tensor_name(name, layer, expert)
        if tensor_name in self.source:
            return self._oriented(tensor_name, name)
        return self._fused_qkv(name, tensor_name) or self._fused_gate_up(name, tensor_name) or super().find(name, layer, expert)

    def _oriented(self, tensor_name: str, name: str) -> Weight:
        tensor = self.source.tensor(tensor_name)
        is_linear = len(tensor.shape) == 2 and name not in ("embedding", "router_bias")
        return Weight.whole(tensor, transposed=self.transposed and is_linear)

    def _fused_qkv(self, name: str, tensor_name: str) -> Weight | None:
        part = name.removesuffix("_bias")
        fused = tensor_name.replace(f".{part}_proj.", ".qkv_proj.")
        if part not in self._qkv_rows or fused not in self.source:
            return None
        weight = self._oriented(fused, name)
        # Cutting a tensor of another size would hide that it is; whole, it fails the check of its shape.
        if weight.stop != self._qkv_rows["v"][1]:
            return weight
        start, stop = self._qkv_rows[part]
        return Weight(weight.tensor, start, stop, weight.transposed)

    def _fused_gate_up(self, name: str, tensor_name: str) -> Weight | None:
        part = name.removesuffix("_bias").rpartition(".")[2]
        fused = tensor_name.replace(f".{part}_proj.", ".up_gate_proj.")
        if part not in ("gate", "up") or fused not in self.source:
            return None
        return self._oriented(fused, name).half(1 if part == "up" else 0)


def is_transposed(source: TensorSource, qkv_sizes: tuple[int, int, int], hidden_size: int, intermediate_size: int) -> bool:
    """Whether an ERNIE folder stores linear weights [in, out], told by the shapes of the first layer.

    Square matrices say nothing, so the first that is not square decides; if all are, Paddle's prefix does.
    """
    q, k, v = qkv_sizes
    shapes = {
        "self_attn.qkv_proj": (q + k + v, hidden_size),
        "self_attn.q_proj": (q, hidden_size),
        "self_attn.k_proj": (k, hidden_size),
        "self_attn.o_proj": (hidden_size, q),
        "mlp.up_gate_proj": (2 * intermediate_size, hidden_size),
        "mlp.gate_proj": (intermediate_size, hidden_size),
        "mlp.down_proj": (hidden_size, intermediate_size),
    }
    prefix = _ernie_prefix(source)
    for name, shape in shapes.items():
        tensor_name = f"{prefix}.layers.0.{name}.weight"
        if shape[0] != shape[1] and tensor_name in source:
            found = source.tensor(tensor_name).shape
            if found in (shape, shape[::-1]):
                return found == shape[::-1]
    return prefix == "ernie"


def _ernie_prefix(source: TensorSource) -> str:
    return "ernie" if "ernie.embed_tokens.weight" in source else "model"


_GGUF_GLOBAL = {
    "embedding": "token_embd.weight",
    "output": "output.weight",
    "final_norm": "output_norm.weight",
}
_GGUF_LAYER = {
    "attention_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attention_output": "attn_output.weight",
    "attention_output_bias": "attn_output.bias",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
    "router": "ffn_gate_inp.weight",
    "router_bias": "exp_probs_b.bias",
    "shared.gate": "ffn_gate_shexp.weight",
    "shared.up": "ffn_up_shexp.weight",
    "shared.down": "ffn_down_shexp.weight",
    "expert.gate": "ffn_gate_exps.weight",
    "expert.up": "ffn_up_exps.weight",
    "expert.down": "ffn_down_exps.weight",
}


class GgufWeights:
    """Names of GGUF files; experts are stacked, [E, out, in]."""

    def __init__(self, source: TensorSource) -> None:
        self.source = source

    def find(self, name: str, layer: int | None = None, expert: int | None = None) -> Weight | None:
        tensor_name = self.tensor_name(name, layer, expert)
        if tensor_name not in self.source:
            return None
        tensor = self.source.tensor(tensor_name)
        return Weight.whole(tensor) if expert is None else _expert_of(tensor, expert)

    def tensor_name(self, name: str, layer: int | None = None, expert: int | None = None) -> str:
        return _GGUF_GLOBAL[name] if layer is None else f"blk.{layer}.{_GGUF_LAYER[name]}"


def _expert_of(tensor: Tensor, expert: int) -> Weight:
    if len(tensor.shape) != 3 or expert >= tensor.shape[0]:
        raise ModelLoadError(f"tensor {tensor.name!r} must stack at least {expert + 1} experts, got shape {list(tensor.shape)}")
    return Weight.whole(tensor.part(expert))
