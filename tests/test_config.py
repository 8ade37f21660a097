"""`EngineConfig`: ranges, precedence of flags, environment, file and defaults, and the errors."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from trivium.config import EngineConfig, cache_home
from trivium.errors import ConfigError


def test_defaults_are_valid_and_every_option_has_help():
    config = EngineConfig()
    assert (config.model, config.block_size, config.max_num_seqs, config.enable_prefix_caching) == ("smollm2", 64, 32, True)
    assert set(EngineConfig.help()) == {f.name for f in fields(EngineConfig)}
    assert all(EngineConfig.help().values())
    assert EngineConfig.default("max_waiting") == 512


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_model_len": 15}, "max_model_len must be 16..2^24, got 15"),
        ({"max_num_seqs": 0}, "max_num_seqs must be 1..4096, got 0"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"block_size": 24}, "block_size must be a multiple of 16, at most 4096, got 24"),
        ({"block_size": 2**32}, "block_size must be a multiple of 16, at most 4096"),
        ({"max_num_batched_tokens": 2**18 + 1}, "max_num_batched_tokens must be 16..2^18"),
        ({"num_kv_blocks": 10**12}, "num_kv_blocks must be 1..2^24"),
        ({"max_model_len": 2**24 + 1}, "max_model_len must be 16..2^24"),
        ({"max_waiting": 2**20 + 1}, "max_waiting must be 1..2^20"),
        (
            {"quantization": "wint4", "activation_dtype": "float32"},
            "quantization must be unset with activation_dtype='float32', got 'wint4'",
        ),
        ({"kv_cache_memory": 0}, "kv_cache_memory"),
        ({"num_kv_blocks": -1}, "num_kv_blocks"),
        ({"num_threads": 0}, "num_threads must be 1..256"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 10**400}, "seed must be 0.."),
        ({"max_logprobs": -2}, "max_logprobs"),
        ({"max_num_seqs": "many"}, "max_num_seqs must be an integer, got 'many'"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer, got True"),
        ({"max_num_seqs": float("nan")}, "max_num_seqs must be an integer, got nan"),
        ({"max_num_seqs": 2.5}, "an integer"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"quantization": "wint2"}, "quantization must be 'wint8' or 'wint4' or unset, got 'wint2'"),
        ({"activation_dtype": "bf16"}, "activation_dtype must be 'auto' or 'int8' or 'int16' or 'float32'"),
        ({"model": None}, "model must be a string, got None"),
    ],
)
def test_values_out_of_range_are_named(change, message):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**change)
    assert message in str(caught.value)


def test_values_of_a_like_type_are_taken():
    config = EngineConfig(model=Path("a/b.gguf"), max_num_seqs=4.0)
    assert (config.model, config.max_num_seqs, type(config.max_num_seqs)) == ("a/b.gguf", 4, int)


def test_flags_stand_above_the_environment_above_the_file(tmp_path):
    file = tmp_path / "trivium.toml"
    file.write_text('max_num_seqs = 3\nblock_size = 32\nmodel = "a"\nseed = 5\n')
    environ = {
        "TRIVIUM_BLOCK_SIZE": "48",
        "TRIVIUM_MODEL": "b",
        "TRIVIUM_ENABLE_PREFIX_CACHING": "off",
        "TRIVIUM_HOME": "elsewhere",
    }
    config = EngineConfig.load({"model": "c", "max_num_seqs": None}, file=file, environ=environ)
    assert (config.model, config.block_size, config.max_num_seqs, config.seed) == ("c", 48, 3, 5)
    assert config.enable_prefix_caching is False


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TRIVIUM_MAX_NUM_SEQS": "x"}, "TRIVIUM_MAX_NUM_SEQS must be an integer, got 'x'"),
        ({"TRIVIUM_MAX_MODEL_LEN": "--5"}, "TRIVIUM_MAX_MODEL_LEN must be an integer or unset, got '--5'"),
        ({"TRIVIUM_SEED": "9" * 5000}, "TRIVIUM_SEED must be an integer or unset"),
        ({"TRIVIUM_ENABLE_PREFIX_CACHING": "perhaps"}, "TRIVIUM_ENABLE_PREFIX_CACHING must be true or false"),
        ({"TRIVIUM_QUANTIZATION": "wint3"}, "TRIVIUM_QUANTIZATION must be 'wint8' or 'wint4' or unset"),
    ],
)
def test_bad_variables_are_named(environ, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig.load(environ=environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq = 3", "unknown option 'max_num_seq'"),
        ("a = = b", "is not TOML"),
        ('max_num_seqs = "3"', "max_num_seqs must be"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        EngineConfig.load(file=file, environ={})


def test_file_that_is_not_utf8(tmp_path):
    file = tmp_path / "c.toml"
    file.write_bytes(b'model = "\xff"')
    with pytest.raises(ConfigError, match="is not TOML"):
        EngineConfig.load(file=file, environ={})


def test_missing_file_and_unknown_flag(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        EngineConfig.load(file=tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match="unknown option 'colour'"):
        EngineConfig.load({"colour": 1}, environ={})


def test_cache_folder(monkeypatch):
    monkeypatch.delenv("TRIVIUM_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert cache_home() == Path("/x/cache/trivium")
    monkeypatch.setenv("TRIVIUM_HOME", "/y")
    assert cache_home() == Path("/y")
