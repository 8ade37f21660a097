from __future__ import annotations

from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from trivium.cli.options import EngineCommand, engine_options, read_config, read_lone_config
from trivium.cli.sampling import resolve_sampling, sampling_options, take_sampling
from trivium.config import EngineConfig
from trivium.errors import ConfigError, RequestError


def parse(*args, without=(), **fixed):
    """The configuration that flags lead to."""
    configs = []

    @click.command("test", cls=EngineCommand)
    @engine_options(without=without)
    def command(**flags):
        configs.append(read_config(flags, **fixed))
        assert flags == {}

    result = CliRunner().invoke(command, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return configs[0] if configs else result.output


def test_every_field_is_a_flag_with_its_help():
    text = " ".join(parse("--help").split())
    for field in fields(EngineConfig):
        assert f"--{field.name.replace('_', '-')}" in text
        assert field.metadata["help"].split(";")[0] in text
    assert "(default: 32)" in text


def test_without_flags_the_defaults():
    assert parse() == EngineConfig()


def test_flags_of_every_kind():
    config = parse("-m", "m.gguf", "--max-model-len", "64", "--no-enable-prefix-caching", "--quantization", "wint8")
    assert config == EngineConfig(model="m.gguf", max_model_len=64, enable_prefix_caching=False, quantization="wint8")


def test_excluded_fields_are_no_flags():
    assert "No such option" in parse("--seed", "1", without=("seed",))


@pytest.mark.parametrize("args", [["--quantization", "fp8"], ["--max-model-len", "many"], ["--config", "/no/such/file"]])
def test_wrong_flags_are_wrong_use(args):
    assert parse(*args).startswith("Usage:")


def test_values_out_of_range():
    with pytest.raises(ConfigError, match=r"max_model_len must be 16.*, got 3"):
        parse("--max-model-len", "3")


def test_precedence(tmp_path, monkeypatch):
    file = tmp_path / "engine.toml"
    file.write_text("max_num_seqs = 2\nblock_size = 32\nseed = 5\nmax_model_len = 128\n")
    monkeypatch.setenv("TRIVIUM_BLOCK_SIZE", "48")
    monkeypatch.setenv("TRIVIUM_SEED", "6")
    config = parse("--config", str(file), "--seed", "7", max_model_len=256)
    assert (config.max_num_seqs, config.block_size, config.seed, config.max_model_len) == (2, 48, 7, 256)


class TestSampling:
    def parse(self, *args):
        taken = []

        @click.command("test")
        @sampling_options
        def command(**flags):
            taken.append(take_sampling(flags))
            assert flags == {}

        CliRunner().invoke(command, args, catch_exceptions=False)
        return taken[0]

    def test_defaults(self):
        options = resolve_sampling(self.parse(), {})
        assert (options.temperature, options.top_p, options.top_k, options.max_tokens) == (0.3, 0.9, 0, 1024)

    def test_model_then_flags(self):
        given = self.parse("--temperature", "0", "--max-tokens", "7", "--stop", "a", "--stop", "b", "--seed", "3")
        options = resolve_sampling(given, {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 3, "do_sample": True})
        assert (options.temperature, options.top_p, options.max_tokens) == (0.0, 0.9, 7)
        assert (options.stop, options.seed) == (("a", "b"), 3)

    @pytest.mark.parametrize(
        ("name", "value"), [("top-p", "2"), ("temperature", "nan"), ("max-tokens", "0"), ("seed", "-1"), ("top-k", "-2")]
    )
    def test_out_of_range_before_anything_is_loaded(self, name, value):
        with pytest.raises(RequestError, match=name.replace("-", "_")):
            self.parse(f"--{name}", value)


@pytest.mark.parametrize(("flags", "expected"), [({}, "int16"), ({"activation_dtype": "int8"}, "int8")])
def test_a_lone_sequence_takes_near_exact_activations(flags, expected):
    config = read_lone_config(dict(flags))
    assert (config.max_num_seqs, config.activation_dtype) == (1, expected)
