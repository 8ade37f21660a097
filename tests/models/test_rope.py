from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.fields import Fields
from trivium.models.rope import RopeParameters
from trivium.models.spec import RopeSpec

REFERENCES = json.loads((Path(__file__).parents[1] / "golden" / "architectures" / "rope.json").read_text())
HEAD_DIM = 64


def hf(config: dict[str, Any], head_dim: int = HEAD_DIM, **options: Any) -> RopeParameters:
    return RopeParameters.from_hf(Fields({"max_position_embeddings": 16_384, **config}, "config.json"), head_dim, **options)


def gguf(metadata: dict[str, Any], head_dim: int = HEAD_DIM) -> RopeParameters:
    values = {"llama.context_length": 16_384, **{f"llama.rope.{key}": value for key, value in metadata.items()}}
    return RopeParameters.from_gguf(Fields(values, "model.gguf"), "llama", head_dim)


def spec(parameters: RopeParameters, max_model_len: int | None = None) -> RopeSpec:
    return parameters.spec(interleaved=False, max_model_len=max_model_len)


@pytest.mark.parametrize("name", REFERENCES)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    case = REFERENCES[name]
    got = spec(hf({"rope_parameters": case["rope_parameters"]}), case.get("max_model_len"))
    assert got.inv_freq.dtype == np.float32
    np.testing.assert_allclose(got.inv_freq, case["inv_freq"], rtol=2e-6)
    assert got.attention_factor == pytest.approx(case["attention_factor"], rel=1e-6)
    assert got.rotary_dim == 2 * len(case["inv_freq"])


@pytest.mark.parametrize("name", ["linear", "dynamic longer", "yarn", "llama3"])
@pytest.mark.parametrize("type_key", ["type", "rope_type"])
def test_configs_before_transformers_5_mean_the_same(name: str, type_key: str) -> None:
    case = REFERENCES[name]
    scaling = dict(case["rope_parameters"])
    theta = scaling.pop("rope_theta")
    scaling[type_key] = scaling.pop("rope_type")
    got = spec(hf({"rope_theta": theta, "rope_scaling": scaling}), case.get("max_model_len"))
    np.testing.assert_allclose(got.inv_freq, case["inv_freq"], rtol=2e-6)


def test_default_is_the_plain_geometric_series() -> None:
    got = spec(hf({"rope_theta": 500_000}))
    np.testing.assert_allclose(got.inv_freq, 500_000.0 ** (-np.arange(32) / 32), rtol=1e-7)
    assert got.attention_factor == 1.0
    assert got.sections is None
    assert not got.interleaved


def test_a_missing_base_is_the_family_s_and_null_counts_as_missing() -> None:
    config = {"rope_theta": None, "rope_scaling": None, "rope_parameters": None}
    assert hf(config).theta == 10_000.0
    assert hf(config, default_theta=500_000.0).theta == 500_000.0


def test_partial_rotation_takes_the_factor_from_either_place() -> None:
    for config in ({"partial_rotary_factor": 0.25}, {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}}):
        got = spec(hf(config))
        np.testing.assert_allclose(got.inv_freq, 10_000.0 ** (-np.arange(8) / 8), rtol=1e-7)


