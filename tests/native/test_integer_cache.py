"""Attention against numpy, over codes of int16 and int8 above all, and what memory a cache takes. Bits: test_step.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import VOCAB, spec, tiny_model

from trivium._native import Matrix, Model
from trivium.models.checkpoint import TensorType

HIDDEN, HEADS, KV_HEADS = 48, 6, 2
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 160).astype(np.int32)


class Decoder:
    """One layer of float32 weights whose feed-forward adds nothing, on the core and in numpy."""

    def __init__(
        self, head_dim: int, rotary: int | None = None, window: int = 0, hot: int | None = None, flat: bool = False
    ) -> None:
        """`hot`: the only element of queries and keys that is not zero; `flat`: all their elements are equal."""
        rng = np.random.default_rng(head_dim)
        self.head_dim, self.window = head_dim, window
        self.inv_freq = (100.0 ** -np.linspace(0, 1, (rotary or head_dim) // 2)).astype(np.float32)
        q, kv = HEADS * head_dim, KV_HEADS * head_dim
        self.qkv = random(rng, q + 2 * kv, HIDDEN)
        if hot is not None:
            self.qkv[: q + kv][np.arange(q + kv) % head_dim != hot] = 0
        if flat:
            self.qkv[: q + kv] = np.repeat(self.qkv[: q + kv : head_dim], head_dim, axis=0)
        self.projection, self.output = random(rng, HIDDEN, q), random(rng, VOCAB, HIDDEN)

    def native(self, kv: str) -> Model:
        model = Model(
            spec(
                hidden_size=HIDDEN,
                num_layers=1,
                head_dim=self.head_dim,
                attention_scale=self.head_dim**-0.5,
                inv_freq=self.inv_freq,
                intermediate_size=16,
                windows=[self.window],
                moe_layers=[False],
                activation="float32",
            )
        )
        zeros = np.zeros((32, HIDDEN), np.float32), np.zeros((HIDDEN, 16), np.float32)
        weights = {"qkv": self.qkv, "attention_output": self.projection, "gate_up": zeros[0], "down": zeros[1]}
        model.set_matrix("output", float_matrix(self.output))
        for name, values in weights.items():
            model.set_matrix("layers.0." + name, float_matrix(values))
        for name in ("final_norm", "layers.0.attention_norm", "layers.0.ffn_norm"):
            model.set_vector(name, np.ones(HIDDEN, np.float32))
        model.finish()
        model.allocate_cache(20, 16, kv)
        return model

    def logits(self, tokens: np.ndarray, quantised: bool) -> np.ndarray:
        """In float64; `quantised`: with keys and values as an int8 cache gives them back."""
        x = self.output[tokens].astype(np.float64)
        heads = (norm(x) @ self.qkv.T).reshape(len(tokens), -1, self.head_dim)
        q, k, v = np.split(heads, [HEADS, HEADS + KV_HEADS], axis=1)
        q, k = self.rotate(q), self.rotate(k)
        if quantised:
            k, v = self.spread_and_round(k), rounded(v)
        k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * self.head_dim**-0.5
        age = np.arange(len(tokens))[:, None] - np.arange(len(tokens))
        scores[:, (age < 0) | (age >= (self.window or len(tokens)))] = -np.inf
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        attended = np.einsum("hqk,khd->qhd", p / p.sum(axis=2, keepdims=True), v)
        return norm(x + attended.reshape(len(tokens), -1) @ self.projection.T) @ self.output.T

    def rotate(self, x: np.ndarray) -> np.ndarray:
        half = len(self.inv_freq)
        angle = (np.arange(len(x), dtype=np.float64)[:, None] * self.inv_freq)[:, None]
        a, b = x[..., :half], x[..., half : 2 * half]
        turned = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
        return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)

    def spread_and_round(self, k: np.ndarray) -> np.ndarray:
        """Through a Hadamard matrix, as large as the padded head has powers of two, and back."""
        padding = -self.head_dim % 16
        order = (self.head_dim + padding) & -(self.head_dim + padding)
        matrix = np.ones((1, 1))
        while len(matrix) < order:
            matrix = np.kron([[1, 1], [1, -1]], matrix)
        parts = np.pad(k, ((0, 0), (0, 0), (0, padding))).reshape(*k.shape[:2], -1, order)
        spread = rounded((parts @ matrix).reshape(*k.shape[:2], -1)).reshape(parts.shape)
        return (spread @ matrix / order).reshape(*k.shape[:2], -1)[..., : self.head_dim]


def random(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    return (rng.standard_normal((rows, cols)) * 2 * cols**-0.5).astype(np.float32)


def float_matrix(values: np.ndarray) -> Matrix:
    return Matrix(*values.shape, [(int(TensorType.F32), values.reshape(-1).view(np.uint8))], "auto")


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)


def rounded(x: np.ndarray) -> np.ndarray:
    """As codes of int8 with a scale per token and head."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    return np.rint(x / scale) * scale


