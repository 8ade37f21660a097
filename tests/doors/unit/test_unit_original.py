"""The examples of the protocol's own document, sent as they stand there, on the real model."""

from __future__ import annotations

import json

import pytest
from unit_parts import serving_unit

from trivium.config import EngineConfig
from trivium.engine import NativeEngine

SETUP = """{
  "request_id": "2",
  "work_id": "llm",
  "action": "setup",
  "object": "llm.setup",
  "data": {
    "model": "qwen2.5-0.5B-prefill-20e",
    "response_format": "llm.utf-8.stream",
    "input": "llm.utf-8",
    "enoutput": true,
    "max_token_len": 256,
    "prompt": "You are a knowledgeable assistant capable of answering various questions and providing information."
  }
}"""

SETUP_LINKED = SETUP.replace(
    '"llm.utf-8",\n    "enoutput"', '[\n      "llm.utf-8",\n      "asr.1001",\n      "kws.1000"\n    ],\n    "enoutput"'
)

STREAM = """{
    "request_id": "2",
    "work_id": "llm.1000",
    "action": "inference",
    "object": "llm.utf-8.stream",
    "data": {
        "delta": "What's ur name?",
        "index": 0,
        "finish": true
    }
}"""

PLAIN = """{
    "request_id": "2",
    "work_id": "llm.1000",
    "action": "inference",
    "object": "llm.utf-8",
    "data": "What's ur name?"
}"""

LINK = '{\n  "request_id": "3",\n  "work_id": "llm.1000",\n  "action": "link",\n  "object": "work_id",\n  "data": "kws.1000"\n}'
UNLINK = LINK.replace('"link"', '"unlink"').replace('"3"', '"4"')
PAUSE = '{\n  "request_id": "5",\n  "work_id": "llm.1000",\n  "action": "pause"\n}'
WORK = '{\n  "request_id": "6",\n  "work_id": "llm.1000",\n  "action": "work"\n}'
EXIT = '{\n  "request_id": "7",\n  "work_id": "llm.1000",\n  "action": "exit"\n}'
TASKS = '{\n  "request_id": "2",\n  "work_id": "llm",\n  "action": "taskinfo"\n}'
TASK = '{\n  "request_id": "2",\n  "work_id": "llm.1000",\n  "action": "taskinfo"\n}'


@pytest.fixture(scope="module")
def engine(smollm2):
    # The examples sample, and name no seed: without the engine's own, now and then an answer is a word, or nothing.
    with NativeEngine.load(EngineConfig(model=smollm2, served_model_name="smollm2", num_kv_blocks=128, seed=1)) as engine:
        yield engine


@pytest.fixture
def client(engine):
    names = ["qwen2.5-0.5B-prefill-20e=smollm2"]
    with serving_unit(engine, unit_models=names) as door, door.client() as client:
        yield client


def ask(client, text):
    client.send_bytes(text.encode())
    reply = client.receive()
    created = reply.pop("created")
    assert created > 1_700_000_000
    return reply


def ack(request_id, work_id="llm.1000", **others):
    fields = {"data": "None", "error": {"code": 0, "message": ""}, "object": "None"}
    return fields | {"request_id": request_id, "work_id": work_id} | others


def test_the_examples(client):
    assert ask(client, TASKS) == ack("2", "llm", data=[], object="llm.tasklist")
    assert ask(client, SETUP) == ack("2")
    client.send_bytes(STREAM.encode())
    text, frames = client.answer()
    assert text
    assert all(frame["error"] == {"code": 0, "message": ""} for frame in frames)
    assert {(frame["object"], frame["request_id"], frame["work_id"]) for frame in frames} == {
        ("llm.utf-8.stream", "2", "llm.1000")
    }
    client.send_bytes(PLAIN.encode())
    assert client.answer()[0]
    assert ask(client, LINK) == ack("3", error={"code": -20, "message": "link false"})  # there is no kws
    assert ask(client, UNLINK) == ack("4")
    assert ask(client, PAUSE) == ack("5")
    assert ask(client, WORK) == ack("6")
    assert ask(client, TASKS) == ack("2", "llm", data=["llm.1000"], object="llm.tasklist")
    info = {
        "enoutput": True,
        "inputs": ["llm.utf-8"],
        "inputs_": ["llm.utf-8"],
        "model": "qwen2.5-0.5B-prefill-20e",
        "response_format": "llm.utf-8.stream",
    }
    assert ask(client, TASK) == ack("2", data=info, object="llm.taskinfo")
    assert ask(client, EXIT) == ack("7")
    assert ask(client, EXIT) == ack("7", error={"code": -6, "message": "Unit Does Not Exist"})
    client.assert_silent()


def test_plain_output(client):
    assert ask(client, SETUP.replace('"llm.utf-8.stream"', '"llm.utf-8"'))["work_id"] == "llm.1000"
    for example in (PLAIN, STREAM):
        reply = ask(client, example)
        assert (reply["object"], reply["request_id"], reply["work_id"]) == ("llm.utf-8", "2", "llm.1000")
        assert isinstance(reply["data"], str)
        assert reply["data"]


def test_links_at_setup(client):
    assert json.loads(SETUP_LINKED)["data"]["input"] == ["llm.utf-8", "asr.1001", "kws.1000"]
    assert ask(client, SETUP_LINKED) == ack("2")
    assert ask(client, TASK)["data"]["inputs"] == ["llm.utf-8", "asr.1001", "kws.1000"]


def test_the_engine_sees_a_system_message_even_if_it_is_empty(client, engine):
    greedy = '"temperature": 0, "max_token_len": 24'
    setup = SETUP.replace('"max_token_len": 256', greedy)
    empty = setup.replace(json.loads(SETUP)["data"]["prompt"], "")
    for text, system in ((setup, json.loads(SETUP)["data"]["prompt"]), (empty, "")):
        work_id = ask(client, text)["work_id"]
        client.send_bytes(STREAM.replace("llm.1000", work_id).encode())
        answer = client.answer()[0]
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "What's ur name?"}]
        assert answer == generated(engine, messages, 24)


def generated(engine, messages, count):
    """What the model answers greedily, asked directly."""
    from engine_parts import Door

    from trivium.engine import GenerationRequest, SamplingOptions

    tokens = engine.chat_template.render(messages).tokens(engine.tokenizer)
    door = Door()
    sampling = SamplingOptions(temperature=0.0, top_k=10, max_tokens=count)
    engine.submit([GenerationRequest("direct", tokens, sampling)], door)
    (answer,) = door.wait("direct")
    return answer.text
