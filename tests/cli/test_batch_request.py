from __future__ import annotations

import pytest
from cli_parts import FakeEngine, RoleTemplate

from trivium.cli.batch_request import CHAT, COMPLETIONS, BodyReader
from trivium.errors import PromptTooLongError, RequestError

SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(chat_template=RoleTemplate(), generation_defaults={"temperature": 0.6, "top_k": 20}) as engine:
        yield engine


@pytest.fixture
def reader(engine):
    return BodyReader(engine)


def chat(reader, **fields):
    asked = reader.read(CHAT, {"messages": [{"role": "user", "content": "hi"}], **fields}, "r")
    (request,) = asked.requests
    return request


def completion(reader, prompt="hi", **fields):
    return reader.read(COMPLETIONS, {"prompt": prompt, **fields}, "r")


def text(request):
    return bytes(request.prompt_token_ids).decode()


def test_chat(reader):
    request = chat(reader)
    assert text(request) == "user: hi\nassistant: "
    assert request.request_id == "r-0"
    assert request.sampling.max_tokens is None


def test_defaults_are_openais_under_the_models(reader):
    sampling = chat(reader).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 1.0, 20)
    assert chat(reader, temperature=None).sampling.temperature == 0.6


def test_fields_of_the_engine(reader):
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "min_tokens": 2,
        "ignore_eos": True,
        "seed": 7,
    }
    sampling = chat(reader, max_tokens=9, stop_token_ids=[5], logit_bias={"12": -100}, stop=["a", "b"], **fields).sampling
    for name, value in fields.items():
        assert getattr(sampling, name) == value
    assert (sampling.max_tokens, sampling.stop_token_ids) == (9, (5,))
    assert (sampling.logit_bias, sampling.stop) == ({12: -100.0}, ("a", "b"))
    assert chat(reader, stop="end").sampling.stop == ("end",)


def test_max_completion_tokens(reader):
    assert chat(reader, max_completion_tokens=5).sampling.max_tokens == 5
    assert chat(reader, max_completion_tokens=5, max_tokens=9).sampling.max_tokens == 5
    assert completion(reader).requests[0].sampling.max_tokens == 16


def test_logprobs(reader):
    assert chat(reader).sampling.logprobs is None
    assert chat(reader, logprobs=False).sampling.logprobs is None
    assert chat(reader, logprobs=True).sampling.logprobs == 0
    assert chat(reader, logprobs=True, top_logprobs=4).sampling.logprobs == 4
    assert completion(reader, logprobs=3).requests[0].sampling.logprobs == 3


def test_prompts_of_every_form(reader):
    for prompt, texts in (
        ("ab", ["ab"]),
        ([97, 98], ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([[97], [98, 99]], ["a", "bc"]),
        (["a", [98]], ["a", "b"]),
    ):
        asked = completion(reader, prompt, n=2)
        assert [text(request) for request in asked.requests] == texts
        assert asked.num_samples == 2 * len(texts)
    assert [request.request_id for request in asked.requests] == ["r-0", "r-1"]


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "json", SCHEMA),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_json": "{}"}, "json", "{}"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", ("a", "b")),
        ({"guided_grammar": "start: /a/"}, "grammar", "start: /a/"),
    ],
)
def test_structured_output(reader, fields, kind, value):
    assert getattr(chat(reader, **fields).sampling.guided, kind) == value
    assert chat(reader, response_format={"type": "text"}).sampling.guided is None


def test_tools_and_template_variables(reader, engine):
    asked = reader.read(CHAT, {"messages": [], "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}, "r")
    assert asked.has_tools
    assert engine.chat_template.calls[-1] == {"tools": [TOOL], "enable_thinking": False}
    asked = reader.read(CHAT, {"messages": [], "tools": [TOOL], "tool_choice": "none"}, "r")
    assert not asked.has_tools
    assert engine.chat_template.calls[-1] == {"tools": None}


def test_thought_of_the_prompt(engine):
    class Parser:
        def prompt_opens_thought(self, prompt):
            return prompt.endswith("assistant: ")

    assert chat(BodyReader(engine, Parser())).thinking is True
    assert chat(BodyReader(engine)).thinking is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("presence_penalty", -3),
        ("frequency_penalty", 3),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_completion_tokens", -1),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("seed", -1),
        ("seed", "x"),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", [1.5]),
        ("ignore_eos", 1),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [1]),
        ("logprobs", 3),
        ("top_logprobs", 3),
        ("stream", True),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "json"),
        ("guided_json", 3),
        ("guided_regex", 3),
        ("guided_choice", "ab"),
        ("tools", [{"name": "x"}]),
        ("tools", "weather"),
        ("tool_choice", "required"),
        ("chat_template_kwargs", [1]),
        ("prompt", "text"),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("functions", [TOOL["function"]]),
        ("function_call", {"name": "weather"}),
        ("modalities", ["text", "audio"]),
        ("parallel_tool_calls", False),
    ],
)
def test_wrong_fields_are_named(reader, field, value):
    with pytest.raises(RequestError, match=field) as caught:
        chat(reader, **{field: value})
    assert caught.value.field == field


def test_two_kinds_of_structure(reader):
    with pytest.raises(RequestError, match="exactly one"):
        chat(reader, guided_regex="a", response_format={"type": "json_object"})


@pytest.mark.parametrize("prompt", [None, "", [], {}, 3, [None], [[]], [["a"]], [[1.5]], [1, "a"]])
def test_wrong_prompts(reader, prompt):
    with pytest.raises(RequestError) as caught:
        completion(reader, prompt)
    assert caught.value.field == "prompt"


def test_fields_of_the_other_kind(reader):
    with pytest.raises(RequestError, match="'messages' is no field of /v1/completions"):
        completion(reader, messages=[])
    with pytest.raises(RequestError, match="messages must be given"):
        reader.read(CHAT, {}, "r")


def test_too_long(reader):
    with pytest.raises(PromptTooLongError):
        completion(reader, "x" * 600)


def test_no_template():
    with FakeEngine() as engine, pytest.raises(RequestError, match="no chat template"):
        chat(BodyReader(engine))


def test_noted_fields_have_no_effect(reader):
    assert chat(reader, model="gpt-4", user="me", metadata={"a": "b"}, stream=False).sampling == chat(reader).sampling


def test_fields_that_ask_for_nothing(reader, caplog):
    fields = {
        "echo": False,
        "suffix": "",
        "best_of": 1,
        "functions": [],
        "function_call": "auto",
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "store": None,
    }
    assert chat(reader, **fields).sampling == chat(reader).sampling
    assert chat(reader, n=3, best_of=3).n == 3
    assert caplog.messages == []


def test_unknown_fields_are_ignored_and_logged_once(reader, caplog):
    for _ in range(2):
        assert chat(reader, store=True, service_tier="auto").sampling == chat(reader).sampling
    completion(reader, store=False)
    assert caplog.messages == [f"unknown field {name!r} of {CHAT}: ignored" for name in ("store", "service_tier")]


@pytest.mark.parametrize("name", ["messages", "tools", "self"])
def test_template_variables_are_no_arguments(reader, engine, name):
    chat(reader, chat_template_kwargs={name: []})
    assert engine.chat_template.calls[-1][name] == []
