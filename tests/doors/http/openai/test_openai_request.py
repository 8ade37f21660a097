from __future__ import annotations

import re

import pytest
from openai_parts import FakeEngine, RoleTemplate

from trivium.doors.http.openai.request import CHAT, COMPLETIONS, BodyReader
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


def ask(reader, **fields):
    return reader.read(CHAT, {"messages": [{"role": "user", "content": "hi"}], **fields}, "r")


def chat(reader, **fields):
    (request,) = ask(reader, **fields).requests
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
        ({"guided_json_object": True}, "json_object", True),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ("a", "b")),
    ],
)
def test_structured_output(reader, fields, kind, value):
    assert getattr(chat(reader, **fields).sampling.guided, kind) == value
    assert chat(reader, response_format={"type": "text"}).sampling.guided is None


def test_tools_and_template_variables(reader, engine):
    asked = ask(reader, tools=[TOOL], chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert asked.tool_use.mode == "auto"
    assert asked.tool_parser is not None
    assert engine.chat_template.calls[-1] == {"tools": [TOOL], "enable_thinking": False, "reasoning_effort": "low"}
    asked = ask(reader, tools=[TOOL], tool_choice="none")
    assert (asked.tool_use.mode, asked.tool_parser) == ("none", None)
    assert engine.chat_template.calls[-1] == {"tools": None}
    assert ask(reader, tools=[], tool_choice="auto").tool_use.mode == "none"


def test_thought_of_the_prompt():
    template = RoleTemplate()
    with FakeEngine(chat_template=template, reasoning_parser="qwen3") as engine:
        reader = BodyReader(engine)
        assert chat(reader).thinking is True
        asked = reader.read(CHAT, {"messages": [{"role": "user", "content": "<think></think>"}]}, "r")
        assert asked.requests[0].thinking is False
        assert asked.reasoning is not None
    with FakeEngine(chat_template=template) as engine:
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
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "json"),
        ("guided_json", 3),
        ("guided_regex", 3),
        ("guided_choice", "ab"),
        ("tools", [{"name": "x"}]),
        ("tools", "weather"),
        ("tool_choice", "required"),
        ("tool_choice", "any"),
        ("tool_choice", {"type": "function", "function": {"name": "weather"}}),
        ("chat_template_kwargs", [1]),
        ("prompt", "text"),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("functions", [TOOL["function"]]),
        ("function_call", {"name": "weather"}),
        ("modalities", ["text", "audio"]),
        ("parallel_tool_calls", "no"),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "json": "{}"}),
        ("structured_outputs", {"structural_tag": "x"}),
        ("guided_choice", []),
        ("bad_words", "word"),
        ("bad_words", [""]),
        ("include_stop_str_in_output", "yes"),
        ("skip_special_tokens", 0),
        ("prompt_logprobs", -1),
        ("priority", "high"),
        ("priority", 2**40),
        ("cache_salt", 5),
        ("cache_salt", ""),
        ("cache_salt", "x" * 1025),
        ("model", 4),
        ("user", 4),
        ("metadata", "x"),
        ("store", True),
        ("service_tier", "flex"),
        ("reasoning_effort", "much"),
        ("add_generation_prompt", "yes"),
        ("continue_final_message", True),
        ("response_format", {"type": "json_object", "schema": {}}),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [3]),
        ("messages", [{"content": "hi"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": 3}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "assistant", "tool_calls": {}}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "1"}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]),
    ],
)
def test_wrong_fields_are_named(reader, field, value):
    with pytest.raises(RequestError, match=field) as caught:
        chat(reader, **{field: value})
    assert re.match(rf"{field}(?![a-z_])", caught.value.field)
    assert len(str(caught.value)) < 400


def test_names_lead_to_the_place(reader):
    messages = [{"role": "user", "content": "hi"}] * 2 + [{"role": "user", "content": 3}]
    for fields, name in (
        ({"messages": messages}, "messages[2].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": ""}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools[0].function.parameters.type"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format.json_schema.schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ):
        with pytest.raises(RequestError) as caught:
            chat(reader, **fields)
        assert caught.value.field == name


def test_caps(reader, monkeypatch):
    message = {"role": "user", "content": "hi"}
    for fields, name in (
        ({"messages": [message] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 2**21}] * 3}, "messages"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"bad_words": ["x"] * 257}, "bad_words"),
    ):
        with pytest.raises(RequestError, match=r"at most \d+|from 1 to 1024") as caught:
            chat(reader, **fields)
        assert caught.value.field == name
    for prompt in (["x"] * 513, "x" * (2**22 + 1)):
        with pytest.raises(RequestError, match="at most") as caught:
            completion(reader, prompt)
        assert caught.value.field == "prompt"


