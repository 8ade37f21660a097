"""Loading against `numpy_core`, a plain decoder in place of the native one: golden logits prove names, order and specs."""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import conversions
import gguf
import numpy as np
import numpy_core
import pytest

import trivium
from trivium.config import EngineConfig
from trivium.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from trivium.models import loader
from trivium.models.loader import LoadedDecoder, _release, load_decoder
from trivium.models.mapping import map_file

GOLDEN = Path(__file__).parents[1] / "golden" / "architectures"
FOLDERS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
ERNIE = [name for name in FOLDERS if name.startswith("ernie")]
MOE = [name for name in FOLDERS if name.endswith("moe")]
# GGUF files say nothing of these models' windows, nor of dynamic NTK; llama3 scaling has its own test.
GGUF = [name for name in FOLDERS if name not in ("mistral", "qwen2", "llama-dynamic", "llama-llama3")]


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "trivium._native", numpy_core)
    monkeypatch.setattr(trivium, "_native", numpy_core, raising=False)
    return numpy_core


def load(path: Path, max_model_len: int | None = None, **options: Any) -> LoadedDecoder:
    return load_decoder(path, EngineConfig(activation_dtype="float32", max_model_len=max_model_len, **options))


def assert_golden(path: Path, name: str) -> LoadedDecoder:
    with np.load(GOLDEN / name / "expected.npz") as expected:
        loaded = load(path, int(expected["max_model_len"]) or None)
        scale = np.abs(expected["logits"]).max()
        np.testing.assert_allclose(loaded.native.logits(expected["prompt"]), expected["logits"], rtol=0, atol=2e-5 * scale)
    return loaded


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str) -> None:
    loaded = assert_golden(GOLDEN / name, name)
    assert loaded.native.finished
    assert loaded.hf_config == conversions.read_config(GOLDEN / name)
    assert loaded.metadata is None
    assert loaded.path == GOLDEN / name


@pytest.mark.parametrize("name", GGUF)
def test_gguf_files(name: str, tmp_path: Path) -> None:
    loaded = assert_golden(conversions.to_gguf(GOLDEN / name, tmp_path / "model.gguf"), name)
    assert loaded.hf_config is None
    assert loaded.metadata is not None
    assert loaded.metadata["general.architecture"] in ("llama", "qwen3", "qwen3moe", "ernie4_5", "ernie4_5-moe")


def test_gguf_of_qwen2_without_its_window(tmp_path: Path) -> None:
    config = {**conversions.read_config(GOLDEN / "qwen2"), "use_sliding_window": False, "layer_types": None}
    folder = conversions.write_folder(tmp_path, config, conversions.read_arrays(GOLDEN / "qwen2"))
    prompt = np.arange(30, dtype=np.int32)
    file = load(conversions.to_gguf(folder, tmp_path / "model.gguf"))
    np.testing.assert_array_equal(file.native.logits(prompt), load(folder).native.logits(prompt))


def test_gguf_factors_of_llama3(tmp_path: Path) -> None:
    scaled = load(GOLDEN / "llama-llama3").spec.rope.inv_freq

    def add_factors(writer: gguf.GGUFWriter, architecture: str) -> None:
        plain = 10_000.0 ** (-np.arange(len(scaled)) / len(scaled))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))

    path = conversions.to_gguf(GOLDEN / "llama-llama3", tmp_path / "model.gguf", change=add_factors)
    assert_golden(path, "llama-llama3")


@pytest.mark.parametrize("name", ERNIE)
@pytest.mark.parametrize(("fused", "prefix"), [(True, "ernie."), (True, "model."), (False, "ernie."), (False, "model.")])
def test_paddle_folders(name: str, fused: bool, prefix: str, tmp_path: Path) -> None:
    assert_golden(conversions.to_paddle(GOLDEN / name, tmp_path, fused=fused, prefix=prefix), name)


@pytest.mark.parametrize("name", MOE)
def test_stacked_experts(name: str, tmp_path: Path) -> None:
    assert_golden(conversions.stack_experts(GOLDEN / name, tmp_path), name)


