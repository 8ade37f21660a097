"""The sampler's pipeline in plain float64 numpy, and helpers of the tests that compare the native one with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium._native import Sampler

Floats = NDArray[np.floating[Any]]
INF = math.inf


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al., SC'11) in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second % 2**32, (first >> 32) ^ c3 ^ k1, first % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def uniform(seed: int, position: int) -> float:
    words = philox4x32([position % 2**32, position >> 32, 0, 0], [seed % 2**32, seed >> 32])
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


@dataclass(frozen=True)
class Options:
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    min_tokens: int = 0
    suppressed: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5 or self.top_p < 1e-5 or self.top_k == 1


def latest(tokens: Sequence[int], window: int) -> Sequence[int]:
    return tokens[-window:] if window else tokens


def processed(logits: Floats, o: Options, prompt: Sequence[int], output: Sequence[int], allowed: Any = None) -> Floats:
    """Logits after bias, suppression, penalties, bad words and mask."""
    z = logits.astype(np.float64)
    for token, value in o.bias:
        z[token] += value
    if len(output) < o.min_tokens:
        z[list(o.suppressed)] = -INF
    for token in set(latest([*prompt, *output], o.penalty_window)):
        z[token] = z[token] * o.repetition_penalty if z[token] < 0 else z[token] / o.repetition_penalty
    for token in latest(output, o.penalty_window):
        z[token] -= o.frequency_penalty
    for token in set(latest(output, o.penalty_window)):
        z[token] -= o.presence_penalty
    for *before, last in o.bad_words:
        if list(output[len(output) - len(before) :]) == before:
            z[last] = -INF
    if allowed is not None:
        z[~np.asarray(allowed)] = -INF
    return z


def best_first(values: Floats) -> NDArray[np.intp]:
    """Ids by falling value, ties by rising id."""
    return np.lexsort((np.arange(len(values)), -values))


def far(values: Floats, threshold: float) -> bool:
    """Whether rounding cannot move one of the values across the threshold."""
    return bool(np.all(np.abs(values - threshold) > 3e-5 * threshold))


def parted(z: Floats, order: NDArray[np.intp], count: int) -> bool:
    """Whether rounding cannot exchange the last of the `count` first tokens with the next."""
    inside, outside = z[order[count - 1]], z[order[count]]
    return bool(inside == outside or inside - outside > 1e-4)


def kept_tokens(z: Floats, o: Options) -> tuple[NDArray[np.bool_], bool]:
    """Which tokens may be drawn, and whether that is safe from rounding."""
    weights = np.exp((z - z.max()) / o.temperature)
    kept, safe = z > -INF, True
    if o.min_p > 0 or o.top_p < 1 or 0 < o.top_k < len(z):  # then negligible weights are cut too
        kept &= weights >= 1e-30
        safe &= far(weights, 1e-30)
    if o.min_p > 0:
        kept &= weights >= o.min_p
        safe &= far(weights[weights < 1], o.min_p)
    if 0 < o.top_k < kept.sum():
        order = best_first(np.where(kept, z, -INF))
        safe &= parted(z, order, o.top_k)
        kept[order[o.top_k :]] = False
    if o.top_p < 1:
        order = best_first(np.where(kept, z, -INF))
        reached = np.cumsum(weights[order] * kept[order]) / weights[kept].sum()
        count = 1 + int(np.searchsorted(reached, o.top_p))
        safe &= far(reached, o.top_p) and (count >= kept.sum() or parted(z, order, count))
        kept[order[count:]] = False
    return kept, safe


def drawn(z: Floats, kept: NDArray[np.bool_], temperature: float, u: float) -> tuple[int, bool]:
    """The token that u stands for, and whether that is safe from rounding."""
    reached = np.cumsum(np.where(kept, np.exp((z - z.max()) / temperature), 0.0))
    reached /= reached[-1]
    return int(np.searchsorted(reached, u, side="right")), bool(np.all(np.abs(reached - u) > 3e-5))


# ---- helpers


def sampler(vocab_size: int, options: Options | None = None, prompt: Sequence[int] = (), **reporting: Any) -> Sampler:
    o = options or Options()
    fields: dict[str, Any] = {k: getattr(o, k) for k in o.__dataclass_fields__ if k not in ("bias", "suppressed")}
    fields |= {
        "suppressed": np.array(o.suppressed, np.int32),
        "bias_ids": np.array([t for t, _ in o.bias], np.int32),
        "bias_values": np.array([v for _, v in o.bias], np.float32),
    }
    return Sampler(vocab_size=vocab_size, prompt=np.array(prompt, np.int32), **fields, **reporting)


def bits(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Tokens as a mask; the unused bits of its last word are set, since they must not matter."""
    words = -(-len(allowed) // 32)
    padded = np.ones(32 * words, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def peaked(vocab_size: int, seed: int) -> NDArray[np.float32]:
    """Logits shaped as a language model's: a wide bell with a few tokens well above it."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.0, 2.5, vocab_size)
    z[rng.choice(vocab_size, 20, replace=False)] += rng.uniform(8.0, 16.0, 20)
    return z.astype(np.float32)