def test_two_kinds_of_structure(reader):
    with pytest.raises(RequestError, match="exactly one"):
        chat(reader, guided_regex="a", response_format={"type": "json_object"})
    with pytest.raises(RequestError, match="tool_choice and guided_regex"):
        chat(reader, guided_regex="a", tools=[TOOL], tool_choice="required")
    assert chat(reader, guided_regex="a", tools=[TOOL]).sampling.guided.regex == "a"


@pytest.mark.parametrize("prompt", [None, "", [], {}, 3, [None], [[]], [["a"]], [[1.5]], [1, "a"]])
def test_wrong_prompts(reader, prompt):
    with pytest.raises(RequestError) as caught:
        completion(reader, prompt)
    assert caught.value.field.startswith("prompt")


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
        "store": False,
        "service_tier": "default",
        "length_penalty": 1,
    }
    assert chat(reader, **fields).sampling == chat(reader).sampling
    assert chat(reader, n=3, best_of=3).n == 3
    assert caplog.messages == []


def test_unknown_fields_are_ignored_and_logged_once(reader, caplog):
    for _ in range(2):
        fields = {"wibble": 1, "stream": True, "stream_options": {"wobble": 2}}
        assert chat(reader, **fields).sampling == chat(reader).sampling
    completion(reader, wibble=False)
    assert caplog.messages == [f"unknown field {name!r} of {CHAT}: ignored" for name in ("wibble", "stream_options.wobble")]


def test_fields_of_the_request(reader):
    asked = ask(reader, priority=-3, cache_salt="tenant", stream=True, stream_options={"include_usage": True})
    (request,) = asked.requests
    assert (request.priority, request.cache_salt, request.timeout, request.streamed) == (-3, "tenant", None, True)
    assert (asked.stream, asked.include_usage, asked.continuous_usage) == (True, True, False)
    assert reader.read(CHAT, {"messages": [{"role": "user", "content": "x"}]}, "r", 5.0).requests[0].arrival_time == 5.0


def test_further_sampling_fields(reader):
    fields = {"bad_words": ["no"], "include_stop_str_in_output": True, "skip_special_tokens": False, "prompt_logprobs": 2}
    sampling = chat(reader, **fields).sampling
    assert (sampling.bad_words, sampling.include_stop, sampling.skip_special_tokens) == (("no",), True, False)
    assert sampling.prompt_logprobs == 2
    with pytest.raises(RequestError, match="prompt_logprobs cannot be streamed"):
        chat(reader, stream=True, prompt_logprobs=1)


def test_limits_of_the_server(engine):
    reader = BodyReader(engine, max_input_len=20, max_output_len=7, timeout=3.5)
    assert chat(reader).sampling.max_tokens == 7
    assert chat(reader, max_tokens=5).sampling.max_tokens == 5
    assert chat(reader, max_tokens=50).sampling.max_tokens == 7
    assert completion(reader).requests[0].sampling.max_tokens == 7
    assert (chat(reader).timeout, chat(reader).streamed) == (3.5, False)
    with pytest.raises(PromptTooLongError, match="at most 20") as caught:
        completion(reader, "x" * 21)
    assert caught.value.field == "prompt"
    with pytest.raises(PromptTooLongError) as caught:
        chat(reader, messages=[{"role": "user", "content": "x" * 600}])
    assert caught.value.field == "messages"


def test_echo(reader):
    asked = completion(reader, ["ab", [99, 100]], echo=True, logprobs=2, max_tokens=0)
    assert asked.echoes == ("ab", "cd")
    assert asked.prompt_only
    assert [request.sampling.prompt_logprobs for request in asked.requests] == [2, 2]
    assert asked.requests[0].sampling.max_tokens == 1
    assert not asked.prompt_logprobs
    with pytest.raises(RequestError, match="max_tokens must be an integer >= 1"):
        completion(reader, max_tokens=0)


def test_the_last_message_goes_on(reader):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    assert text(chat(reader, messages=messages, continue_final_message=True)) == "user: hi\nassistant: Well, "
    assert text(chat(reader, messages=messages, add_generation_prompt=False)) == "user: hi\nassistant: Well, \n"
    with pytest.raises(RequestError, match="add_generation_prompt must be false"):
        chat(reader, messages=messages, continue_final_message=True, add_generation_prompt=True)


@pytest.mark.parametrize("name", ["messages", "tools", "self"])
def test_template_variables_are_no_arguments(reader, engine, name):
    chat(reader, chat_template_kwargs={name: []})
    assert engine.chat_template.calls[-1][name] == []
