"""The native core against transformers: logits and greedy tokens of a tiny model per architecture.

`tests/golden/make_architectures.py` made the folders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import conversions
import numpy as np
import pytest

from trivium.config import EngineConfig
from trivium.models.loader import LoadedDecoder, load_decoder

GOLDEN = Path(__file__).parents[1] / "golden" / "architectures"
FOLDERS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
BLOCK_SIZE = 16
# Of the largest logit: the rounding of float32 sums of this size, with a wide margin.
TOLERANCE = 2e-4


def load(path: Path, max_model_len: int | None = None) -> LoadedDecoder:
    loaded = load_decoder(path, EngineConfig(activation_dtype="float32", max_model_len=max_model_len))
    loaded.native.allocate_cache(8, BLOCK_SIZE, "float32")
    return loaded


def assert_golden(path: Path, name: str) -> None:
    with np.load(GOLDEN / name / "expected.npz") as expected:
        native = load(path, int(expected["max_model_len"]) or None).native
        tokens, logits = expected["prompt"], expected["logits"]
        got = native.logits(tokens)
        np.testing.assert_allclose(got, logits, rtol=0, atol=TOLERANCE * np.abs(logits).max())
        for token in expected["tokens"]:
            best = int(native.logits(tokens)[-1].argmax())
            assert best == token, f"after {len(tokens)} tokens"
            tokens = np.append(tokens, np.int32(best))


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str) -> None:
    assert_golden(GOLDEN / name, name)


@pytest.mark.parametrize("name", ["llama", "llama-bias", "llama-yarn", "qwen3", "qwen3_moe", "ernie4_5", "ernie4_5_moe"])
def test_gguf_files(name: str, tmp_path: Path) -> None:
    assert_golden(conversions.to_gguf(GOLDEN / name, tmp_path / "model.gguf"), name)


@pytest.mark.parametrize("name", ["ernie4_5", "ernie4_5_moe"])
@pytest.mark.parametrize("convert", [conversions.to_paddle, conversions.stack_experts])
def test_other_folder_layouts(name: str, convert: Callable[[Path, Path], Path], tmp_path: Path) -> None:
    assert_golden(convert(GOLDEN / name, tmp_path), name)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize(("quantization", "least"), [(None, 0.999), ("wint8", 0.995), ("wint4", 0.9)])
def test_quantised_weights_stay_close(name: str, quantization: str | None, least: float) -> None:
    with np.load(GOLDEN / name / "expected.npz") as expected:
        native = load_decoder(GOLDEN / name, EngineConfig(quantization=quantization)).native
        native.allocate_cache(8, BLOCK_SIZE, "int16")
        got, logits = native.logits(expected["prompt"]).ravel(), expected["logits"].ravel()
    assert np.corrcoef(got, logits)[0, 1] >= least