def test_sections_of_mrope_are_kept() -> None:
    assert spec(hf({"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}})).sections == (8, 12, 12)
    assert spec(gguf({"dimension_sections": np.array([8, 12, 12, 0], np.int32)})).sections == (8, 12, 12)


DYNAMIC: dict[str, Any] = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4096}


class TestDynamic:
    def test_a_context_within_the_model_s_changes_nothing(self) -> None:
        plain = spec(hf({}))
        for length in (None, 16, 4096):
            np.testing.assert_array_equal(spec(hf(DYNAMIC), length).inv_freq, plain.inv_freq)

    def test_a_longer_context_lowers_all_frequencies_but_the_first(self) -> None:
        plain, longer = spec(hf({})), spec(hf(DYNAMIC), 8192)
        assert longer.inv_freq[0] == 1.0
        assert np.all(longer.inv_freq[1:] < plain.inv_freq[1:])

    def test_the_context_grows_with_what_is_asked_for(self) -> None:
        assert hf(DYNAMIC).max_context() == 4096
        assert hf(DYNAMIC).max_context(100) == 4096
        assert hf(DYNAMIC).max_context(9000) == 9000
        assert hf({}).max_context(1 << 40) == 16_384


def test_yarn_s_context_is_at_least_the_scaled_original() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert hf({"max_position_embeddings": 32_768, "rope_scaling": scaling}).max_context() == 131_072
    assert hf({"max_position_embeddings": 200_000, "rope_scaling": scaling}).max_context() == 200_000


def test_yarn_without_a_factor_takes_the_ratio_of_contexts() -> None:
    scaling = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096}
    assert hf({"rope_scaling": scaling}).factor == 4.0


class TestGguf:
    def test_scaling_equals_the_same_scaling_of_a_config(self) -> None:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 20.0}
        same = {
            "scaling.type": "yarn",
            "scaling.factor": 4.0,
            "scaling.original_context_length": 4096,
            "scaling.yarn_beta_fast": 20.0,
            "freq_base": 1e6,
        }
        ours, theirs = spec(gguf(same)), spec(hf({"rope_theta": 1e6, "rope_scaling": yarn}))
        np.testing.assert_array_equal(ours.inv_freq, theirs.inv_freq)
        assert ours.attention_factor == theirs.attention_factor

    @pytest.mark.parametrize(
        "metadata",
        [{"scaling.type": "linear", "scaling.factor": 4.0}, {"scaling.factor": 4.0}, {"scale_linear": 4.0}],
    )
    def test_a_factor_alone_means_linear(self, metadata: dict[str, Any]) -> None:
        np.testing.assert_array_equal(spec(gguf(metadata)).inv_freq, spec(gguf({})).inv_freq / np.float32(4))

    @pytest.mark.parametrize("metadata", [{}, {"scaling.type": "none"}, {"scaling.type": "linear"}])
    def test_no_factor_means_no_scaling(self, metadata: dict[str, Any]) -> None:
        np.testing.assert_array_equal(spec(gguf(metadata)).inv_freq, spec(hf({})).inv_freq)

    def test_none_switches_a_factor_off(self) -> None:
        got = gguf({"scaling.type": "none", "scaling.factor": 4.0})
        np.testing.assert_array_equal(spec(got).inv_freq, spec(gguf({})).inv_freq)

    def test_frequency_factors_divide(self) -> None:
        factors = np.linspace(1, 8, 32, dtype=np.float32)
        got = gguf({}).spec(interleaved=True, freq_factors=factors)
        np.testing.assert_allclose(got.inv_freq, spec(gguf({})).inv_freq / factors, rtol=1e-6)
        assert got.interleaved

    @pytest.mark.parametrize("factors", [np.ones(31), np.ones((1, 32)), np.zeros(32), np.full(32, np.nan)])
    def test_wrong_frequency_factors(self, factors: np.ndarray) -> None:
        with pytest.raises(ModelLoadError, match="rope_freqs"):
            gguf({}).spec(interleaved=True, freq_factors=factors.astype(np.float32))

    def test_only_the_first_dimensions_rotate(self) -> None:
        assert spec(gguf({"dimension_count": 16})).rotary_dim == 16

    @pytest.mark.parametrize("rope_type", ["longrope", "nonsense"])
    def test_unknown_types_are_named(self, rope_type: str) -> None:
        with pytest.raises(UnsupportedModelError, match=rf"{rope_type}.*none, linear, yarn"):
            gguf({"scaling.type": rope_type})

    @pytest.mark.parametrize(
        ("metadata", "named"),
        [
            ({"freq_base": 0.0}, "freq_base"),
            ({"freq_base": float("nan")}, "freq_base"),
            ({"dimension_count": 66}, "dimension_count"),
            ({"dimension_count": 15}, "dimension_count"),
            ({"scaling.type": "yarn"}, "factor"),
            ({"scaling.factor": 0.5}, "factor"),
            ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_beta_fast": 0.5}, "beta_fast"),
            ({"dimension_sections": np.array([1, 2, 3, 4])}, "dimension_sections"),
        ],
    )
    def test_wrong_values_are_named(self, metadata: dict[str, Any], named: str) -> None:
        with pytest.raises(ModelLoadError, match=named):
            gguf(metadata)


@pytest.mark.parametrize("rope_type", ["longrope", "su", "proportional", 7])
def test_unknown_types_are_named_with_the_supported_ones(rope_type: object) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{rope_type}.*default, linear, dynamic, yarn, llama3"):
        hf({"rope_scaling": {"type": rope_type, "factor": 2.0}})


def test_parameters_by_layer_type_are_refused() -> None:
    nested = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}
    with pytest.raises(UnsupportedModelError, match="layer type"):
        hf({"rope_parameters": nested})


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings"),
        ({"max_position_embeddings": True}, "max_position_embeddings"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": "2"}}, "factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e300}}, "factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}}, "beta_fast"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 0}}, "attention_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0}}, "original_max"),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "base"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.0}, "rotated"),
        ({"partial_rotary_factor": 0.05}, "rotated"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [8, 8, 8]}}, "mrope_section"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [64, -16, -16]}}, "mrope_section"),
    ],
)
def test_wrong_values_are_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        hf(config)


def test_dynamic_needs_more_than_two_rotated_elements() -> None:
    with pytest.raises(ModelLoadError, match="dynamic"):
        hf({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, head_dim=2)
