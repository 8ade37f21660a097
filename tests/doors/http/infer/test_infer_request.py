"""What the engine is asked: prompts, the rules of sampling, limits, unknown keys."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infer_parts import script_engine

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor
from trivium.doors.http.infer.request import InferReader, InferRequest
from trivium.doors.http.infer.sampling import resolve_sampling
from trivium.doors.http.limits import MAX_PROMPT_CHARS
from trivium.engine.engine import ModelInfo
from trivium.engine.sampling import SamplingOptions
from trivium.errors import PromptTooLongError, RequestError


@pytest.fixture(scope="module")
def engine():
    engine = script_engine("ok")
    yield engine
    engine.shutdown()


def reader(engine, **options) -> InferReader:
    door = HttpDoor(ServerConfig(**options))
    door.attach(SimpleNamespace(engine=engine))
    return InferReader(door)


def read(engine, body: dict[str, Any], **options) -> InferRequest:
    return reader(engine, **options).read(body, "id", 12.5)


def prompt(engine, body: dict[str, Any], **options) -> str:
    return bytes(read(engine, body, **options).request.prompt_token_ids).decode()


@pytest.mark.parametrize("stream", [True, False, None])
def test_the_engine_knows_who_reads_along(engine, stream) -> None:
    assert read(engine, {"inputs": "a", "stream": stream}).request.streamed is bool(stream)


# Prompts


def test_a_string_is_a_plain_prompt(engine) -> None:
    assert prompt(engine, {"inputs": "héllo 你好"}) == "héllo 你好"


@pytest.mark.parametrize("text", ['[{"type": "text", "text": "a"}]', '{"inputs": 1}', "[1, 2]", "null", '"a"', " ", "\n"])
def test_a_string_that_looks_like_json_is_a_prompt_too(engine, text: str) -> None:
    assert prompt(engine, {"inputs": text}) == text


def test_texts_of_a_list_are_joined_with_nothing_between(engine) -> None:
    parts = [{"type": "text", "text": "My name"}, {"text": " is"}, {"type": "text", "text": " Olivier"}]
    assert prompt(engine, {"inputs": parts}) == "My name is Olivier"


@pytest.mark.parametrize(("key", "kind"), [("image_url", "image"), ("video_url", "video"), ("audio_url", "audio")])
def test_media_are_refused_by_a_text_model(engine, key: str, kind: str) -> None:
    with pytest.raises(RequestError, match=f"got {kind}.*takes text only"):
        read(engine, {"inputs": [{"type": "text", "text": "a"}, {"type": key, key: "/data/multimodal_inputs/a.png"}]})


@pytest.mark.parametrize("inputs", ["", [], 5, True, {}, {"text": "a"}, ["a"], [{"type": "text", "text": ""}], [[]]])
def test_wrong_inputs(engine, inputs: object) -> None:
    with pytest.raises(RequestError, match=r"^inputs"):
        read(engine, {"inputs": inputs})


@pytest.mark.parametrize("body", [{}, {"inputs": None}, {"inputs": None, "input_id": None}, {"parameters": {}}])
def test_inputs_must_be_given(engine, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="exactly one of inputs and input_id must be given, got neither"):
        read(engine, body)


def test_not_both(engine) -> None:
    with pytest.raises(RequestError, match="got both"):
        read(engine, {"inputs": "a", "input_id": [1]})


def test_token_ids(engine) -> None:
    assert prompt(engine, {"input_id": list(b"hello")}) == "hello"
    assert prompt(engine, {"input_id": list(b"hello"), "inputs": None}) == "hello"


@pytest.mark.parametrize("ids", [[], "1", 1, {}, [-1], [1048577], [1.0], ["1"], [True], [None], [[1]], [1] * 1048577])
def test_wrong_token_ids(engine, ids: object) -> None:
    with pytest.raises(RequestError, match=r"^input_id") as caught:
        read(engine, {"input_id": ids})
    assert caught.value.field != "prompt_token_ids"


@pytest.mark.parametrize("token", [300, 1048576])
def test_token_ids_outside_of_the_vocabulary_are_the_models_matter(engine, token: int) -> None:
    with pytest.raises(RequestError, match=f"from 0 to 299.*got {token}") as caught:
        read(engine, {"input_id": [1, token]})
    assert caught.value.field == "prompt_token_ids"


def test_characters_of_a_text(engine) -> None:
    """A text of 4 MB is a text, though one that this model has no room for."""
    with pytest.raises(PromptTooLongError):
        read(engine, {"inputs": "a" * (MAX_PROMPT_CHARS // 8)})
    for inputs in ("a" * (MAX_PROMPT_CHARS + 1), [{"text": "a" * MAX_PROMPT_CHARS}, {"text": "a"}]):
        with pytest.raises(RequestError, match=r"inputs must be a text of 1 to 4194304 characters.*got 4194305") as caught:
            read(engine, {"inputs": inputs})
        assert not isinstance(caught.value, PromptTooLongError)


def test_a_text_of_more_than_a_million_tokens(engine) -> None:
    with pytest.raises(RequestError, match="at most 1048576 tokens") as caught:
        read(engine, {"inputs": "a" * 1048577}, infer_truncation="right")
    assert not isinstance(caught.value, PromptTooLongError)


@pytest.mark.parametrize(("options", "most"), [({}, 255), ({"max_input_len": 10}, 10), ({"max_input_len": 1000}, 255)])
def test_tokens_of_a_prompt(engine, options: dict[str, Any], most: int) -> None:
    assert len(prompt(engine, {"inputs": "a" * most}, **options)) == most
    with pytest.raises(PromptTooLongError, match=f"at most {most} tokens, got {most + 1}"):
        read(engine, {"inputs": "a" * (most + 1)}, **options)


@pytest.mark.parametrize(("side", "kept"), [("right", "abcd"), ("left", "efgh")])
def test_truncation(engine, side: str, kept: str) -> None:
    assert prompt(engine, {"inputs": "abcdefgh"}, max_input_len=4, infer_truncation=side) == kept
    assert prompt(engine, {"inputs": "abc"}, max_input_len=4, infer_truncation=side) == "abc"


# What comes with it


def test_defaults(engine) -> None:
    asked = read(engine, {"inputs": "a"})
    request, sampling = asked.request, asked.request.sampling
    assert (request.request_id, request.arrival_time, request.priority, request.timeout) == ("id", 12.5, 0, 600)
    assert (asked.stream, asked.details) == (False, False)
    assert 1 <= sampling.seed < 2**32
    assert sampling == SamplingOptions(temperature=0.0, max_tokens=20, seed=sampling.seed)


def test_null_is_absent(engine) -> None:
    for body in ({"stream": None, "parameters": None}, {"parameters": {"seed": None, "details": None, "unknown": None}}):
        asked = read(engine, {"inputs": "a", **body})
        assert (asked.stream, asked.details) == (False, False)
        assert asked.request.sampling.seed is not None


@pytest.mark.parametrize(("priority", "ours"), [(1, -4), (2, -3), (3, -2), (4, -1), (5, 0)])
def test_priority(engine, priority: int, ours: int) -> None:
    assert read(engine, {"inputs": "a", "parameters": {"priority": priority}}).request.priority == ours


@pytest.mark.parametrize(
    ("given", "limit", "seconds"), [(None, None, 600), (3600, None, 3600), (10, 30.5, 10), (60, 30.5, 30.5), (None, 30.5, 30.5)]
)
def test_timeout(engine, given: int | None, limit: float | None, seconds: float) -> None:
    asked = read(engine, {"inputs": "a", "parameters": {"timeout": given}}, request_timeout=limit)
    assert asked.request.timeout == seconds


@pytest.mark.parametrize(
    ("given", "limit", "tokens"), [(None, None, 20), (2**31 - 1, None, 2**31 - 1), (50, 30, 30), (10, 30, 10), (None, 5, 5)]
)
def test_max_new_tokens(engine, given: int | None, limit: int | None, tokens: int) -> None:
    asked = read(engine, {"inputs": "a", "parameters": {"max_new_tokens": given}}, max_output_len=limit)
    assert asked.request.sampling.max_tokens == tokens


def test_seeds(engine, caplog: pytest.LogCaptureFixture) -> None:
    for seed in (1, 846930886, 2**63 - 1):
        assert read(engine, {"inputs": "a", "parameters": {"seed": seed}}).request.sampling.seed == seed
    assert not caplog.records
    assert read(engine, {"inputs": "a", "parameters": {"seed": 2**64 - 1}}).request.sampling.seed == 2**64 - 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "18446744073709551615 is near the maximum" in caplog.text
    drawn = {read(engine, {"inputs": "a"}).request.sampling.seed for _ in range(20)}
    assert len(drawn) == 20


def test_drawn_seeds_follow_the_engines() -> None:
    engine = script_engine("ok", seed=7)
    draws = [
        [one.read({"inputs": "a"}, "id", 0.0).request.sampling.seed for _ in range(3)]
        for one in (reader(engine), reader(engine))
    ]
    engine.shutdown()
    assert draws[0] == draws[1]


def test_unknown_keys_are_ignored_and_logged_once(engine, caplog: pytest.LogCaptureFixture) -> None:
    body = {
        "inputs": [{"text": "a", "cache": 1}],
        "adapter_id": "None",
        "n": 3,
        "parameters": {"ignore_eos": True, "top_n_tokens": [], "temperature": None},
    }
    one = reader(engine)
    for _ in range(3):
        one.read(body, "id", 0.0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 5
    for name in ("adapter_id", "n", "parameters.ignore_eos", "parameters.top_n_tokens", "inputs[].cache"):
        assert sum(f"unknown key '{name}' " in line for line in told) == 1


def test_a_flood_of_unknown_keys_does_not_fill_the_log(engine, caplog: pytest.LogCaptureFixture) -> None:
    one = reader(engine)
    one.read({"inputs": "a", **{f"key {i}" + "x" * 1000: 1 for i in range(2000)}}, "id", 0.0)
    assert len(caplog.records) == 1000
    assert max(map(len, caplog.messages)) < 150
    assert max(map(len, one._ignored)) == 80


# The rules of sampling


def sampled(
    given: dict[str, Any], defaults: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> SamplingOptions:
    model = ModelInfo("m", "llama", 500, 1000, frozenset(), defaults or {}, config or {})
    return resolve_sampling(given, model, max_tokens=20, seed=1)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"temperature": 0.5}, (0.5, 500, 1.0)),
        ({"top_k": 10}, (1.0, 10, 1.0)),
        ({"top_p": 0.9}, (1.0, 500, 0.9)),
        ({"temperature": 0.5, "top_k": 10, "top_p": 0.9}, (0.5, 10, 0.9)),
        ({"do_sample": True}, (1.0, 500, 1.0)),
        ({"do_sample": True, "top_p": 0.9}, (1.0, 500, 0.9)),
    ],
)
def test_sampling_is_on(given: dict[str, Any], values: tuple[float, int, float]) -> None:
    sampling = sampled(given)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == values


@pytest.mark.parametrize(
    "given", [{}, {"repetition_penalty": 1.1}, {"do_sample": False}, {"do_sample": False, "temperature": 0.5, "top_k": 9}]
)
def test_sampling_is_off(given: dict[str, Any]) -> None:
    sampling = sampled(given)
    assert sampling.greedy
    assert (sampling.top_k, sampling.top_p) == (0, 1.0)
    assert sampling.repetition_penalty == given.get("repetition_penalty", 1.0)


def test_the_model_decides_where_the_request_says_nothing() -> None:
    defaults = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0.1}
    assert sampled({}, defaults) == SamplingOptions(
        temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05, min_p=0.1, max_tokens=20, seed=1
    )
    assert sampled({"temperature": 0.9}, defaults).temperature == 0.9
    assert sampled({"temperature": 0.9}, defaults).top_k == 20
    assert sampled({"repetition_penalty": 1.0}, defaults).repetition_penalty == 1.0
    greedy = sampled({"do_sample": False}, defaults)
    assert greedy.greedy
    assert greedy.repetition_penalty == 1.05


def test_a_model_that_names_values_alone_samples() -> None:
    assert sampled({}, {"temperature": 0.6}).temperature == 0.6
    assert sampled({}, {"repetition_penalty": 1.2}).greedy


def test_a_model_that_is_greedy() -> None:
    """The loader writes `do_sample: false` as a temperature of 0 too."""
    defaults = {"do_sample": False, "temperature": 0.0, "top_p": 0.8}
    assert sampled({}, defaults).greedy
    assert sampled({"do_sample": True}, defaults).temperature == 1.0
    assert sampled({"top_k": 5}, defaults).temperature == 1.0
    assert sampled({"top_k": 5}, defaults).top_p == 0.8


def test_a_models_temperature_of_zero_forces_greedy() -> None:
    assert sampled({"do_sample": True}, {"temperature": 0.0}).greedy
    assert sampled({"top_k": 5}, {"temperature": 0.0}).greedy
    assert not sampled({"temperature": 0.5}, {"temperature": 0.0}).greedy


@pytest.mark.parametrize(
    ("given", "defaults", "config", "top_k"),
    [
        ({"top_k": 499}, {}, {}, 499),
        ({"top_k": 2**31 - 1}, {}, {}, 500),
        ({"top_k": 400}, {"top_k": 20}, {"top_k": 30}, 400),
        ({"do_sample": True}, {"top_k": 20}, {"top_k": 30}, 20),
        ({"do_sample": True}, {}, {"top_k": 30}, 30),
        ({"do_sample": True}, {}, {}, 500),
        ({"do_sample": True}, {"top_k": 0}, {"top_k": 30}, 0),
        ({"do_sample": True}, {"top_k": -1}, {}, 0),
    ],
)
def test_top_k(given: dict[str, Any], defaults: dict[str, Any], config: dict[str, Any], top_k: int) -> None:
    assert sampled(given, defaults, config).top_k == top_k


def test_top_k_of_config_json_does_not_turn_sampling_on() -> None:
    assert sampled({}, {}, {"top_k": 30}).greedy


def test_top_k_is_a_thousand_for_a_large_vocabulary() -> None:
    model = ModelInfo("m", "llama", 50_000, 1000, frozenset())
    assert resolve_sampling({"temperature": 1}, model, max_tokens=1, seed=1).top_k == 1000


# Anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = [
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "do_sample",
    "seed",
    "repetition_penalty",
    "priority",
    "timeout",
    "details",
]
bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.text(max_size=400) | json_values,
        "input_id": st.lists(st.integers(0, 400), max_size=300) | json_values,
        "stream": st.booleans() | json_values,
        "parameters": json_values
        | st.dictionaries(st.sampled_from(names), st.integers(0, 6) | st.floats(0, 2) | st.booleans()),
        "extra": json_values,
    },
)


@given(bodies)
def test_whatever_comes_is_read_or_refused(engine, body: dict[str, Any]) -> None:
    try:
        asked = read(engine, json.loads(json.dumps(body)))
    except RequestError:
        return
    engine.validate(asked.request)


def test_a_hopeless_text_is_refused_before_it_is_tokenized(engine, monkeypatch) -> None:
    encoded = []
    encode = engine.tokenizer.encode_prompt
    monkeypatch.setattr(type(engine.tokenizer), "encode_prompt", lambda self, text: encoded.append(text) or encode(text))
    with pytest.raises(PromptTooLongError, match=r"has 70000 characters and so at least \d+ tokens"):
        read(engine, {"inputs": "x" * 70_000}, max_input_len=100)
    assert not encoded
    with pytest.raises(PromptTooLongError, match="tokens"):
        read(engine, {"inputs": "x" * 7_000}, max_input_len=100)
    assert len(encoded) == 1
