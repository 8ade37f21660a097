"""What a body of `/v1/responses` becomes as a chat completion, and what is wrong with bodies."""

from __future__ import annotations

import pytest

from trivium.doors.http.responses.request import read_body
from trivium.errors import RequestError

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
TOLD_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def chat_of(**body):
    """The chat completion, without the fields that are not given."""
    chat = read_body({"input": "hi", **body}).chat
    return {name: value for name, value in chat.items() if value is not None}


def messages_of(items, **body):
    return read_body({"input": items, **body}).chat["messages"]


def test_a_stream_is_asked_for_as_one():
    assert chat_of(stream=True)["stream"] is True


def test_a_text_is_a_message_of_the_user():
    chat = chat_of(instructions="be brief", max_output_tokens=5, temperature=0.5, top_p=0.9, seed=7, model="m")
    assert chat == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_completion_tokens": 5,
        "stream": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "model": "m",
        "tools": [],
        "parallel_tool_calls": True,
    }


def test_messages_of_all_roles_and_forms():
    items = [
        {"role": "developer", "content": "a"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "d", "annotations": []}, {"type": "refusal", "refusal": "e"}],
        },
        {"role": "user", "content": "f"},
    ]
    assert messages_of(items) == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "bc"},
        {"role": "assistant", "content": "de"},
        {"role": "user", "content": "f"},
    ]


def test_thought_text_and_calls_of_one_turn_are_one_message():
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "b"},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": "r2"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r1"}]},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "?"},
        CALL,
    ]
    assert messages_of(items) == [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "hm",
            "tool_calls": [TOLD_CALL, {**TOLD_CALL, "id": "c2"}],
        },
        {"role": "tool", "content": "r2", "tool_call_id": "c2", "name": "f"},
        {"role": "tool", "content": "r1", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": None, "tool_calls": [TOLD_CALL]},
    ]


def test_a_new_thought_begins_a_new_message():
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    messages = messages_of([{"role": "assistant", "content": "b"}, thought, CALL])
    assert messages[1] == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [TOLD_CALL]}


def test_tools_and_choices():
    chat = chat_of(tools=[TOOL], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert chat["parallel_tool_calls"] is False
    for choice in ("none", "auto", "required"):
        assert chat_of(tools=[TOOL], tool_choice=choice)["tool_choice"] == choice


def test_allowed_tools_are_the_only_ones_of_the_chat():
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    body = read_body({"input": "hi", "tools": [TOOL, {"type": "function", "name": "g"}], "tool_choice": allowed})
    assert body.chat["tools"] == [{"type": "function", "function": {"name": "g"}}]
    assert body.chat["tool_choice"] == "required"
    assert [tool["name"] for tool in body.repeated["tools"]] == ["f", "g"]
    assert body.renamed(RequestError("", field="tools[0].function.parameters")).field == "tools[1].parameters"


def test_formats():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    described = {"name": "n", "schema": schema, "strict": True, "description": None}
    assert chat_of(text={"format": wanted})["response_format"] == {"type": "json_schema", "json_schema": described}
    assert chat_of(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat_of(text={"format": {"type": "text"}, "verbosity": "medium"})


def test_reasoning_and_logprobs():
    assert chat_of(reasoning={"effort": "low", "summary": "auto"})["reasoning_effort"] == "low"
    off = {"enable_thinking": False, "thinking": False}
    assert chat_of(reasoning={"effort": "none"})["chat_template_kwargs"] == off
    kept = chat_of(reasoning={"effort": "none"}, chat_template_kwargs={"thinking": True, "a": 1})
    assert kept["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True, "a": 1}
    chat = chat_of(include=["message.output_text.logprobs", "reasoning.encrypted_content"], top_logprobs=2)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)
    assert "logprobs" not in chat_of(include=[])


def test_what_the_answer_repeats():
    repeated = read_body(
        {
            "input": "hi",
            "metadata": {"a": "b"},
            "store": True,
            "user": "u",
            "service_tier": "auto",
            "truncation": "disabled",
            "background": False,
            "max_tool_calls": 3,
            "prompt_cache_key": "k",
            "instructions": "i",
            "tools": [TOOL],
            "reasoning": {"effort": "high"},
            "previous_response_id": None,
        }
    ).repeated
    expected = {
        "metadata": {"a": "b"},
        "store": False,
        "user": "u",
        "service_tier": "default",
        "truncation": "disabled",
        "background": False,
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "instructions": "i",
        "tools": [TOOL],
        "tool_choice": "auto",
        "reasoning": {"effort": "high", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "previous_response_id": None,
    }
    assert {name: repeated[name] for name in expected} == expected


def test_fields_that_mean_nothing_are_told():
    body = read_body({"input": "hi", "colour": 1, "text": {"font": "x"}, "user": "u"})
    assert set(body.unknown) == {"colour", "text.font"}


BAD = [
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"type": "reasoning", "content": None}]}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": ["message"]}]}, "input[0].type"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{**CALL, "name": None}]}, "input[0].name"),
    ({"input": [{"type": "function_call_output", "call_id": "c9", "output": "x"}]}, "input[0].call_id"),
    ({"input": [CALL, {"type": "function_call_output", "call_id": "c1"}]}, "input[1].output"),
    ({"input": [{"role": "user", "content": "a"}] * 5000}, "input"),
    ({"instructions": ["a"]}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"truncation": 1}, "truncation"),
    ({"store": "no"}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"user": 3}, "user"),
    ({"tools": {}}, "tools"),
    ({"tools": [3]}, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
    ({"tools": [TOOL] * 200}, "tools"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"tool_choice": {"name": "f"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}, "tool_choice.tools[0].type"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}},
        "tool_choice.tools[0].name",
    ),
    ({"text": "plain"}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"include": "x"}, "include"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
]


@pytest.mark.parametrize(("body", "field"), BAD, ids=[f"{field}-{number}" for number, (_, field) in enumerate(BAD)])
def test_wrong_fields_are_named(body, field):
    with pytest.raises(RequestError) as caught:
        read_body({"input": "hi", **body})
    assert caught.value.field == field
    assert field in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["web_search", "file_search", "code_interpreter", "mcp", "computer", "custom", None])
def test_tools_of_the_servers_own_are_refused_by_their_type(kind):
    with pytest.raises(RequestError, match=rf"tools\[0\].type must be 'function'.*{kind or 'None'}"):
        read_body({"input": "hi", "tools": [{"type": kind}]})
