"""`/v1/messages` of a running server, asked with Anthropic's own client."""

from __future__ import annotations

import json
import socket
import time

import anthropic
import httpx
import pytest
from pydantic import BaseModel
from translation_parts import CALL, FakeEngine, RoleTemplate, frames, serving, wait_idle

from trivium.config import EngineConfig
from trivium.engine import NativeEngine

HELLO = [{"role": "user", "content": "Name a colour."}]
WEATHER = {
    "name": "get_weather",
    "description": "the weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
GREEDY = {"extra_body": {"temperature": 0}}
SHORT = {"model": "smollm2", "max_tokens": 12, "messages": HELLO, **GREEDY}


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
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def fake():
    """A server whose model thinks, then says what the prompt says after "say ", and its client."""

    def reply(prompt, request, index):
        requests.append(request)
        return "plan</think>" + prompt.rpartition("say ")[2].removesuffix("\nassistant: ")

    requests = []
    with (
        FakeEngine(reply, chat_template=RoleTemplate(), reasoning_parser="qwen3") as engine,
        serving(engine) as running,
        anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as client,
    ):
        client.requests = requests
        yield client


def outline(message):
    """A message without what differs from one to the next."""
    blocks = [{name: value for name, value in block.to_dict().items() if name != "id"} for block in message.content]
    usage = message.usage
    return blocks, message.stop_reason, usage.output_tokens, usage.input_tokens + usage.cache_read_input_tokens


def say(text, **more):
    return {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": f"say {text}"}], **more}


def test_an_answer(client):
    message = client.messages.create(**SHORT)
    assert message._request_id
    assert (message.type, message.role, message.model) == ("message", "assistant", "smollm2")
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    (block,) = message.content
    assert block.text
    assert message.usage.output_tokens == 12


def test_a_stream_tells_the_same(client):
    whole = client.messages.create(**SHORT)
    with client.messages.stream(**SHORT) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert outline(final) == outline(whole)
    assert final.usage.output_tokens == 12


def test_stop_sequences(client):
    text = client.messages.create(**SHORT).content[0].text
    word = text.split()[2]
    message = client.messages.create(**SHORT, stop_sequences=["no such text", word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert message.content[0].text == text[: text.index(word)]


def test_an_answer_that_has_begun_is_continued(client):
    text = client.messages.create(**SHORT).content[0].text
    begun, rest = text[: text.index(" ", 5)], text[text.index(" ", 5) :]
    again = client.messages.create(**{**SHORT, "messages": [*HELLO, {"role": "assistant", "content": begun}]})
    assert again.content[0].text.startswith(rest)


def test_parsed_answers(client):
    asked = {"model": "smollm2", "max_tokens": 200, "messages": HELLO, **GREEDY}
    assert isinstance(client.messages.parse(**asked, output_format=City).parsed_output, City)


def test_tools_and_their_results(client):
    messages = [{"role": "user", "content": "How is the weather in Paris?"}]
    asked = {"model": "smollm2", "max_tokens": 100, "tools": [WEATHER], **GREEDY}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = client.messages.create(**asked, messages=messages, tool_choice=choice)
    (use,) = message.content
    assert (use.type, use.name, message.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert use.input["city"] in ("Paris", "Rome")
    messages += [message.to_param()]
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "It is sunny."}]})
    after = client.messages.create(**asked, messages=messages)
    assert after.content
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > message.usage.input_tokens


def test_a_chosen_tool_in_a_stream(client):
    messages = [{"role": "user", "content": "Weather in Rome?"}]
    asked = {"model": "smollm2", "max_tokens": 100, "messages": messages, "tools": [WEATHER], **GREEDY}
    with client.messages.stream(**asked, tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        events = list(stream)
        final = stream.get_final_message()
    parts = [event.partial_json for event in events if event.type == "input_json"]
    assert len(parts) > 1
    assert json.loads("".join(parts)) == final.content[0].input
    assert final.stop_reason == "tool_use"


def test_tokens_are_counted_as_they_are_used(client):
    asked = {"model": "smollm2", "messages": HELLO, "system": "Be brief.", "tools": [WEATHER]}
    count = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens
    long = [{"role": "user", "content": "word " * 9000}]
    assert client.messages.count_tokens(model="smollm2", messages=long).input_tokens > 9000


def test_prompts_that_were_seen_before_are_told(client):
    asked = {"model": "smollm2", "max_tokens": 1, "messages": [{"role": "user", "content": "word " * 300}]}
    first = client.messages.create(**asked).usage
    again = client.messages.create(**asked).usage
    assert again.cache_read_input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HELLO, {"role": "assistant", "content": ""}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"tools": [{**WEATHER, "name": 3}]}, "tools[0].name"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "cow"}}}}, "output_config.format"),
        ({"system": 3}, "system"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(server, body, field, stream):
    asked = {"model": "smollm2", "max_tokens": 5, "messages": HELLO, **body, "stream": stream}
    response = httpx.post(f"{server.url}/v1/messages", json=asked)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert field in told["error"]["message"]
    if body.keys() & {"max_tokens", "stop_sequences", "temperature"} or stream:
        return
    count = httpx.post(f"{server.url}/v1/messages/count_tokens", json=asked)
    assert count.status_code == (200 if "word" in str(body) else 400)


def test_errors_as_the_sdk_raises_them(client):
    with pytest.raises(anthropic.NotFoundError, match="claude-9"):
        client.messages.create(**{**SHORT, "model": "claude-9"})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="claude-9", messages=HELLO)
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**SHORT, "messages": []})
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="web_search"):
        client.messages.create(**SHORT, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**SHORT, "max_tokens": 0}, stream=True)


