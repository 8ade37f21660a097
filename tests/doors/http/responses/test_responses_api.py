"""`/v1/responses` of a running server, asked with OpenAI's own client."""

from __future__ import annotations

import json
import socket
import time

import httpx
import openai
import pytest
from pydantic import BaseModel
from translation_parts import CALL, FakeEngine, RoleTemplate, frames, serving, wait_idle

from trivium.config import EngineConfig
from trivium.engine import NativeEngine

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
SHORT = {"input": "Name a colour.", "max_output_tokens": 12, "temperature": 0}


class City(BaseModel):
    name: str
    inhabitants: int


@pytest.fixture(scope="module")
def server(smollm2):
    with (
        NativeEngine.load(EngineConfig(model=smollm2, served_model_name="smollm2", num_threads=1)) as engine,
        serving(engine) as running,
    ):
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def fake():
    """A server whose model thinks, then says what the prompt says after "say ", and its client."""

    def reply(prompt, request, index):
        return "plan</think>" + prompt.rpartition("say ")[2].removesuffix("\nassistant: ")

    with (
        FakeEngine(reply, chat_template=RoleTemplate(), reasoning_parser="qwen3", max_waiting=4) as engine,
        serving(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def outline(response):
    """A response without what differs from one to the next."""
    told = response.to_dict() if hasattr(response, "to_dict") else response
    items = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in told["output"]]
    return {**{name: told[name] for name in ("status", "usage", "incomplete_details")}, "output": items}


def test_an_answer(client):
    response = client.responses.create(model="smollm2", **SHORT, metadata={"a": "b"})
    assert response.object == "response"
    assert response.id.startswith("resp_")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.model, response.metadata, response.temperature) == ("smollm2", {"a": "b"}, 0)
    assert response.to_dict()["store"] is False
    (item,) = response.output
    assert item.content[0].text == response.output_text
    usage = response.usage
    assert (usage.output_tokens, usage.total_tokens) == (12, usage.input_tokens + 12)


def test_a_stream_tells_the_same(client):
    whole = client.responses.create(model="smollm2", **SHORT)
    events = list(client.responses.create(model="smollm2", **SHORT, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    told, expected = outline(events[-1].response), outline(whole)
    for usage in (told["usage"], expected["usage"]):
        usage.pop("input_tokens_details")  # the second finds the prompt in the cache
    assert told == expected
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_sdk_follows_a_stream_to_its_end(client):
    choice = {"type": "json_schema", "name": "n", "schema": {"enum": ["red", "green"]}}
    with client.responses.stream(model="smollm2", input="Red or green?", text={"format": choice}, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert json.loads(text) in ("red", "green")
    assert (final.output_text, final.status) == (text, "completed")


def test_parsed_answers(client):
    response = client.responses.parse(model="smollm2", input="Tell of Rome.", text_format=City, temperature=0)
    assert isinstance(response.output_parsed, City)


def test_calls_and_their_results(client):
    items = [{"role": "user", "content": "How is the weather in Paris?"}]
    asked = {"model": "smollm2", "tools": [WEATHER], "temperature": 0}
    response = client.responses.create(**asked, input=items, tool_choice="required", parallel_tool_calls=False)
    (call,) = response.output
    assert (call.type, call.name, response.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    items += [item.to_dict() for item in response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."})
    after = client.responses.create(**asked, input=items, max_output_tokens=5)
    assert after.output_text
    assert after.usage.input_tokens > response.usage.input_tokens


def test_a_named_call_in_a_stream(client):
    asked = {"model": "smollm2", "input": "Weather in Rome?", "tools": [WEATHER], "temperature": 0}
    choice = {"type": "function", "name": "get_weather"}
    with client.responses.stream(**asked, tool_choice=choice) as stream:
        events = list(stream)
        (call,) = stream.get_final_response().output
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert len(deltas) > 1
    assert set(json.loads(call.arguments)) == {"city"}


def test_logprobs(client):
    include = ["message.output_text.logprobs"]
    response = client.responses.create(model="smollm2", **SHORT, include=include, top_logprobs=2)
    rows = response.output[0].content[0].logprobs
    assert "".join(row.token for row in rows) == response.output_text
    assert all(len(row.top_logprobs) == 2 for row in rows)
    streamed = client.responses.create(model="smollm2", **SHORT, include=include, top_logprobs=2, stream=True)
    deltas = [event for event in streamed if event.type == "response.output_text.delta"]
    assert [row.token for event in deltas for row in event.logprobs] == [row.token for row in rows]


def test_prompts_that_were_seen_before_are_told(client):
    asked = {"model": "smollm2", "input": "word " * 300, "max_output_tokens": 1}
    client.responses.create(**asked)
    usage = client.responses.create(**asked).usage
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input[0].content[0].text"),
        ({"tools": [{"type": "function", "parameters": {}}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "parameters": 3}]}, "tools[0].parameters"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "cow"}}}}, "text.format"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"stop": [""]}, "stop[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "word " * 9000}, "input"),
        ({"input": None}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(server, body, param, stream):
    response = httpx.post(f"{server.url}/v1/responses", json={"model": "smollm2", "input": "a", **body, "stream": stream})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param in error["message"]
    assert "messages" not in error["message"]


def test_errors_as_the_sdk_raises_them(client):
    with pytest.raises(openai.NotFoundError, match="gpt-7"):
        client.responses.create(model="gpt-7", input="a")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="smollm2", input="word " * 9000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="web_search"):
        client.responses.create(model="smollm2", input="a", tools=[{"type": "web_search"}])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_client_that_leaves_a_stream_frees_its_place(server):
    asked = {"model": "smollm2", "input": "a", "stream": True, "ignore_eos": True, "max_output_tokens": 4000}
    with httpx.stream("POST", f"{server.url}/v1/responses", json=asked) as response:
        assert next(response.iter_bytes())
    wait_idle(server.engine)


