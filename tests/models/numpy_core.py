"""A slow, plain decoder behind the interface that the loader uses of `trivium._native`: the oracle for name maps and specs.

It keeps 16- and 32-bit weights as float64 and computes whole sequences without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dequantize(type: int, data: NDArray[np.uint8], count: int) -> NDArray[np.float32]:
    """F32 (0), F16 (1) or BF16 (30) bytes as float32."""
    data = np.array(data)
    if type == 30:
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view({0: np.float32, 1: np.float16}[type]).astype(np.float32)
    if values.shape != (count,):
        raise ValueError(f"{count} elements expected, got {values.shape}")
    return values


class Matrix:
    def __init__(self, rows: int, cols: int, sources: Sequence[tuple[int, NDArray[np.uint8]]], mode: str) -> None:
        widths = {0: 4, 1: 2, 30: 2}
        parts = [dequantize(kind, data, data.nbytes // widths[kind]) for kind, data in sources]
        self.values = np.concatenate(parts).reshape(rows, cols).astype(np.float64)
        self.mode = mode


class Model:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.matrices: dict[str, Array] = {}
        self.vectors: dict[str, Array] = {}
        self.modes: dict[str, str] = {}
        self.finished = False

    def set_matrix(self, name: str, matrix: Matrix) -> None:
        parts = [self.matrices[name]] if name in self.matrices else []
        self.matrices[name] = np.concatenate([*parts, matrix.values])
        self.modes[name] = matrix.mode

    def set_vector(self, name: str, values: NDArray[np.float32]) -> None:
        if values.dtype != np.float32 or values.ndim != 1:
            raise TypeError(f"{name} must be a float32 vector, got {values.dtype} {values.shape}")
        self.vectors[name] = values.astype(np.float64)

    def finish(self) -> None:
        self.finished = True

    def logits(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """[n] -> [n, vocab]."""
        output = self.matrices["output"]
        x = (output if self.spec["tied_output"] else self.matrices["embedding"])[token_ids]
        for layer in range(self.spec["num_layers"]):
            x = x + self._attention(layer, self._norm(x, f"layers.{layer}.attention_norm"))
            x = x + self._feed_forward(layer, self._norm(x, f"layers.{layer}.ffn_norm"))
        return (self._norm(x, "final_norm") @ output.T).astype(np.float32)

    def _norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.spec["norm_eps"]) * self.vectors[name]

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.matrices[name].T + self.vectors.get(name + "_bias", 0.0)

    def _attention(self, layer: int, x: Array) -> Array:
        spec, prefix = self.spec, f"layers.{layer}."
        n, heads, kv_heads, dim = len(x), spec["num_heads"], spec["num_kv_heads"], spec["head_dim"]
        qkv = self._linear(prefix + "qkv", x).reshape(n, heads + 2 * kv_heads, dim)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
        if spec["qk_norm"]:
            q, k = self._norm(q, prefix + "q_norm"), self._norm(k, prefix + "k_norm")
        q, k = self._rotate(q), self._rotate(k)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * spec["attention_scale"]
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        hidden = (distance < 0) | (distance >= (spec["windows"][layer] or n))
        weights = np.exp(np.where(hidden, -np.inf, scores - scores.max(-1, keepdims=True)))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return self._linear(prefix + "attention_output", mixed.reshape(n, heads * dim))

    def _rotate(self, x: Array) -> Array:
        inv_freq = self.spec["inv_freq"].astype(np.float64)
        angles = np.arange(len(x))[:, None, None] * inv_freq
        cos, sin = (f(angles) * self.spec["attention_factor"] for f in (np.cos, np.sin))
        half = len(inv_freq)
        even, odd = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        first, second = (even, odd) if self.spec["rope_interleaved"] else (slice(0, half), slice(half, 2 * half))
        rotated = x.copy()
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        return rotated

    def _gated(self, name: str, x: Array) -> Array:
        gate, up = np.split(self._linear(name + "gate_up", x), 2, axis=-1)
        return self._linear(name + "down", gate / (1.0 + np.exp(-gate)) * up)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        spec, prefix = self.spec, f"layers.{layer}."
        if not spec["moe_layers"][layer]:
            return self._gated(prefix, x)
        scores = x @ self.matrices[prefix + "router"].T
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        ranked = np.argsort(-(scores + self.vectors.get(prefix + "router_bias", 0.0)), axis=-1)
        y = self._gated(prefix + "shared.", x) if spec["shared_size"] else np.zeros_like(x)
        for row, experts in enumerate(ranked[:, : spec["experts_per_token"]]):
            weights = scores[row, experts] * spec["expert_scale"]
            if spec["normalize"]:
                weights = weights / max(weights.sum(), spec["norm_min"])
            for expert, weight in zip(experts, weights, strict=True):
                y[row] += weight * self._gated(f"{prefix}experts.{expert}.", x[row])
        return y