class TestPacking:
    def test_names_of_the_native_core(self) -> None:
        native = load(GOLDEN / "ernie4_5_moe").native
        dense = {f"layers.0.{name}" for name in ("qkv", "attention_output", "gate_up", "down")}
        experts = {f"layers.{i}.experts.{e}.{name}" for i in (1, 2) for e in range(6) for name in ("gate_up", "down")}
        others = {
            f"layers.{i}.{name}"
            for i in (1, 2)
            for name in ("qkv", "attention_output", "router", "shared.gate_up", "shared.down")
        }
        assert set(native.matrices) == {"embedding", "output"} | dense | experts | others
        norms = {f"layers.{i}.{name}" for i in range(3) for name in ("attention_norm", "ffn_norm")}
        assert set(native.vectors) == {"final_norm", "layers.1.router_bias", "layers.2.router_bias"} | norms

    def test_biases_and_norms_of_heads(self) -> None:
        biases = {"qkv_bias", "attention_output_bias", "gate_up_bias", "down_bias"}
        assert {name.split(".")[-1] for name in load(GOLDEN / "llama-bias").native.vectors} >= biases
        assert load(GOLDEN / "qwen3").native.vectors["layers.0.q_norm"].shape == (32,)

    def test_a_tied_model_has_one_vocabulary_matrix(self) -> None:
        native = load(GOLDEN / "llama-bias").native
        assert "output" in native.matrices
        assert "embedding" not in native.matrices

    @pytest.mark.parametrize(
        ("options", "mode", "vocabulary"),
        [
            ({}, "auto", "auto"),
            ({"quantization": "wint8"}, "wint8", "wint8"),
            ({"quantization": "wint4"}, "wint4", "wint8"),
            ({"activation_dtype": "float32"}, "float32", "float32"),
        ],
    )
    def test_modes(self, options: dict[str, Any], mode: str, vocabulary: str) -> None:
        modes = load_decoder(GOLDEN / "qwen3_moe", EngineConfig(**options)).native.modes
        for name, got in modes.items():
            assert got == ("float32" if name.endswith("router") else vocabulary if name == "output" else mode)

    def test_parts_of_different_types_are_set_one_after_the_other(self, tmp_path: Path) -> None:
        arrays = conversions.read_arrays(GOLDEN / "llama")
        name = "blk.0.attn_v.weight"

        class Mixed(gguf.GGUFWriter):
            def add_tensor(self, tensor_name: str, array: Any, **options: Any) -> None:
                super().add_tensor(tensor_name, array.astype(np.float16) if tensor_name == name else array, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf, "GGUFWriter", Mixed)
            path = conversions.to_gguf(GOLDEN / "llama", tmp_path / "model.gguf")
        qkv = load(path).native.matrices["layers.0.qkv"]
        v = arrays["model.layers.0.self_attn.v_proj.weight"]
        np.testing.assert_array_equal(qkv[-len(v) :], v.astype(np.float16))

    def test_spec_of_the_native_core(self) -> None:
        spec = load_decoder(GOLDEN / "mistral", EngineConfig(activation_dtype="int16")).native.spec
        assert spec["windows"] == [16, 16]
        assert spec["moe_layers"] == [False, False]
        assert spec["activation"] == "int16"
        assert (spec["num_experts"], spec["experts_per_token"], spec["expert_size"], spec["shared_size"]) == (0, 0, 0, 0)
        assert spec["sections"] == []
        assert spec["inv_freq"].dtype == np.float32

    def test_progress_counts_every_byte_once(self) -> None:
        calls: list[tuple[int, int]] = []
        loaded = load_decoder(GOLDEN / "qwen3_moe", EngineConfig(), lambda done, total: calls.append((done, total)))
        done = [call[0] for call in calls]
        assert done == sorted(done)
        assert {total for _, total in calls} == {loaded.source_bytes}
        assert done[-1] == loaded.source_bytes == sum(array.size for array in _arrays("qwen3_moe").values()) * 2


def _arrays(name: str) -> conversions.Arrays:
    return conversions.read_arrays(GOLDEN / name)