HEADS_OPTIONS = [
    {"head_dim": 20},
    {"head_dim": 64},
    {"head_dim": 64, "window": 40},
    {"head_dim": 80},
    {"head_dim": 96},
    {"head_dim": 128, "rotary": 32},
    # A hot element makes every code of an int8 key the largest: no larger sums are possible.
    {"head_dim": 128, "rotary": 2, "hot": 77},
    {"head_dim": 1024, "rotary": 2, "hot": 1000},
]
# And this comes next to what codes of int16 may sum up to.
FLAT_OPTIONS = [{"head_dim": 128, "rotary": 2, "flat": True}, {"head_dim": 1024, "rotary": 2, "flat": True}]


def named(options: dict[str, Any]) -> str:
    return "-".join(f"{name}{value}" for name, value in options.items())


@pytest.mark.parametrize("options", [*HEADS_OPTIONS, *FLAT_OPTIONS], ids=named)
def test_codes_of_int16_err_no_more_than_float16(options):
    decoder = Decoder(**options)
    exact = decoder.logits(TOKENS, False)

    def error(kv: str) -> float:
        return np.sqrt(((decoder.native(kv).logits(TOKENS) - exact) ** 2).mean())

    assert error("int16") < 1.2 * error("float16")


@pytest.mark.parametrize("options", HEADS_OPTIONS, ids=named)
def test_attention_is_that_of_the_rounded_keys_and_values(options):
    """What int16 queries and weights round away is far less than what the codes do."""
    decoder = Decoder(**options)
    found = decoder.native("int8").logits(TOKENS)
    rounded_cache, exact = decoder.logits(TOKENS, True), decoder.logits(TOKENS, False)
    cost = np.sqrt(((exact - rounded_cache) ** 2).mean())
    assert np.sqrt(((found - rounded_cache) ** 2).mean()) < 0.05 * cost
    assert np.allclose(decoder.native("float32").logits(TOKENS), exact, atol=1e-3)


@pytest.mark.parametrize("kv", ["int16", "int8"])
def test_keys_and_values_of_zero(kv):
    decoder = Decoder(32)
    decoder.qkv[:] = 0
    assert np.allclose(decoder.native(kv).logits(TOKENS), decoder.logits(TOKENS, False), atol=1e-4)


@pytest.mark.parametrize("kv", ["int16", "int8"])
def test_equal_values_under_equal_weights(kv):
    """Every code of a value is the largest, and so are the weights' sums: all round the same way, as float16 would."""
    decoder = Decoder(32)
    decoder.qkv[: -KV_HEADS * 32] = 0
    decoder.qkv[-KV_HEADS * 32 :] = decoder.qkv[-1]
    tokens = np.full(160, 7, np.int32)
    exact = decoder.logits(tokens, False)
    assert np.abs(decoder.native(kv).logits(tokens) - exact).max() < 5e-4 * np.abs(exact).max()


@pytest.mark.parametrize("kv", ["int16", "float16", "float32"])
def test_scores_far_apart(kv):
    """Most weights are less than the smallest float: they are 0, and the others what they would be without them."""
    decoder = Decoder(64)
    decoder.qkv[: (HEADS + KV_HEADS) * 64] *= 16
    exact = decoder.logits(TOKENS, False)
    error = np.abs(decoder.native(kv).logits(TOKENS) - exact)
    assert error.mean() < 2e-3 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("kv", "of_a_head"), [("int16", 2 * 32 + 4), ("int8", 32 + 4), ("float16", 2 * 32), ("float32", 4 * 32)]
)
def test_bytes_of_a_block(kv, of_a_head):
    """Two layers, two heads of 20 elements that take 32, keys and values."""
    assert tiny_model().block_bytes(48, kv) == 2 * 2 * 2 * 48 * of_a_head
