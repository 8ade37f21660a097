"""SmolLM2 against transformers in float32 on the same weights: perplexity, KL divergence, agreement of the best token.

The bounds are those of the documentation (docs/performance.md): what int8 and int16 activations may cost, and an int8 KV cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trivium._native import Model
from trivium.config import EngineConfig
from trivium.models.loader import load_decoder

EXPECTED = Path(__file__).parents[1] / "golden" / "smollm2" / "expected.npz"
WINDOWS = {"auto": 16, "int8": 16, "int16": 4, "float32": 1}  # 8,192 tokens; fewer where the bounds leave much room


def decoder(path: str, activation: str, cache: str) -> Model:
    native = load_decoder(Path(path), EngineConfig(model=path, activation_dtype=activation)).native
    native.allocate_cache(8, 64, cache)
    return native


def log_softmax(logits: np.ndarray) -> np.ndarray:
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def measure(path: str, activation: str) -> dict[str, float]:
    """Perplexity of both, mean KL divergence over the reference's 32 best tokens, share of equal best tokens."""
    golden = np.load(EXPECTED)
    native = decoder(path, activation, "float32" if activation == "float32" else "int16")
    divergence, agreement, ours, theirs = [], [], [], []
    for window in range(WINDOWS[activation]):
        tokens = golden["tokens"][window]
        logprobs = log_softmax(native.logits(tokens))
        ids = golden["top_ids"][window].astype(np.int64)
        reference = golden["top_logprobs"][window].astype(np.float64)
        mine = np.take_along_axis(logprobs, ids, axis=1)
        p, q = np.exp(reference), np.exp(mine)
        rest_p, rest_q = np.clip(1 - p.sum(1), 1e-9, None), np.clip(1 - q.sum(1), 1e-9, None)
        divergence.append((p * (reference - mine)).sum(1) + rest_p * np.log(rest_p / rest_q))
        agreement.append(logprobs.argmax(axis=1) == ids[:, 0])
        ours.append(logprobs[np.arange(len(tokens) - 1), tokens[1:]])
        theirs.append(golden["next_logprobs"][window])
    return {
        "perplexity": float(np.exp(-np.mean(ours))),
        "reference": float(np.exp(-np.mean(theirs))),
        "kl": float(np.mean(divergence)),
        "top1": float(np.mean(agreement)),
    }


@pytest.mark.parametrize(
    ("activation", "perplexity", "kl", "top1"),
    [
        ("auto", 0.005, 5e-3, 0.95),
        ("int8", 0.005, 5e-3, 0.95),
        ("int16", 0.001, 1e-4, 0.999),
        ("float32", 1e-5, 5e-5, 0.999),
    ],
)
def test_quality_is_within_its_bounds(smollm2, activation, perplexity, kl, top1):
    found = measure(smollm2, activation)
    assert abs(found["perplexity"] / found["reference"] - 1) < perplexity, found
    assert found["kl"] < kl, found
    assert found["top1"] >= top1, found


@pytest.mark.parametrize(("cache", "perplexity", "kl", "top1"), [("int16", 1e-4, 2e-6, 0.998), ("int8", 0.002, 5e-4, 0.98)])
def test_a_cache_of_integers_costs_little_beside_float16(smollm2, cache, perplexity, kl, top1):
    """With int16 activations: int8 ones round so much anew after any change that they would hide what the cache does."""
    wide, narrow = decoder(smollm2, "int16", "float16"), decoder(smollm2, "int16", cache)
    divergence, agreement, change = [], [], []
    for tokens in np.load(EXPECTED)["tokens"][:8]:
        p, q = log_softmax(wide.logits(tokens)), log_softmax(narrow.logits(tokens))
        divergence.append((np.exp(p) * (p - q)).sum(axis=1))
        agreement.append(p.argmax(axis=1) == q.argmax(axis=1))
        change.append((p - q)[np.arange(len(tokens) - 1), tokens[1:]])
    found = {"perplexity": np.exp(np.mean(change)) - 1, "kl": np.mean(divergence), "top1": np.mean(agreement)}
    assert abs(found["perplexity"]) < perplexity, found
    assert found["kl"] < kl, found
    assert found["top1"] >= top1, found
