"""`/tokenize`, `/detokenize` and `/v1/tokenizer`, over a real server."""

from __future__ import annotations

import logging

import httpx
import pytest
from engine_parts import EOS, VOCAB_SIZE, make_engine
from http_parts import serving

from trivium.config import EngineConfig
from trivium.doors.http import tokens
from trivium.doors.http.openai import messages as openai_messages
from trivium.engine.native_engine import NativeEngine
from trivium.models.chat_template import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{{ mood }}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def server():
    with make_engine(max_model_len=77) as engine:
        engine.chat_template = ChatTemplate(TEMPLATE, engine.tokenizer)
        with serving(engine) as running, httpx.Client(base_url=running.url) as client:
            yield client


def post(server, path, body, status=200):
    answer = server.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(server, path, body, field):
    error = post(server, path, body, 400)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert field in error["message"]
    return error["message"]


def test_a_prompt_is_told_in_tokens(server):
    assert post(server, "/tokenize", {"prompt": "hé<|end|>"}) == {
        "count": 4,
        "max_model_len": 77,
        "tokens": [104, 0xC3, 0xA9, EOS],
        "token_strs": None,
    }
    body = {"model": "fake", "prompt": "a é", "return_token_strs": True, "add_special_tokens": False, "messages": None}
    assert post(server, "/tokenize", body)["token_strs"] == ["a", "Ġ", "Ã", "©"]
    assert post(server, "/tokenize", {"prompt": ""})["tokens"] == []


