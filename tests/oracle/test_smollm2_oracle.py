"""SmolLM2 against transformers, live: the golden file is what transformers says today, and so are our float32 logits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from trivium.config import EngineConfig
from trivium.models.loader import load_decoder

GOLDEN = Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

from make_smollm2 import KEPT, log_softmax, reference_logits, windows  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def live(smollm2):
    """Tokens and transformers' logits of the first two windows."""
    tokens = windows(Path(smollm2))[:2]
    return tokens, list(reference_logits(Path(smollm2), tokens))


def test_the_golden_file_is_what_transformers_computes(live):
    tokens, logits = live
    golden = np.load(GOLDEN / "smollm2" / "expected.npz")
    assert np.array_equal(golden["tokens"][:2], tokens)
    for window in range(2):
        logprobs = log_softmax(logits[window])
        ids = golden["top_ids"][window].astype(np.int64)
        assert (
            np.abs(np.take_along_axis(logprobs, ids, axis=1) - golden["top_logprobs"][window]).max() < 0.02
        )  # kept as float16
        best = -np.sort(-logprobs, axis=1)[:, :KEPT]
        assert np.abs(best - golden["top_logprobs"][window]).max() < 0.02


def test_float32_logits_agree(smollm2, live):
    native = load_decoder(Path(smollm2), EngineConfig(model=smollm2, activation_dtype="float32")).native
    native.allocate_cache(8, 64, "float32")
    for tokens, expected in zip(*live, strict=True):
        ours = native.logits(tokens)
        assert np.abs(ours - expected).max() < 2e-3
        margin = np.diff(np.sort(expected, axis=1)[:, -2:], axis=1)[:, 0]
        sure = margin > 4e-3
        assert sure.mean() > 0.9
        assert np.array_equal(ours.argmax(axis=1)[sure], expected.argmax(axis=1)[sure])
