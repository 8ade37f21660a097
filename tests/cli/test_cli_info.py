from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_parts import run

import trivium
from trivium.cli.model_facts import packed_bits, read_facts
from trivium.config import EngineConfig
from trivium.models.checkpoint import TensorType
from trivium.models.loader import load_decoder

ARCHITECTURES = Path(__file__).parents[1] / "golden" / "architectures"
FOLDERS = sorted(path for path in ARCHITECTURES.iterdir() if (path / "config.json").exists())


@pytest.mark.parametrize("quantization", [None, "wint8", "wint4"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_plan_is_what_loading_takes(folder, quantization):
    """Blocks exactly; weights up to the rows that stacking saves from padding, much in models as small as these."""
    config = EngineConfig(quantization=quantization)
    facts = read_facts(folder, config, 10**9)
    native = load_decoder(folder, config).native
    assert facts.block_bytes == native.block_bytes(config.block_size, "int16")
    assert facts.weight_bytes == pytest.approx(native.weight_bytes, rel=0.1)
    for dtype in ("float32", "int8"):
        facts = read_facts(folder, EngineConfig(quantization=quantization, kv_cache_dtype=dtype), 10**9)
        assert facts.block_bytes == native.block_bytes(config.block_size, dtype)


def test_plan_of_the_real_model(smollm2):
    config = EngineConfig()
    facts = read_facts(Path(smollm2), config, 10**9)
    assert facts.weight_bytes == load_decoder(Path(smollm2), config).native.weight_bytes
    assert facts.num_parameters == 134_515_008
    assert set(facts.types) == {"Q4_1", "Q8_0", "F32"}
    assert facts.num_blocks == (10**9 - facts.weight_bytes) // 4 // facts.block_bytes


def test_wrong_instruction_set_is_an_error_of_one_line(monkeypatch):
    def instruction_set():
        raise ValueError("TRIVIUM_ISA must be one of portable on this CPU, got 'bogus'")

    monkeypatch.setattr(trivium._native, "instruction_set", instruction_set)
    result = run("info")
    assert result.exit_code == 1
    assert result.stderr == "trivium: error: TRIVIUM_ISA must be one of portable on this CPU, got 'bogus'\n"


def test_float32(smollm2):
    config = EngineConfig(activation_dtype="float32", num_kv_blocks=4)
    facts = read_facts(Path(smollm2), config, 10**9)
    plain = read_facts(Path(smollm2), EngineConfig(num_kv_blocks=4), 10**9)
    assert facts.weight_bytes == 4 * facts.num_parameters
    assert facts.block_bytes * (2 * 64 + 4) == plain.block_bytes * 4 * 64  # of a head
    assert (facts.num_blocks, facts.max_model_len) == (4, 256)


@pytest.mark.parametrize("kind", list(TensorType))
@pytest.mark.parametrize("mode", ["auto", "wint8", "wint4", "float32"])
def test_packed_bits(kind, mode):
    import numpy as np

    from trivium import _native

    rows, cols = 32, 256
    data = np.zeros(rows * cols // kind.block_size * kind.block_bytes, np.uint8)
    matrix = _native.Matrix(rows, cols, [(int(kind), data)], mode)
    assert packed_bits(kind, mode) == 8 * matrix.nbytes / (rows * cols)


def test_table(smollm2):
    result = run("info", smollm2, "--num-threads", "3")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert words.startswith(f"trivium {trivium.__version__} machine")
    for text in ("architecture llama", "layers 30", "kv heads 3", "num threads 3", "max position 8192", "kv block 1.5 MB"):
        assert text in words


def test_json(smollm2):
    report = json.loads(run("info", smollm2, "--json", "--num-kv-blocks", "7").stdout)
    assert report["trivium"] == trivium.__version__
    assert report["machine"]["instruction_set"] in report["machine"]["instruction_sets"]
    assert report["model"]["path"] == smollm2
    assert report["memory"]["kv_blocks"] == 7
    assert report["memory"]["kv_bytes"] == 7 * report["memory"]["kv_block_bytes"]
    assert report["memory"]["max_model_len"] == 7 * 64


def test_default_model_that_is_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path))
    result = run("info")
    assert result.exit_code == 0
    assert "`trivium pull smollm2` fetches it" in result.stdout
    assert json.loads(run("info", "--json").stdout)["model"] is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["nonsense", "smollm2"])
def test_named_model_that_is_not_here(monkeypatch, tmp_path, name):
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path))
    result = run("info", name)
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: ")


def test_experts():
    report = json.loads(run("info", ARCHITECTURES / "qwen3_moe", "--json").stdout)
    assert (report["model"]["experts"], report["model"]["experts_per_token"]) == (6, 2)