class TestGenerationConfig:
    def test_of_a_folder(self, tmp_path: Path) -> None:
        folder = conversions.write_folder(tmp_path, conversions.read_config(GOLDEN / "llama"), _arrays("llama"))
        assert load(folder).generation_config == {}
        (folder / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [2, 3]}')
        assert load(folder).generation_config == {"temperature": 0.6, "eos_token_id": [2, 3]}

    @pytest.mark.parametrize("wrong", [{}, [[2]], True, [2, True], "2", 2.0])
    @pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
    def test_end_tokens_that_are_no_ids(self, tmp_path: Path, name: str, wrong: object) -> None:
        config = conversions.read_config(GOLDEN / "llama")
        folder = conversions.write_folder(tmp_path, config, _arrays("llama"))
        (folder / name).write_text(json.dumps({**config, "eos_token_id": wrong}))
        with pytest.raises(ModelLoadError, match=rf"/{name}: eos_token_id must be an integer or a list of integers, got "):
            load(folder)

    def test_of_a_gguf_file(self, tmp_path: Path) -> None:
        def add(writer: gguf.GGUFWriter, architecture: str) -> None:
            writer.add_int32("general.sampling.top_k", 20)
            writer.add_float32("general.sampling.temp", 0.5)

        path = conversions.to_gguf(GOLDEN / "llama", tmp_path / "model.gguf", change=add)
        assert load(path).generation_config == {"top_k": 20, "temperature": 0.5}

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ('{"top_k": null, "temperature": null, "eos_token_id": null}', {}),
            ('{"top_k": 50.0, "temperature": 1}', {"top_k": 50, "temperature": 1.0}),
            ('{"do_sample": true, "temperature": 0.6}', {"do_sample": True, "temperature": 0.6}),
            ('{"do_sample": false, "temperature": 0.6}', {"do_sample": False, "temperature": 0.0}),
            ('{"do_sample": null, "top_p": 0.5}', {"top_p": 0.5}),
        ],
    )
    def test_legal_values(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, kept: dict[str, Any]) -> None:
        folder = conversions.write_folder(tmp_path, conversions.read_config(GOLDEN / "llama"), _arrays("llama"))
        (folder / "generation_config.json").write_text(text)
        got = load(folder).generation_config
        assert got == kept
        assert {name: type(value) for name, value in got.items()} == {name: type(value) for name, value in kept.items()}
        assert caplog.messages == []

    def test_wrong_values_are_dropped_with_one_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = conversions.write_folder(tmp_path, conversions.read_config(GOLDEN / "llama"), _arrays("llama"))
        huge = "1" + "0" * 400
        (folder / "generation_config.json").write_text(
            '{"temperature": "x", "top_k": 2.5, "top_p": NaN, "min_p": true, "repetition_penalty": 0, '
            f'"presence_penalty": {huge}, "frequency_penalty": -Infinity, "do_sample": "no", "max_length": 9}}'
        )
        assert load(folder).generation_config == {"max_length": 9}
        (message,) = caplog.messages
        assert "temperature='x'" in message
        for name in (
            "top_k=2.5",
            "top_p=nan",
            "min_p=True",
            "repetition_penalty=0",
            "frequency_penalty=-inf",
            "do_sample='no'",
        ):
            assert name in message

    def test_wrong_values_of_a_gguf_file(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def add(writer: gguf.GGUFWriter, architecture: str) -> None:
            writer.add_int32("general.sampling.top_k", 20)
            writer.add_float32("general.sampling.temp", -1.0)

        path = conversions.to_gguf(GOLDEN / "llama", tmp_path / "model.gguf", change=add)
        assert load(path).generation_config == {"top_k": 20}
        assert len(caplog.messages) == 1
        assert "temperature=-1.0" in caplog.messages[0]


def test_quantization_of_what_is_quantised_already_is_told(caplog: pytest.LogCaptureFixture, smollm2: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_pack", lambda *given: None)
        load_decoder(Path(smollm2), EngineConfig(quantization="wint4"))
        (message,) = caplog.messages
        assert message.startswith("quantization=wint4 has no effect")
        load_decoder(GOLDEN / "llama", EngineConfig(quantization="wint4"))
        load_decoder(Path(smollm2), EngineConfig())
    assert len(caplog.messages) == 1


class TestRefusals:
    def folder(self, tmp_path: Path, change: dict[str, Any] | None = None, **config: Any) -> Path:
        """The llama folder with other tensors (None removes one) and config values."""
        arrays = {**_arrays("llama"), **(change or {})}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        return conversions.write_folder(tmp_path, {**conversions.read_config(GOLDEN / "llama"), **config}, arrays)

    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match="nowhere"):
            load(tmp_path / "nowhere")

    def test_a_folder_without_a_config(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match=r"config\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"a": 1' + "0" * 5000 + "}", "[" * 100_000])
    def test_a_config_that_is_not_an_object(self, text: str, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelLoadError, match=r"config\.json"):
            load(folder)

    def test_a_config_of_many_megabytes(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        os.truncate(folder / "config.json", 1 << 30)
        with pytest.raises(ModelLoadError, match=r"config\.json: must have at most"):
            load(folder)

    def test_a_missing_tensor_is_named(self, tmp_path: Path) -> None:
        name = "model.layers.1.mlp.down_proj.weight"
        with pytest.raises(ModelLoadError, match=f"there is no tensor '{name}'"):
            load(self.folder(tmp_path, {name: None}))

    def test_a_wrong_shape_is_named_with_both(self, tmp_path: Path) -> None:
        name = "model.layers.2.self_attn.k_proj.weight"
        with pytest.raises(ModelLoadError, match=rf"'{name}' must have shape \[32, 64\], got \[64, 32\]"):
            load(self.folder(tmp_path, {name: np.zeros((64, 32))}))

    def test_a_vector_of_another_size(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"'model.norm.weight' must have shape \[64\], got \[2, 32\]"):
            load(self.folder(tmp_path, {"model.norm.weight": np.zeros((2, 32))}))

    def test_nothing_is_packed_before_all_shapes_are_known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(numpy_core, "Model", lambda spec: pytest.fail("packing has begun"))
        name = "model.layers.2.mlp.down_proj.weight"
        with pytest.raises(ModelLoadError, match=name):
            load(self.folder(tmp_path, {name: np.zeros((96, 64))}))

    def test_a_config_larger_than_the_tensors(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match="embed_tokens"):
            load(self.folder(tmp_path, vocab_size=1 << 22, hidden_size=1 << 17))

    def test_a_quantized_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModelError, match="awq"):
            load(self.folder(tmp_path, quantization_config={"quant_method": "awq"}))

    @pytest.mark.parametrize(
        ("fault", "message"),
        [(ValueError("layers.0.qkv: no kernel"), r"layers\.0\.qkv"), (MemoryError(), "not enough memory.*0.0 GB")],
    )
    def test_faults_of_the_native_core(self, fault: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: object) -> None:
            raise fault

        monkeypatch.setattr(numpy_core, "Matrix", fail)
        with pytest.raises(ModelLoadError, match=message) as caught:
            load(GOLDEN / "llama")
        assert caught.value.__cause__ is fault


class TestRelease:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "data"
        path.write_bytes(os.urandom(16 * mmap.PAGESIZE))
        return path

    def test_whole_pages_leave_the_memory(self, file: Path) -> None:
        data = map_file(file)
        part = data[100 : 12 * mmap.PAGESIZE + 100]
        before = part.copy()
        resident = _resident(data)
        assert resident >= part.nbytes
        _release(part)
        assert _resident(data) <= resident - 11 * mmap.PAGESIZE
        np.testing.assert_array_equal(part, before)

    def test_memory_that_is_no_mapping_is_left_alone(self) -> None:
        data = np.arange(100_000, dtype=np.uint8)
        _release(data)
        assert data[99_999] == 99_999 % 256


def _resident(data: np.ndarray) -> int:
    """Bytes of the mapping at `data` that are in this process's memory."""
    start = data.ctypes.data
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(maxsplit=1)[0].startswith(f"{start:x}-"):
            found = True
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise LookupError("the mapping is not listed")


def test_the_source_is_let_go_of(tmp_path: Path) -> None:
    path = conversions.to_gguf(GOLDEN / "llama", tmp_path / "model.gguf")
    loaded = load(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert loaded.native.finished
