"""Every wrong value that the APIs' texts name, over raw sockets: an error in the API's form that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bad_days_parts import REQUESTS, ask_json, bad_day, error_of

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"

INFER_PARAMETERS: dict[str, list[Any]] = {
    "temperature": [0, 0.0, -1, 1e-6, 1e-7, 5e-324, "1", True, [], {}],
    "top_k": [0, -1, 2**31, 2**64, 10.0, 1.5, "5", True, [1]],
    "top_p": [0, 1, 1.0, 1.5, -0.1, 1e-6, "0.5", True],
    "typical_p": [0, 0.0, 1.1, -1, "x", True],
    "do_sample": [0, 1, "true", [], 1.0],
    "seed": [0, -1, 2**64, 2**70, 1.0, "1", True],
    "repetition_penalty": [0, 0.0, -1, "1", True],
    "watermark": [0, 1, "x"],
    "priority": [0, 6, -1, 2.0, "1", True],
    "max_new_tokens": [0, -1, 2**31, 2**64, 1.0, "1", True],
    "timeout": [0, 3601, -1, 1.5, 1e300, "1", True],
    "details": [0, 1, "true", {}],
}
INPUTS: list[Any] = [
    None,
    "",
    [],
    1,
    1.5,
    True,
    {},
    {"type": "text", "text": "a"},
    [1],
    ["a"],
    [None],
    [[]],
    [{}],
    [{"type": "text"}],
    [{"type": "text", "text": None}],
    [{"type": "text", "text": 1}],
    [{"type": "text", "text": ["a"]}],
    [{"type": "nothing", "nothing": "a"}],
    [{"type": 1, "text": "a"}],
    [{"text": "a", "image_url": "b"}],
    [{"type": "image_url", "text": "a"}],
    [{"type": "image_url", "image_url": "/data/multimodal_inputs/a.png"}],
    [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/a.png"}}],
    [{"type": "video_url", "video_url": "file:///etc/passwd.mp4"}],
    [{"type": "audio_url", "audio_url": "data:audio/mpeg;base64,AAAA"}],
    [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b.png"}],
    [{"type": "image_url", "image_url": "b.png"}] * 21,
    [{"type": "text", "text": "a" * 2**21}] * 3,
    "a" * (2**22 + 1),
]
INPUT_IDS: list[Any] = [None, [], "abc", 1, {}, [-1], [1.0], ["1"], [True], [None], [[1]], [1048577], [2**63], [1] * 1048577]

SAMPLING: dict[str, list[Any]] = {
    "temperature": [-0.1, 2.1, 1e308, "1", True, [], {}],
    "top_p": [-0.1, 1.1, "1", True],
    "top_k": [-2, 1.5, "1", True],
    "min_p": [-0.1, 1.1, "1", True],
    "repetition_penalty": [0, -1, "1", True],
    "presence_penalty": [-2.1, 2.1, "1", True],
    "frequency_penalty": [-2.1, 2.1, "1", True],
    "max_tokens": [-1, 1.5, "1", True],
    "min_tokens": [-1, 1.5, "1", True],
    "n": [0, -1, 129, 1.5, "1", True],
    "seed": [1.5, 2**64, "1", True],
    "stop": [1, True, {}, [1], [None], ["a"] * 33, "a" * 1025, [""]],
    "stop_token_ids": [1, "a", ["a"], [1.5], [-1], [True], [10**6]],
    "ignore_eos": [1, "true"],
    "logit_bias": [[], "a", {"a": 1}, {"1": 101}, {"1": -101}, {"1": "1"}, {"-1": 1}, {"1.5": 1}, {"999999": 1}, {"9" * 30: 1}],
    "stream": [1, "true", []],
    "priority": [1.5, "1", True, 2**70],
    "guided_regex": [1, [], "(", "(" * 5000],
    "guided_choice": [1, "a", [], [1]],
    "guided_json": [1, []],
    "guided_grammar": [1, "start: nothing_there"],
    "response_format": [
        1,
        "json_object",
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
    ],
    "model": [1, [], True],
}
CHAT_FIELDS: dict[str, list[Any]] = {
    "messages": [
        None,
        [],
        "a",
        {},
        [1],
        ["a"],
        [{}],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": {"text": "a"}}],
        [{"role": "user", "content": [1]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}],
        [{"role": "user", "content": "a"}] * 4097,
        [{"role": "user", "content": "a" * 2**21}] * 3,
    ],
    "max_completion_tokens": [-1, 1.5, "1", True],
    "logprobs": [1, "true"],
    "top_logprobs": [-1, 21, 1.5, "1", 1],  # the last without logprobs
    "tools": [1, "a", {}, [1], [{}], [{"type": "function"}], [{"type": "function", "function": {}}], [{"type": "nothing"}]],
    "tool_choice": [1, "sometimes", {}, {"type": "function"}, {"type": "function", "function": {"name": "unknown"}}],
    "chat_template_kwargs": [1, "a", []],
    "stream_options": [1, "a", {"include_usage": 1}],
    "parallel_tool_calls": [1, "true"],
}
COMPLETION_FIELDS: dict[str, list[Any]] = {
    "prompt": [None, [], 1, 1.5, True, {}, [[]], [1, "a"], [1.5], [-1], [10**6], [None], ["a"] * 513, "a" * (2**22 + 1)],
    "logprobs": [-1, 1.5, "1", True, 10**6],
    "echo": [1, "true"],
    "suffix": ["a", 1],
    "best_of": [0, 129, 1.5, "1"],
}
RESPONSES_FIELDS: dict[str, list[Any]] = {
    "input": [
        None,
        1,
        {},
        [1],
        [{}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "input_image"}]}],
    ],
    "max_output_tokens": [0, -1, 1.5, "1"],
    "temperature": [-0.1, 2.1, "1"],
    "top_p": [-0.1, 1.1, "1"],
    "stream": [1, "true"],
    "tools": [1, [1], [{}]],
    "previous_response_id": ["resp_1"],
}
MESSAGES_FIELDS: dict[str, list[Any]] = {
    "messages": [
        None,
        [],
        "a",
        [1],
        [{}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ],
    "max_tokens": [None, 0, -1, 1.5, "1", True],
    "temperature": [-0.1, "1"],
    "top_p": [-0.1, 1.1, "1"],
    "top_k": [-2, 1.5, "1"],
    "stream": [1, "true"],
    "stop_sequences": [1, "a", [1]],
    "tools": [1, [1], [{}]],
    "system": [1, {}],
}
OPENAI = {
    CHAT: SAMPLING | CHAT_FIELDS,
    COMPLETIONS: SAMPLING | COMPLETION_FIELDS,
    RESPONSES: RESPONSES_FIELDS,
}


@pytest.fixture(scope="module")
def server():
    with bad_day() as running:
        yield running


def refused(server, path: str, body: dict[str, Any], status: int, field: str) -> None:
    """An error that names the field, of bounded length, whether or not a stream was asked for."""
    bodies = [body] if "stream" in body else [body, {**body, "stream": True}]
    for each in bodies:
        answer = ask_json(server, path, each)
        what = json.dumps(each)[:300]
        assert answer.status == status, (what, answer)
        message = error_of(path, answer)
        assert field in message, (what, message)
        assert len(answer.body) < 2000, (what, len(answer.body))
        if path in OPENAI:
            param = answer.json()["error"]["param"]
            assert (param or "").partition(".")[0].partition("[")[0] == field, (what, param)


@pytest.mark.parametrize("name", INFER_PARAMETERS)
def test_parameters_of_infer(server, name):
    for value in INFER_PARAMETERS[name]:
        for path in ("/infer", "/infer_token"):
            body = REQUESTS[path]
            refused(server, path, {**body, "parameters": {"details": True, name: value}}, 422, name)


def test_the_rest_of_infer(server):
    for value in INPUTS:
        refused(server, "/infer", {"inputs": value}, 422, "inputs")
    refused(server, "/infer", {}, 422, "inputs")
    refused(server, "/infer", {"inputs": "a", "input_id": [1]}, 422, "inputs")
    for value in INPUT_IDS:
        refused(server, "/infer_token", {"input_id": value}, 422, "input" if value is None else "input_id")
    for value in ([], "a", 1, True):
        refused(server, "/infer", {"inputs": "a", "parameters": value}, 422, "parameters")
    for value in (0, 1, "true", []):
        refused(server, "/infer", {"inputs": "a", "stream": value}, 422, "stream")


def test_what_this_model_cannot_take_is_a_424(server):
    refused(server, "/infer", {"inputs": "a" * 256}, 424, "prompt")
    refused(server, "/infer_token", {"input_id": [300]}, 424, "prompt")
    refused(server, "/infer_token", {"input_id": [1] * 256}, 424, "prompt")


@pytest.mark.parametrize("key", ["temperature", "seed", "timeout", "do_sample", "details"])
def test_null_is_nothing(server, key):
    assert ask_json(server, "/infer", {"inputs": "a", "parameters": {key: None}, "stream": None}).status == 200


def test_a_text_that_looks_like_media_is_text(server):
    text = json.dumps([{"type": "image_url", "image_url": "a.png"}])
    assert ask_json(server, "/infer", {"inputs": text}).status == 200


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, fields in OPENAI.items() for name in fields])
def test_fields_of_openai(server, path, name):
    for value in OPENAI[path][name]:
        refused(server, path, {**REQUESTS[path], name: value}, 400, name)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_options_of_a_stream_need_one(server, path):
    refused(server, path, {**REQUESTS[path], "stream": False, "stream_options": {"include_usage": True}}, 400, "stream_options")


@pytest.mark.parametrize("name", MESSAGES_FIELDS)
def test_fields_of_anthropic(server, name):
    for value in MESSAGES_FIELDS[name]:
        refused(server, MESSAGES, {**REQUESTS[MESSAGES], name: value}, 400, name)


@pytest.mark.parametrize(
    ("path", "name"), [(COMPLETIONS, "prompt"), (CHAT, "messages"), (RESPONSES, "input"), (MESSAGES, "messages")]
)
def test_prompts_longer_than_the_context(server, path, name):
    long = "a" * 300
    value = [{"role": "user", "content": long}] if name == "messages" else long
    answer = ask_json(server, path, {**REQUESTS[path], name: value})
    assert answer.status == 400
    assert "256" in error_of(path, answer)
    if path in OPENAI:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


HEAVY: dict[str, Any] = {
    "guided_regex": ["((a{0,1000}){0,1000}){0,1000}", "(.*a.*b.*c.*d.*e.*f.*g.*){50}", ".{1,100000}x", "a" * 5000],
    "guided_choice": [["x" * 1_000_000], [f"c{i}" for i in range(100_000)]],
    "guided_json": [
        {"$ref": "#"},
        {"enum": [f"v{i}" for i in range(50_000)]},
        {"type": "string", "minLength": 100_000},
        {"type": "array", "minItems": 100_000, "items": {"type": "integer"}},
        {"allOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(500)]},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}},
    ],
    "guided_grammar": [
        'start: start start | "a"',
        "start: A{100000}\nA: /[a-z]{1,1000}/",
        "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(3000)), 'r3000: "a"']),
    ],
}


@pytest.mark.parametrize("name", HEAVY)
def test_structures_that_could_take_for_ever_are_bounded(server, name):
    """Each is compiled, or refused with its name, in moments."""
    for value in HEAVY[name]:
        answer = ask_json(server, COMPLETIONS, {**REQUESTS[COMPLETIONS], name: value})
        if answer.status != 200:
            assert answer.status == 400
            assert name in error_of(COMPLETIONS, answer)
            assert len(answer.body) < 2000