def test_a_client_that_leaves_a_stream_frees_its_place(server):
    asked = {"model": "smollm2", "max_tokens": 4000, "messages": HELLO, "stream": True, "temperature": 1}
    with httpx.stream("POST", f"{server.url}/v1/messages", json=asked) as response:
        assert next(response.iter_bytes())
    wait_idle(server.engine)


def test_a_client_that_leaves_while_it_waits_frees_its_place(server):
    body = json.dumps({"model": "smollm2", "max_tokens": 4000, "messages": HELLO, "temperature": 1}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    before = server.engine.stats().steps
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        while server.engine.stats().steps == before:
            time.sleep(0.01)
    wait_idle(server.engine)


@pytest.mark.parametrize("text", ["hello", CALL, f"text {CALL}"])
def test_thought_and_tools(fake, text):
    asked = say(text, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 50})
    whole = fake.messages.create(**asked)
    with fake.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert outline(final) == outline(whole)
    assert whole.content[0].thinking == "plan"
    assert whole.usage.output_tokens_details.thinking_tokens > 0
    assert [(one.sampling.reasoning_max_tokens, one.streamed) for one in fake.requests] == [(50, False), (50, True)]
    used = CALL in text
    assert (whole.content[-1].type, whole.stop_reason) == (("tool_use", "tool_use") if used else ("text", "end_turn"))
    if used:
        assert whole.content[-1].input == {"city": "Paris"}


def test_thought_that_is_not_to_be_shown(fake):
    message = fake.messages.create(**say("a", thinking={"type": "adaptive", "display": "omitted"}))
    assert [(block.type, block.to_dict().get("thinking")) for block in message.content] == [("thinking", ""), ("text", None)]


def test_a_message_is_input_of_the_next(fake):
    first = fake.messages.create(**say("a"))
    messages = [*say("a")["messages"], first.to_param(), {"role": "user", "content": "say b"}]
    assert fake.messages.create(**{**say("b"), "messages": messages}).content[-1].text == "b"


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_know(fake):
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        fake.messages.create(**say("a" * 100_000))


def test_a_failure_of_the_engine(fake):
    with pytest.raises(anthropic.InternalServerError, match="the step failed"):
        fake.messages.create(**say("boom"))
    with pytest.raises(anthropic.APIStatusError, match="the step failed"), fake.messages.stream(**say("boom")) as stream:
        list(stream)
    response = httpx.post(f"{fake.base_url}/v1/messages", json=say("boom", stream=True))
    assert response.status_code == 200
    name, event = frames(response.content)[-1]
    assert (name, event["error"]["type"]) == ("error", "api_error")


def test_unknown_fields_are_logged_once(fake, caplog):
    for _ in range(2):
        assert httpx.post(f"{fake.base_url}/v1/messages", json=say("a", colour="red")).status_code == 200
    assert sum("'colour'" in record.getMessage() for record in caplog.records) == 1
