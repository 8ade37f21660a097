"""Loading: which parts an engine is made of, and what the log says. The files and the native core are stand-ins."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
from engine_parts import EOS, VOCAB_SIZE, ask, byte_tokenizer, make_spec, request
from fake_native import FakeModel, FakeSampler, continuation

import trivium
from trivium.config import EngineConfig
from trivium.engine import NativeEngine, assembly
from trivium.errors import ConfigError
from trivium.models.loader import LoadedDecoder


class LoadableModel(FakeModel):
    weight_bytes = 12_300_000

    def block_bytes(self, block_size, kv_dtype):
        return block_size * {"int16": 100, "float32": 200}[kv_dtype]

    def allocate_cache(self, num_blocks, block_size, kv_dtype):
        if num_blocks > 1000:
            raise MemoryError
        super().__init__(num_blocks, block_size, VOCAB_SIZE)
        self.kv_dtype = kv_dtype


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """The decoder that will be loaded; its fields may be changed. `threads` are those that the core was given."""
    path = tmp_path / "tiny.gguf"
    path.touch()
    state = SimpleNamespace(
        native=LoadableModel(),
        metadata={},
        hf_config=None,
        generation_config={"temperature": 0.6},
        path=path,
        threads=None,
        keys=[],
    )

    def load_decoder(path, config, progress):
        return LoadedDecoder(state.native, make_spec(), 0, state.metadata, state.hf_config, state.generation_config, path)

    def read_tokenizer(source, cache_key=None):
        state.keys.append((source, cache_key))
        return byte_tokenizer()

    core = SimpleNamespace(
        set_num_threads=lambda count: setattr(state, "threads", count),
        num_threads=lambda: state.threads,
        instruction_set=lambda: "portable",
        Sampler=FakeSampler,
    )
    monkeypatch.setitem(sys.modules, "trivium._native", core)
    monkeypatch.setattr(trivium, "_native", core, raising=False)
    monkeypatch.setattr(assembly, "load_decoder", load_decoder)
    monkeypatch.setattr(assembly, "resolve_model", lambda name: path)
    monkeypatch.setattr(assembly, "usable_cores", lambda: 3)
    monkeypatch.setattr(assembly, "available_memory", lambda: 4 * 100 * 1600)
    monkeypatch.setattr(assembly.Tokenizer, "from_gguf", read_tokenizer)
    monkeypatch.setattr(assembly.Tokenizer, "from_folder", read_tokenizer)
    return state


def load(**options):
    return NativeEngine.load(EngineConfig(block_size=16, max_num_seqs=2, **options))


def test_loaded_engine_answers(loaded, caplog):
    caplog.set_level(logging.INFO, "trivium")
    with load(model=str(loaded.path)) as engine:
        assert ask(engine, request("a"))[0].token_ids == continuation(list(b"hello"), 8)
        info = engine.model_info
        assert (info.name, info.architecture, info.vocab_size, info.max_model_len) == ("tiny", "fake", VOCAB_SIZE, 1600)
        assert info.generation_defaults == {"temperature": 0.6}
        assert info.eos_token_ids == {EOS}
        assert engine.chat_template is None
    assert loaded.threads == 3
    assert loaded.native.kv_dtype == "int16"
    assert caplog.messages == [
        f"model: tiny (fake), 12.3 MB of weights from {loaded.path}",
        "threads: 3, instruction set: portable",
        "total_block_num: 100 blocks of 16 tokens, 0.2 MB",
        "max_model_len: 1600 tokens (the model's maximum is 4096)",
    ]


@pytest.mark.parametrize(("activation", "has", "told"), [("int8", False, True), ("int8", True, False), ("auto", False, False)])
def test_int8_that_wider_weights_cannot_take_is_told(loaded, caplog, monkeypatch, activation, has, told):
    monkeypatch.setattr(trivium._native, "bytes_by_bytes", lambda: has, raising=False)
    with load(model=str(loaded.path), activation_dtype=activation):
        assert any("activation_dtype=int8 holds for 4-bit weights only" in message for message in caplog.messages) is told


def test_configuration_comes_first(loaded):
    options = {"num_threads": 1, "served_model_name": "mine", "chat_template": "{{ messages }}", "activation_dtype": "float32"}
    with load(model="smollm2", tokenizer="elsewhere", **options) as engine:
        assert engine.model_info.name == "mine"
        assert engine.chat_template.source == "{{ messages }}"
    assert loaded.threads == 1
    assert loaded.native.kv_dtype == "float32"
    assert loaded.keys == [("elsewhere", None)]


def test_end_tokens_of_the_model_join_those_of_the_tokenizer(loaded):
    loaded.generation_config = {"eos_token_id": [7, 8, VOCAB_SIZE, None]}
    with load(model="smollm2") as engine:
        assert engine.model_info.eos_token_ids == {EOS, 7, 8}
        assert engine.model_info.name == "smollm2"
    loaded.generation_config = {}
    loaded.hf_config = {"eos_token_id": 9}
    with load(model="hf:owner/name") as engine:
        assert engine.model_info.eos_token_ids == {EOS, 9}
        assert engine.model_info.name == "owner/name"


@pytest.mark.parametrize(
    ("hf_config", "defaults"),
    [({"top_k": 50, "top_p": 0.9}, {"top_k": 50}), ({"top_k": 5.5}, {}), ({"top_k": -1}, {}), ({}, {}), (None, {})],
)
def test_sampling_defaults_of_config_json(loaded, hf_config, defaults):
    loaded.hf_config = hf_config
    with load() as engine:
        assert engine.model_info.config_defaults == defaults


def test_template_of_the_model(loaded):
    loaded.metadata = {"tokenizer.chat_template": "{{ bos_token }}"}
    with load() as engine:
        assert engine.chat_template.source == "{{ bos_token }}"


def no_loading(*given):
    raise AssertionError("the model is loaded")


@pytest.mark.parametrize("template", ["{{ x", "{% if %}", "no-such-file.jinja"])
def test_wrong_template_is_known_before_the_model_is_loaded(loaded, monkeypatch, template):
    monkeypatch.setattr(assembly, "load_decoder", no_loading)
    with pytest.raises(ConfigError, match="chat_template must"):
        load(chat_template=template)


def test_wrong_instruction_set_is_known_before_the_model_is_loaded(loaded, monkeypatch):
    def instruction_set():
        raise ValueError("TRIVIUM_ISA must be one of portable on this CPU, got 'bogus'")

    monkeypatch.setattr(trivium._native, "instruction_set", instruction_set)
    monkeypatch.setattr(assembly, "load_decoder", no_loading)
    with pytest.raises(ConfigError, match="TRIVIUM_ISA must be"):
        load()


def test_cache_that_cannot_be_allocated(loaded):
    with pytest.raises(ConfigError, match="smaller kv_cache_memory"):
        load(num_kv_blocks=1001)


def test_cache_of_too_many_blocks(loaded):
    with pytest.raises(ConfigError, match="at most 16777216 blocks"):
        load(kv_cache_memory=10**30)
