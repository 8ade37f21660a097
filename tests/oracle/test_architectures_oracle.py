"""What the golden folders record, computed again with fresh random weights."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from trivium.config import EngineConfig
from trivium.models.fields import Fields
from trivium.models.loader import load_decoder
from trivium.models.rope import RopeParameters

pytestmark = pytest.mark.oracle

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.name for path in (GOLDEN / "architectures").iterdir() if path.is_dir())
TOLERANCE = 2e-4  # of the largest logit


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """make_architectures.py, which needs torch and is therefore not imported while tests are collected."""
    specification = importlib.util.spec_from_file_location("make_architectures", GOLDEN / "make_architectures.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def write_lively(maker: ModuleType, folder: Path, name: str) -> int:
    """A folder of a random seed; the seeds of models that are too dull are passed over."""
    for _ in range(50):
        seed = secrets.randbelow(1 << 31)
        try:
            maker.write(folder, maker.CASES[name], seed)
        except RuntimeError:
            continue
        return seed
    raise AssertionError(f"no lively {name} in 50 seeds")


def test_every_case_has_a_folder(maker: ModuleType) -> None:
    assert sorted(maker.CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_tokens(maker: ModuleType, name: str, tmp_path: Path) -> None:
    seed = write_lively(maker, tmp_path, name)
    with np.load(tmp_path / "expected.npz") as expected:
        max_model_len = int(expected["max_model_len"]) or None
        native = load_decoder(tmp_path, EngineConfig(activation_dtype="float32", max_model_len=max_model_len)).native
        native.allocate_cache(8, 16, "float32")
        tokens, logits = expected["prompt"], expected["logits"]
        error = np.abs(native.logits(tokens) - logits).max() / np.abs(logits).max()
        assert error <= TOLERANCE, f"seed {seed}"
        for token in expected["tokens"]:
            assert native.logits(tokens)[-1].argmax() == token, f"seed {seed}, after {len(tokens)} tokens"
            tokens = np.append(tokens, token)


@pytest.mark.parametrize("name", ["linear", "dynamic at its length", "dynamic longer", "yarn", "yarn with mscale", "llama3"])
@pytest.mark.parametrize("theta", [1_234.5, 10_000.0, 5_000_000.0])
def test_rope_frequencies(maker: ModuleType, name: str, theta: float) -> None:
    case: dict[str, Any] = maker.rope_cases()[name]
    case["rope_parameters"]["rope_theta"] = theta
    reference = maker.rope_reference(case)
    config = Fields({"max_position_embeddings": 16_384, "rope_parameters": case["rope_parameters"]}, "config.json")
    spec = RopeParameters.from_hf(config, 64).spec(interleaved=False, max_model_len=case.get("max_model_len"))
    np.testing.assert_allclose(spec.inv_freq, reference["inv_freq"], rtol=3e-6)
    assert spec.attention_factor == pytest.approx(reference["attention_factor"], rel=1e-6)


def test_golden_files_are_what_the_script_makes(maker: ModuleType, tmp_path: Path) -> None:
    maker.make(tmp_path)
    assert maker.differences(tmp_path, GOLDEN / "architectures") == []
