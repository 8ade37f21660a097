"""The OpenAI API over real sockets, with the real model."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from openai_parts import read_stream, serving

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me about the sea in one sentence."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"City": {"type": "string", "enum": ["Rome", "Oslo"]}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def engine(smollm2):
    with NativeEngine.load(EngineConfig(model=smollm2, max_model_len=1024, max_num_seqs=8)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine):
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def ask(server, path, **body):
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(server, **body):
    return ask(server, CHAT, **{"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **body})


def complete(server, prompt, **body):
    return ask(server, COMPLETIONS, **{"prompt": prompt, "temperature": 0, **body})


@pytest.mark.parametrize(
    "body",
    [
        {"n": 3, "seed": 7, "temperature": 1.0},
        {"n": 2, "seed": 1, "temperature": 1.5, "logprobs": True, "top_logprobs": 3, "stop": ["a", " the"]},
        {
            "seed": 4,
            "stop": "e",
            "include_stop_str_in_output": True,
            "messages": [{"role": "user", "content": "Write 日本 and ü."}],
        },
        {"tools": [WEATHER, TIME], "tool_choice": "required", "max_tokens": 80, "seed": 3, "temperature": 1.0, "n": 2},
        {"tools": [WEATHER, TIME], "seed": 5, "temperature": 0.8},
        {"response_format": {"type": "json_object"}, "seed": 2, "temperature": 1.0},
    ],
)
def test_streams_joined_are_the_answer(server, body):
    body = {"messages": MESSAGES, "max_tokens": 40, **body}
    whole = ask(server, CHAT, **body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with server.stream("POST", CHAT, json=body | options) as response:
        streamed = read_stream(response.iter_lines())
    for one in (whole, streamed):
        del one["id"], one["created"], one["usage"]["prompt_tokens_details"]
        for choice in one["choices"]:
            choice["message"]["content"] = choice["message"]["content"] or ""
            for call in choice["message"].get("tool_calls", ()):
                del call["id"]
    assert streamed == whole


def test_seed(server):
    body = {"temperature": 1.0, "seed": 42, "n": 2}
    first, second = (chat(server, **body)["choices"] for _ in range(2))
    assert first == second
    assert first[0]["message"] != first[1]["message"]
    assert chat(server, temperature=1.0, seed=43)["choices"] != first[:1]


def test_stop_and_length(engine, server):
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=30, stop=[" 7"])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" 5, 6,", "stop", " 7")
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=30, stop=[" 7"], include_stop_str_in_output=True)["choices"]
    assert choice["text"] == " 5, 6, 7"
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=2)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    (end,) = engine.tokenizer.encode(",")
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=30, stop_token_ids=[end])["choices"]
    assert (choice["text"], choice["stop_reason"]) == (" 5", end)


def test_logprobs(server):
    body = chat(server, logprobs=True, top_logprobs=2, messages=[{"role": "user", "content": "Say: 日本 ü"}])
    (choice,) = body["choices"]
    rows = choice["logprobs"]["content"]
    assert len(rows) == body["usage"]["completion_tokens"]
    data = b"".join(bytes(row["bytes"]) for row in rows)
    assert data.decode("utf-8", "replace").startswith(choice["message"]["content"])
    for row in rows:
        assert len(row["top_logprobs"]) == 2
        assert row["top_logprobs"][0]["logprob"] >= row["logprob"]
        assert {"token", "logprob", "bytes"} == set(row["top_logprobs"][0])


def test_echo(server):
    prompt = "The sea is blue, süß"
    (choice,) = complete(server, prompt, max_tokens=4, echo=True, logprobs=1)["choices"]
    logprobs = choice["logprobs"]
    text = choice["text"]
    assert text.startswith(prompt)
    assert logprobs["token_logprobs"][0] is None
    assert len({len(column) for column in logprobs.values()}) == 1
    for token, begin in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[begin : begin + len(token)] == token
    (plain,) = complete(server, prompt, max_tokens=4, logprobs=1)["choices"]
    assert text == prompt + plain["text"]
    assert logprobs["token_logprobs"][-4:] == pytest.approx(plain["logprobs"]["token_logprobs"])
    body = complete(server, prompt, max_tokens=0, echo=True, logprobs=1)
    assert body["choices"][0]["text"] == prompt
    assert body["choices"][0]["logprobs"]["tokens"] == logprobs["tokens"][:-4]
    assert body["usage"]["completion_tokens"] == 0


def test_prompt_logprobs(server):
    body = chat(server, prompt_logprobs=1, max_tokens=1)
    rows = body["prompt_logprobs"]
    assert len(rows) == body["usage"]["prompt_tokens"]
    assert rows[0] is None
    assert all({"logprob", "rank", "decoded_token"} == set(score) for row in rows[1:] for score in row.values())
    assert any(score["rank"] == 1 for score in rows[1].values())


def test_logit_bias_and_bad_words(engine, server):
    (five,) = engine.tokenizer.encode(" 5")[-1:]
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=3, bad_words=["5"])["choices"]
    assert "5" not in choice["text"]
    (choice,) = complete(server, "1, 2, 3, 4,", max_tokens=3, logit_bias={str(five): -100})["choices"]
    assert "5" not in choice["text"]
    (choice,) = complete(server, "The sea is", max_tokens=3, logit_bias={str(five): 100})["choices"]
    assert choice["text"].replace(" ", "") == "555"


def test_what_forbids_all_that_the_structure_allows_is_the_clients_mistake(server):
    starts = [server.post("/tokenize", json={"prompt": start}).json()["tokens"] for start in ("y", "ye", "yes")]
    body = {"messages": MESSAGES, "guided_regex": "yes!?", "max_tokens": 8}
    for fields, name in (
        ({"bad_words": ["y", "ye", "yes"]}, "bad_words"),
        ({"min_tokens": 3, "stop_token_ids": [tokens[0] for tokens in starts]}, "stop_token_ids"),
    ):
        for stream in (False, True):
            response = server.post(CHAT, json={**body, **fields, "stream": stream})
            if stream:
                *_, error, done = [line.removeprefix("data: ") for line in response.text.split("\n\n")[:-1]]
                assert (response.status_code, done) == (200, "[DONE]")
            else:
                error = response.text
                assert response.status_code == 400, error
            error = json.loads(error)["error"]
            assert (error["param"], error["type"]) == (name, "invalid_request_error")
            assert name in error["message"]


def test_structured_output(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for fields in ({"response_format": wanted}, {"guided_json": schema}, {"structured_outputs": {"json": schema}}):
        assert set(json.loads(chat(server, max_tokens=60, **fields)["choices"][0]["message"]["content"])) == {"n"}
    for fields in ({"guided_choice": ["yes", "no"]}, {"guided_regex": "yes|no"}, {"guided_grammar": 'start: "yes" | "no"'}):
        assert chat(server, **fields)["choices"][0]["message"]["content"] in ("yes", "no")
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    for fields, name in (
        ({"response_format": bad}, "response_format"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs"),
        ({"tools": [tool({"type": "object", "properties": {"x": {"type": "nonsense"}}})], "tool_choice": "required"}, "tools"),
    ):
        response = server.post(CHAT, json={"messages": MESSAGES, **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [1, 60000]}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": [60000]}, "stop_token_ids"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"60000": 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_what_the_model_cannot_take(server, path, body, param):
    response = server.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"].startswith(param)) == (param, True)


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_tools_that_must_be_called(server):
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in (named, "required"):
        body = chat(server, messages=messages, tools=[WEATHER], tool_choice=choice, max_tokens=100, parallel_tool_calls=False)
        (answer,) = body["choices"]
        (call,) = answer["message"]["tool_calls"]
        assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")


def test_conversations_with_tools(server):
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "How is the weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Snow, -3 C"},
    ]
    for fields in ({}, {"tools": [WEATHER]}):
        assert chat(server, messages=messages, **fields)["choices"][0]["message"]["content"]


def test_cached_tokens(engine, server):
    prompt = "The quick brown fox jumps over the lazy dog. " * 30
    engine.reset_prefix_cache()
    details = [
        complete(server, prompt, max_tokens=1, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for fields in ({}, {}, {"cache_salt": "tenant"}, {"cache_salt": "tenant"})
    ]
    assert details[0] == details[2] == 0
    assert details[1] == details[3] >= 128


def test_the_last_message_goes_on(server):
    messages = [*MESSAGES, {"role": "assistant", "content": "The sea, the sea, the"}]
    (choice,) = chat(server, messages=messages, continue_final_message=True, max_tokens=2)["choices"]
    assert choice["message"]["content"].startswith(" ")


def test_deadline(engine):
    with serving(engine, request_timeout=0.3) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        body = {"messages": MESSAGES, "max_tokens": 900, "ignore_eos": True}
        response = client.post(CHAT, json=body)
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "timeout"
        with client.stream("POST", CHAT, json=body | {"stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["error"]["code"] == "timeout"


def test_a_client_that_goes_away_frees_its_slot(engine, server):
    body = {"messages": MESSAGES, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with server.stream("POST", CHAT, json=body) as response:
        lines = filter(None, response.iter_lines())
        next(lines)  # tells the role, and may come before the engine's first step
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["content"]
        assert engine.stats().running == 1
    steps = engine.stats().steps
    deadline = time.monotonic() + 20
    while engine.stats().running:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert engine.stats().used_blocks == 0
    assert engine.stats().steps < steps + 300
