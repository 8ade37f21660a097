"""The OpenAI API over real sockets, on an engine without a model."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
from openai_parts import FakeEngine, RoleTemplate, read_stream, serving

from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.openai import routes as openai_routes
from trivium.doors.http.responses import routes as responses_routes

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
ANSWER = f"thought</think>Sweet.\n{CALL}\n{CALL}"


def reply(prompt, request, index):
    if "boom" in prompt:
        return "b"
    if "list" in prompt:
        return '</think>[{"name": "f", "parameters": {"x": [1, 2]}}]'
    return ANSWER if "call" in prompt else f"</think>{prompt[-24:-12]}#{index}"


@pytest.fixture(scope="module")
def server():
    with (
        FakeEngine(reply, chat_template=RoleTemplate(), reasoning_parser="qwen3", max_waiting=16) as engine,
        serving(engine) as running,
        httpx.Client(base_url=running.url, timeout=30) as client,
    ):
        yield client


def chat_body(text="hello there", **fields):
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}


def ask(server, path, body):
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_chat(server):
    before = int(time.time())
    body = ask(server, CHAT, chat_body("call f", tools=TOOLS))
    assert body.pop("id").startswith("chatcmpl-")
    assert before <= body.pop("created") <= time.time()
    (choice,) = body.pop("choices")
    calls = choice["message"].pop("tool_calls")
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Sweet.", "reasoning_content": "thought"},
        "logprobs": None,
        "finish_reason": "tool_calls",
        "stop_reason": None,
    }
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"x": 1}'}] * 2
    prompt, completion = len("tool: f\nuser: call f\nassistant: "), len(ANSWER.encode()) + 1
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": len("thought</think>")},
        },
    }


STREAMED = [
    (CHAT, chat_body()),
    (CHAT, chat_body(n=3, logprobs=True, top_logprobs=2)),
    (CHAT, chat_body(max_tokens=11)),
    (CHAT, chat_body("call f", tools=TOOLS, n=2)),
    (CHAT, chat_body("call f", tools=TOOLS, parallel_tool_calls=False, logprobs=True)),
    (CHAT, chat_body("call f", tools=TOOLS, tool_choice="none")),
    (CHAT, chat_body("list", tools=TOOLS, tool_choice="required")),
    (CHAT, chat_body("list", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}, max_tokens=20)),
    (COMPLETIONS, {"prompt": ["one two three four five six", "call"], "n": 2, "max_tokens": 100}),
    (COMPLETIONS, {"prompt": "one two three", "echo": True, "logprobs": 1}),
    (COMPLETIONS, {"prompt": ["one", [97, 98]], "echo": True, "logprobs": 1, "n": 2, "max_tokens": 0}),
]


@pytest.mark.parametrize(("path", "body"), STREAMED)
def test_streams_joined_are_the_answer(server, path, body):
    whole = ask(server, path, body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with server.stream("POST", path, json=body | options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(response.iter_lines())
    streamed = read_stream(events)
    for one in (whole, streamed):
        del one["id"], one["created"]
        for choice in one["choices"]:
            message = choice.get("message", {})
            message.setdefault("reasoning_content", None)
            for call in message.get("tool_calls", ()):
                assert call.pop("id").startswith("chatcmpl-tool-")
    assert streamed == whole


def test_chunks(server):
    with server.stream("POST", CHAT, json=chat_body("call f", tools=TOOLS, stream=True)) as response:
        lines = list(response.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""]
    assert set(lines[1::2]) == {""}
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert "usage" not in chunks[0]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert choices[1]["delta"] == {"reasoning_content": "t"}
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [(call["index"], call["type"], call["function"]) for call in calls] == [
        (0, "function", {"name": "f", "arguments": '{"x": 1}'}),
        (1, "function", {"name": "f", "arguments": '{"x": 1}'}),
    ]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"logprobs": True}),
        (CHAT, {"prompt_logprobs": 0}),
        (COMPLETIONS, {"logprobs": 1}),
        ("/v1/responses", {"include": ["message.output_text.logprobs"]}),
    ],
)
def test_log_probabilities_are_not_written_on_the_loop(server, monkeypatch, path, fields):
    threads = []

    class Recorded(JsonResponse):
        def __init__(self, *args):
            threads.append(threading.current_thread())
            super().__init__(*args)

    for routes in (openai_routes, responses_routes):
        monkeypatch.setattr(routes, "JsonResponse", Recorded)
    body = {"input": "a"} if path == "/v1/responses" else chat_body() if path == CHAT else {"prompt": "a"}
    ask(server, path, body)
    ask(server, path, {**body, **fields})
    without, with_rows = threads
    assert without.name == "http-server"
    assert with_rows is not without


def test_usage_in_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "x", "max_tokens": 3, "stream": True, "stream_options": options}
    with server.stream("POST", COMPLETIONS, json=body) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line and line != "data: [DONE]"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]
    assert chunks[-1]["choices"] == []


def test_an_error_within_a_stream(server):
    with server.stream("POST", CHAT, json=chat_body("boom", stream=True)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert (error["message"], error["type"]) == ("the step failed", "server_error")
    response = server.post(CHAT, json=chat_body("boom"))
    assert response.status_code == 500
    assert response.json()["error"] == error


def test_unforeseen_errors_within_a_stream(server, monkeypatch, caplog):
    def fail(*args):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("trivium.doors.http.openai.pieces._Choice.read", fail)
    with server.stream("POST", CHAT, json=chat_body(stream=True)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert "internal error" in lines[0]
    assert "secret" not in lines[0]
    assert lines[1:] == ["data: [DONE]"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        (CHAT, chat_body(temperature=3), "temperature", None),
        (CHAT, chat_body(stream=True, n=0), "n", None),
        (CHAT, chat_body(n=17), "n", None),
        (CHAT, {"messages": [{"role": "user", "content": 4}]}, "messages[0].content", None),
        (CHAT, chat_body(model=4), "model", None),
        (CHAT, chat_body("x" * 600), "messages", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": "x" * 600, "stream": True}, "prompt", "context_length_exceeded"),
        (COMPLETIONS, {"messages": []}, "messages", None),
        (COMPLETIONS, {}, "prompt", None),
    ],
)
def test_wrong_requests(server, path, body, param, code):
    response = server.post(path, json=body)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert set(error) == {"message", "type", "param", "code"}


def test_models(server):
    (card,) = server.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["owned_by"], card["max_model_len"]) == ("fake", "model", "trivium", 512)
    assert server.get("/v1/models/fake").json() == card
    for response in (server.get("/v1/models/gpt-4"), server.post(CHAT, json=chat_body() | {"model": "gpt-4"})):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
    assert server.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}]}).status_code == 200


def test_names_of_the_model():
    with FakeEngine(chat_template=RoleTemplate(), served_model_name="mine") as engine:
        engine.config.model = "/models/Org/Some.Model-Q4.gguf"
        with serving(engine) as running:
            for name in ("mine", "fake", "/models/Org/Some.Model-Q4.gguf", "Some.Model-Q4.gguf", "Some.Model-Q4"):
                assert httpx.get(f"{running.url}/v1/models/{name}").json()["id"] == "fake"
                response = httpx.post(running.url + COMPLETIONS, json={"model": name, "prompt": "x"})
                assert response.json()["model"] == "fake"


def test_limits_of_the_server():
    with FakeEngine(chat_template=RoleTemplate()) as engine, serving(engine, max_output_len=4, max_input_len=30) as running:
        body = httpx.post(running.url + CHAT, json=chat_body(max_tokens=50)).json()
        assert body["usage"]["completion_tokens"] == 4
        assert body["choices"][0]["finish_reason"] == "length"
        response = httpx.post(running.url + CHAT, json=chat_body("x" * 31))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


def test_full_queue():
    gate = threading.Semaphore(0)
    with (
        FakeEngine(gate=gate, chat_template=RoleTemplate(), max_waiting=2, max_num_seqs=1) as engine,
        serving(engine) as running,
    ):
        results = []
        post = lambda: results.append(httpx.post(running.url + CHAT, json=chat_body(n=2, max_tokens=1)))  # noqa: E731
        thread = threading.Thread(target=post)
        thread.start()
        wait_until(lambda: engine.requests)
        refused = httpx.post(running.url + CHAT, json=chat_body(stream=True))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.release(100)
        thread.join()
        assert results[0].status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(stream):
    gate = threading.Semaphore(0)
    with FakeEngine(gate=gate, chat_template=RoleTemplate()) as engine, serving(engine) as running:
        with httpx.Client(base_url=running.url) as client:
            request = client.build_request("POST", CHAT, json=chat_body(stream=stream))
            if stream:
                gate.release(3)
                response = client.send(request, stream=True)
                lines = response.iter_lines()
                assert next(lines)
                response.close()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.send(client.build_request("POST", CHAT, json=chat_body(), timeout=0.2))
        wait_until(lambda: engine.aborted)
        gate.release(2)
        wait_until(lambda: engine.idle)
        assert engine.aborted == [engine.requests[0].request_id]


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
