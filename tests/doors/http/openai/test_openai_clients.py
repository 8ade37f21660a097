"""The clients that people use, against a running server with the real model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai_parts import serving
from pydantic import BaseModel

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine

MESSAGES = [{"role": "user", "content": "Name a colour."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


class Colour(BaseModel):
    """A colour."""

    red: int
    name: str


@pytest.fixture(scope="module")
def engine(smollm2):
    config = EngineConfig(model=smollm2, served_model_name="smol", max_model_len=1024, max_num_seqs=4, max_waiting=8)
    with NativeEngine.load(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine):
    with serving(engine) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": "smol", "messages": MESSAGES, "max_tokens": 12, "temperature": 0, **fields}
    )


def test_answers_and_streams(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    text = client.completions.create(model="smol", prompt="1, 2, 3,", max_tokens=4, temperature=0)
    parts = client.completions.create(model="smol", prompt="1, 2, 3,", max_tokens=4, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == text.choices[0].text


def test_async_client(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(*(chat(client, seed=seed, temperature=1) for seed in range(5)))
            stream = await chat(client, stream=True)
            return answers, [chunk async for chunk in stream]

    answers, chunks = asyncio.run(run())
    assert len({answer.choices[0].message.content for answer in answers}) > 1
    assert chunks[-1].choices[0].finish_reason == "length"


def test_several_answers_with_logprobs(client):
    answer = chat(client, n=3, temperature=1, seed=1, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        rows = choice.logprobs.content
        assert b"".join(bytes(row.bytes) for row in rows).decode("utf-8", "replace").startswith(choice.message.content)
        assert [len(row.top_logprobs) for row in rows] == [2] * len(rows)
    text = client.completions.create(model="smol", prompt="The sea", max_tokens=2, echo=True, logprobs=1)
    assert text.choices[0].text.startswith("The sea")
    assert text.choices[0].logprobs.token_logprobs[0] is None


def test_tools(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 100}
        (call,) = chat(client, **options).choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        with client.chat.completions.stream(
            model="smol",
            messages=MESSAGES,
            temperature=0,
            max_tokens=100,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
        ) as stream:
            final = stream.get_final_completion()
        (streamed,) = final.choices[0].message.tool_calls
        assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    answer = chat(
        client,
        messages=[
            *MESSAGES,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "Snow"},
        ],
        tools=TOOLS,
    )
    assert answer.choices[0].message.content


def test_structured_output(client):
    answer = client.chat.completions.parse(
        model="smol", messages=MESSAGES, response_format=Colour, temperature=0, max_tokens=100, frequency_penalty=0.5
    )
    assert isinstance(answer.choices[0].message.parsed, Colour)
    answer = chat(client, response_format={"type": "json_object"})
    assert answer.choices[0].message.content.startswith("{")


def test_models(client):
    (model,) = client.models.list()
    assert model.id == "smol"
    assert client.models.retrieve("smol") == model


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, openai.BadRequestError, "messages"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            openai.BadRequestError,
            "tool_choice.function.name",
        ),
        ({"model": "gpt-4", "stream": True}, openai.NotFoundError, "model"),
    ],
)
def test_errors(client, fields, error, param):
    with pytest.raises(error) as caught:
        chat(client, **fields)
    assert caught.value.param == param


def test_full_queue(engine, client):
    with chat(client, n=8, max_tokens=900, stream=True, extra_body={"ignore_eos": True}):
        wait_until(lambda: engine.stats().running == 4)
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client, n=8)
    assert caught.value.response.headers["retry-after"] == "1"
    wait_until(lambda: not engine.stats().running)


def test_a_client_that_goes_away_frees_its_slot(engine, client):
    stream = chat(client, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(lambda: not engine.stats().running)
    assert engine.stats().finished["abort"] >= 1
    assert engine.stats().used_blocks == 0


@pytest.fixture(scope="module")
def langchain(server):
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="smol", temperature=0, max_retries=0)


def test_langchain(langchain):
    answer = langchain.bind(max_tokens=8).invoke([HumanMessage("Name a colour.")])
    parts = list(langchain.bind(max_tokens=8).stream([HumanMessage("Name a colour.")]))
    assert "".join(part.content for part in parts) == answer.content
    assert answer.usage_metadata["output_tokens"] == 8


def test_langchain_knows_a_prompt_that_is_too_long(langchain):
    with pytest.raises(ContextOverflowError, match="prompt is too long: the prompt has"):
        langchain.invoke([HumanMessage("word " * 5000)])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(langchain, method):
    model = langchain.bind(max_tokens=200).with_structured_output(Colour, method=method)
    assert isinstance(model.invoke("Name a colour."), Colour)


def test_langchain_tools(langchain):
    model = langchain.bind_tools(TOOLS, tool_choice="required", parallel_tool_calls=False)
    answer = model.invoke("How is the weather in Rome?", max_tokens=200)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    assert call["args"]["city"] in ("Rome", "Oslo")
    whole = None
    for part in model.stream("How is the weather in Rome?", max_tokens=200):
        whole = part if whole is None else whole + part
    assert whole.tool_calls[0]["args"] == call["args"]


@pytest.mark.parametrize("stream", [True, False])
def test_llm_command(server, tmp_path, stream):
    entry = {"model_id": "local", "model_name": "smol", "api_base": f"{server.url}/v1", "can_stream": stream}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    options = ["-o", "max_tokens", "8", "-o", "temperature", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "llm", "prompt", "-m", "local", *options, "Name a colour."],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