def test_a_client_that_leaves_while_it_waits_frees_its_place(server):
    body = json.dumps({"model": "smollm2", "input": "a", "ignore_eos": True, "max_output_tokens": 4000}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        while not server.engine.stats().running:
            time.sleep(0.01)
    wait_idle(server.engine)


@pytest.mark.parametrize("text", ["hello", CALL, f"text {CALL}", ""])
def test_thought_and_calls(fake, text):
    asked = {"model": "fake", "input": f"say {text}", "tools": [WEATHER]}
    whole = fake.responses.create(**asked)
    events = list(fake.responses.create(**asked, stream=True))
    assert outline(events[-1].response) == outline(whole)
    assert whole.output[0].content[0].text == "plan"
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    kinds = [item.type for item in whole.output]
    assert kinds[0] == "reasoning"
    assert ("function_call" in kinds) == (CALL in text)
    assert whole.output_text == text.removesuffix(CALL).strip()


def test_the_output_of_one_response_is_input_of_the_next(fake):
    items = [{"role": "user", "content": "say a"}]
    first = fake.responses.create(model="fake", input=items)
    items += [item.to_dict() for item in first.output]
    items.append({"role": "user", "content": "say b"})
    assert fake.responses.create(model="fake", input=items).output_text == "b"


def test_a_failure_of_the_engine(fake):
    with pytest.raises(openai.InternalServerError, match="the step failed"):
        fake.responses.create(model="fake", input="say boom")
    body = {"model": "fake", "input": "say boom", "stream": True}
    response = httpx.post(f"{fake.base_url}responses", json=body)
    assert response.status_code == 200
    events = frames(response.content)
    name, event = events[-1]
    assert name == "response.failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "the step failed"}


def test_without_a_model_s_name_and_with_unknown_fields(fake, caplog):
    body = {"input": "say a", "colour": "red"}
    for _ in range(2):
        assert httpx.post(f"{fake.base_url}responses", json=body).status_code == 200
    assert sum("'colour'" in record.getMessage() for record in caplog.records) == 1