def test_a_conversation_is_rendered_first(server):
    messages = [{"role": "user", "content": "hi<|end|>"}]
    answer = post(server, "/tokenize", {"messages": messages})
    assert bytes(token for token in answer["tokens"] if token != EOS) == b"[user]hi<|end|>[assistant]"
    assert answer["tokens"].count(EOS) == 1  # the template's, not the message's
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"mood": "!"},
        "add_generation_prompt": False,
        "add_special_tokens": False,
    }
    ids = post(server, "/tokenize", body)["tokens"]
    assert post(server, "/detokenize", {"tokens": ids})["prompt"] == "[user]ab<|end|>(f)!"
    messages.append({"role": "assistant", "content": "well,"})
    ids = post(server, "/tokenize", {"messages": messages, "continue_final_message": True})["tokens"]
    assert post(server, "/detokenize", {"tokens": ids})["prompt"] == "[user]hi<|end|><|end|>[assistant]well,"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ({"prompt": "a", "model": 7}, "model"),
        ({"prompt": "a", "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": "f"}, "tools"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools[0].function"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{}] * 129}, "tools"),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [{"role": "assistant", "content": ""}], "continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_tokenized_is_named(server, body, field):
    refused(server, "/tokenize", body, field)


@pytest.mark.parametrize("value", [[1.0], ["1"], [True], [-1], [VOCAB_SIZE], [None], [[1]]])
def test_only_token_ids_are_detokenized(server, value):
    refused(server, "/detokenize", {"tokens": value}, "tokens[0]")
    refused(server, "/detokenize", {"tokens": [1, *value]}, "tokens[1]")


def test_only_lists_are_detokenized(server):
    for value in (None, "abc", 1, {}):
        refused(server, "/detokenize", {"tokens": value}, "tokens")


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_another_model_is_not_here(server, path, body):
    error = post(server, path, body | {"model": "gpt-4o"}, 404)["error"]
    assert error["param"] == "model"
    assert error["type"] == "not_found_error"


def test_detokenizing_keeps_special_tokens_and_replaces_broken_characters(server):
    assert post(server, "/detokenize", {"tokens": [104, 0xC3, EOS]}) == {"prompt": "h\ufffd<|end|>"}
    assert post(server, "/detokenize", {"tokens": []}) == {"prompt": ""}


def test_mindie_counts_tokens_and_joins_parts_of_characters(server):
    assert post(server, "/v1/tokenizer", {"inputs": "aé你"}) == {"token_number": 6, "tokens": ["a", "é", "你"]}
    assert post(server, "/v1/tokenizer", {"inputs": "aé", "do_decode": False}) == {"token_number": 3, "tokens": []}
    assert post(server, "/v1/tokenizer", {"inputs": ""}) == {"token_number": 0, "tokens": []}


@pytest.mark.parametrize(
    ("body", "field"), [({}, "inputs"), ({"inputs": 1}, "inputs"), ({"inputs": "a", "do_decode": 1}, "do_decode")]
)
def test_mindie_errors_have_its_form(server, body, field):
    answer = post(server, "/v1/tokenizer", body, 422)
    assert set(answer) == {"error", "error_type"}
    assert answer["error_type"] == "Input Validation Error"
    assert field in answer["error"]
    assert server.post("/v1/tokenizer", content=b"{").status_code == 422


@pytest.mark.parametrize(("path", "field"), [("/tokenize", "prompt"), ("/v1/tokenizer", "inputs")])
def test_long_texts_are_refused_before_any_work(server, monkeypatch, path, field):
    monkeypatch.setattr(tokens, "MAX_PROMPT_CHARS", 1000)
    assert server.post(path, json={field: "a" * 1000}).status_code == 200
    answer = server.post(path, json={field: "a" * 1001})
    assert answer.status_code in (400, 422)
    assert f"{field} must be a string of at most 1000 characters, got '1001 characters'" in answer.text


def test_long_conversations_and_lists_of_ids_are_refused(server, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_PROMPT_CHARS", 1000)
    monkeypatch.setattr(tokens, "MAX_DETOKENIZED", 1000)
    monkeypatch.setattr(openai_messages, "MAX_PROMPT_CHARS", 1000)
    messages = [{"role": "user", "content": "a" * 600}] * 2
    assert "1000 characters" in refused(server, "/tokenize", {"messages": messages}, "messages")
    tools = [{"type": "function", "function": {"name": "f" * 600}}] * 2
    body = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    assert "at most 1000 characters once rendered, got 12" in refused(server, "/tokenize", body, "messages")
    assert "at most 1000 entries, got 1001" in refused(server, "/detokenize", {"tokens": [1] * 1001}, "tokens")


def test_unknown_fields_are_logged_once(server, caplog):
    with caplog.at_level(logging.WARNING, logger="trivium.http"):
        for _ in range(2):
            post(server, "/tokenize", {"prompt": "a", "fancy_new_field": 1})
    assert [record.getMessage() for record in caplog.records] == ["unknown field 'fancy_new_field' of /tokenize: ignored"]


def test_little_of_an_unknown_fields_name_is_remembered(server, caplog):
    with caplog.at_level(logging.WARNING, logger="trivium.http"):
        for end in "ab":
            post(server, "/tokenize", {"prompt": "a", "x" * 80 + end: 1})
    assert [record.getMessage() for record in caplog.records] == [f"unknown field '{'x' * 80}' of /tokenize: ignored"]


def test_a_model_without_a_template_cannot_render():
    with make_engine() as engine, serving(engine) as running, httpx.Client(base_url=running.url) as client:
        refused(client, "/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "messages")


def test_the_real_model(smollm2):
    with (
        NativeEngine.load(EngineConfig(model=smollm2, max_num_seqs=1, max_model_len=512)) as engine,
        serving(engine) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        answer = post(client, "/tokenize", {"prompt": "Hello world", "return_token_strs": True})
        assert answer == {"count": 2, "max_model_len": 512, "tokens": [19556, 905], "token_strs": ["Hello", "Ġworld"]}
        assert post(client, "/detokenize", {"tokens": answer["tokens"]}) == {"prompt": "Hello world"}
        assert post(client, "/v1/tokenizer", {"inputs": "Hello world"}) == {"token_number": 2, "tokens": ["Hello", " world"]}
        answer = post(client, "/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
        text = post(client, "/detokenize", {"tokens": answer["tokens"]})["prompt"]
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
