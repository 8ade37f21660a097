"""Every field of `SamplingParams`: range, type, default, and what becomes of it in the engine."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.doors.library.sampling_params import MAX_SEED, GuidedDecodingParams, SamplingParams
from trivium.engine.sampling import SamplingOptions
from trivium.errors import EngineError, RequestError


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("n", [1, 2, 100], [0, -1]),
        ("presence_penalty", [-2, 0, 2.0], [-2.01, 2.01, math.nan]),
        ("frequency_penalty", [-2, 0, 2.0], [-2.01, 2.01, math.nan]),
        ("repetition_penalty", [0.01, 1, 5.0], [0, -1, math.nan, math.inf, 10**400]),
        ("temperature", [0, 1e-6, 3.5], [-0.1, math.nan, math.inf, 10**400]),
        ("top_p", [0, 0.5, 1], [-0.1, 1.1, math.nan]),
        ("top_k", [-1, 0, 1, 10**6], [-2]),
        ("min_p", [0, 0.5, 1.0], [-0.1, 1.1, math.nan]),
        ("seed", [None, 0, MAX_SEED], [-1, MAX_SEED + 1]),
        ("max_tokens", [None, 1, 10**6], [0, -1]),
        ("min_tokens", [0, 1, 7], [-1]),
        ("logprobs", [None, -1, 0, 20], [-2]),
        ("prompt_logprobs", [None, -1, 0, 20], [-2]),
        ("penalty_window", [None, 1, 64], [0, -1]),
        ("timeout", [None, 0.5, 60], [0, -1, math.nan, 10**400]),
        ("stop", [None, "x", ["x", "y"], ["a"] * 6], [[""]]),
        ("stop_token_ids", [None, [1, 2], [[1, 2], [3]]], [[-1], [[]], [[-3]]]),
        ("bad_words", [None, ["x"]], [[""]]),
        ("bad_words_token_ids", [None, [5], [[5, 6]]], [[-1], [[]]]),
        ("logprobs_mode", [None, "raw_logits", "processed_logprobs"], ["other"]),
        ("temp_scaled_logprobs", [False], [True]),
        ("top_p_normalized_logprobs", [False], [True]),
        ("best_of", [None, 1], [3]),
    ],
)
def test_ranges(name: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValueError, match=name) as caught:
            SamplingParams(**{name: value})
        assert isinstance(caught.value, EngineError)
        assert caught.value.error_code == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1.5),
        ("n", True),
        ("top_k", 1.5),
        ("top_k", "3"),
        ("do_sample", 1),
        ("do_sample", "yes"),
        ("temperature", "hot"),
        ("top_p", None.__class__),
        ("min_p", None),
        ("seed", 1.0),
        ("stop", 5),
        ("stop", [5]),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["a"]),
        ("bad_words", "word"),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
        ("logits_processors_args", [1]),
        ("logits_processors_args", {"logit_bias": [1, 2]}),
        ("logits_processors_args", {"logit_bias": {"x": 1.0}}),
        ("logits_processors_args", {"logit_bias": {1: "heavy"}}),
        ("logits_processors_args", {"logit_bias": {1: 10**400}}),
        ("guided_decoding", {"regex": "a"}),
    ],
)
def test_wrong_types_are_type_errors(name: str, value: object) -> None:
    with pytest.raises(TypeError) as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, ValueError)


def test_defaults_are_the_documented_ones() -> None:
    params = SamplingParams()
    assert (params.n, params.top_k, params.min_p, params.min_tokens) == (1, 0, 0.0, 1)
    assert params.temperature is params.top_p is params.max_tokens is params.seed is None
    options = params.to_options({})
    assert options == SamplingOptions(temperature=1.0, top_p=0.7, min_tokens=1)


def test_model_defaults_fill_only_what_is_unset() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1, "top_k": 20, "do_sample": True}
    options = SamplingParams(top_p=0.5).to_options(defaults)
    assert (options.temperature, options.top_p, options.repetition_penalty) == (0.6, 0.5, 1.1)
    assert options.top_k == 0  # 0 says "off"; it is not "unset"


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 9e-6}, {"top_p": 0}, {"do_sample": False, "temperature": 2.0}]
)
def test_greedy_forms(params: dict[str, float]) -> None:
    assert SamplingParams(**params).to_options({}).greedy


def test_sampling_is_not_greedy() -> None:
    assert not SamplingParams(do_sample=True).to_options({}).greedy


def test_every_value_reaches_the_engine() -> None:
    guide = GuidedDecodingParams(choice=["yes", "no"])
    params = SamplingParams(
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.3,
        temperature=0.4,
        top_p=0.5,
        top_k=6,
        min_p=0.07,
        seed=8,
        stop="END",
        stop_token_ids=[[1, 2], [3]],
        max_tokens=90,
        reasoning_max_tokens=10,
        min_tokens=11,
        logprobs=12,
        prompt_logprobs=13,
        bad_words=["bad"],
        bad_words_token_ids=[14, 15],
        guided_decoding=guide,
        logits_processors_args={"logit_bias": {"16": 1, 17: -2.5}},
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        penalty_window=18,
        logprobs_mode="raw_logits",
    )
    assert params.to_options({}) == SamplingOptions(
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.3,
        temperature=0.4,
        top_p=0.5,
        top_k=6,
        min_p=0.07,
        seed=8,
        stop=("END",),
        stop_token_ids=(3,),
        stop_token_sequences=((1, 2),),
        max_tokens=90,
        reasoning_max_tokens=10,
        min_tokens=11,
        logprobs=12,
        prompt_logprobs=13,
        bad_words=("bad",),
        bad_words_token_ids=((14,), (15,)),
        guided=guide.to_options(),
        logit_bias={16: 1.0, 17: -2.5},
        ignore_eos=True,
        include_stop=True,
        skip_special_tokens=False,
        penalty_window=18,
        logprobs_mode="raw_logits",
    )


def test_limits_compare_with_max_tokens() -> None:
    with pytest.raises(ValueError, match=r"min_tokens .* max_tokens \(5\)"):
        SamplingParams(min_tokens=6, max_tokens=5)
    with pytest.raises(ValueError, match=r"reasoning_max_tokens .* max_tokens \(5\)"):
        SamplingParams(reasoning_max_tokens=6, max_tokens=5)
    with pytest.raises(TypeError, match="reasoning_max_tokens needs max_tokens"):
        SamplingParams(reasoning_max_tokens=6)


def test_logits_processors_args_take_logit_bias_only() -> None:
    with pytest.raises(ValueError, match="'thinking_budget'; use reasoning_max_tokens"):
        SamplingParams(logits_processors_args={"thinking_budget": 3})


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(TypeError, match="'temprature'; did you mean 'temperature'"):
        SamplingParams(temprature=1.0)
    with pytest.raises(TypeError, match="'max_token'; did you mean 'max_tokens'"):
        SamplingParams.from_dict({"max_token": 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        GuidedDecodingParams(zzz=1)


def test_numpy_numbers_are_numbers() -> None:
    options = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(4), seed=np.uint32(7)).to_options({})
    assert (options.temperature, options.top_k, options.seed) == (0.5, 4, 7)
    assert type(options.top_k) is int
    assert type(options.temperature) is float


def test_changed_fields_are_checked_again() -> None:
    params = SamplingParams()
    params.temperature = -1
    with pytest.raises(ValueError, match="temperature"):
        params.to_options({})


def test_greedy_models_sample_only_when_asked() -> None:
    greedy = {"do_sample": False, "temperature": 0.0}
    assert SamplingParams().to_options(greedy).temperature == 0.0
    assert SamplingParams(temperature=0.5).to_options(greedy).temperature == 0.5
    assert SamplingParams(do_sample=True).to_options(greedy).temperature == 1.0
    assert SamplingParams(do_sample=True).to_options({"temperature": 0.6}).temperature == 0.6


def test_from_optional_fills_the_factory_defaults() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=0.3)
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 0.3, 8192)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(1, 8),
            "temperature": st.floats(0, 5),
            "top_p": st.floats(0, 1),
            "top_k": st.integers(-1, 100),
            "stop": st.lists(st.text(min_size=1), max_size=3),
            "seed": st.integers(0, MAX_SEED),
            "guided_decoding": st.just(GuidedDecodingParams(regex="[a-z]+")),
        },
    )
)
def test_dict_round_trip(values: dict[str, object]) -> None:
    params = SamplingParams(**copy.deepcopy(values))
    assert SamplingParams.from_dict(dataclasses.asdict(params)) == params
    assert SamplingParams.from_dict(values) == params


def test_guided_decoding_takes_one_kind() -> None:
    assert GuidedDecodingParams().to_options() is None
    assert GuidedDecodingParams(json_object=False).to_options() is None
    assert GuidedDecodingParams(json={"type": "object"}).to_options().json == {"type": "object"}
    with pytest.raises(ValueError, match="exactly one of"):
        GuidedDecodingParams(regex="a", json_object=True)
    with pytest.raises(RequestError, match="structural_tag is not supported"):
        GuidedDecodingParams(structural_tag="{}")
    with pytest.raises(ValueError, match="choice"):
        GuidedDecodingParams(choice=[])
    with pytest.raises(TypeError, match="choice"):
        GuidedDecodingParams(choice="yes")
