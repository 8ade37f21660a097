"""What a body of `/v1/messages` becomes as a chat completion, and what is wrong with bodies."""

from __future__ import annotations

import json

import pytest

from trivium.doors.http.anthropic.request import read_body
from trivium.errors import RequestError

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
TOLD_CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}


def chat_of(**body):
    """The chat completion, without the fields that are not given."""
    chat = read_body({"messages": HELLO, "max_tokens": 9, **body}).chat
    return {name: value for name, value in chat.items() if value is not None}


def messages_of(*messages, **body):
    return chat_of(messages=list(messages), **body)["messages"]


def test_a_stream_is_asked_for_as_one():
    assert chat_of(stream=True)["stream"] is True


def test_a_text_is_a_message_of_the_user():
    chat = chat_of(system="be brief", temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["x"], model="m")
    assert chat == {
        "model": "m",
        "stream": False,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "stop": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "tools": [],
        "chat_template_kwargs": OFF,
    }


def test_blocks_and_cache_marks():
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = read_body(
        {
            "max_tokens": 9,
            "system": [text, {"type": "text", "text": "b"}],
            "messages": [{"role": "user", "content": [text, text]}, {"role": "system", "content": [text]}, *HELLO],
            "cache_control": {"type": "ephemeral"},
        }
    )
    assert body.chat["messages"] == [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "aa"},
        {"role": "system", "content": "a"},
        {"role": "user", "content": "hi"},
    ]
    assert body.unknown == ()


def test_a_use_of_a_tool_and_its_result():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "?"}
    messages = messages_of(
        *HELLO,
        {"role": "assistant", "content": [thinking, redacted, {"type": "text", "text": "a"}, USE]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "go"}, {"type": "text", "text": " on"}]},
        {"role": "assistant", "content": [USE, {**USE, "id": "t2"}]},
        {
            "role": "user",
            "content": [
                {**RESULT, "tool_use_id": "t2", "content": [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]},
                {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no"},
                {"type": "tool_result", "tool_use_id": "t1"},
            ],
        },
    )
    assert messages == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a", "tool_calls": [TOLD_CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "r", "tool_call_id": "t1", "name": "f"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": None, "tool_calls": [TOLD_CALL, {**TOLD_CALL, "id": "t2"}]},
        {"role": "tool", "content": "pq", "tool_call_id": "t2", "name": "f"},
        {"role": "tool", "content": "Error: no", "tool_call_id": "t1", "name": "f"},
        {"role": "tool", "content": "", "tool_call_id": "t1", "name": "f"},
    ]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == USE["input"]


def test_turns_of_one_role_are_one():
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]
    assert messages_of(*HELLO, *HELLO, *said, *HELLO) == [
        {"role": "user", "content": "hi\n\nhi"},
        {"role": "assistant", "content": "a\n\nb"},
        {"role": "user", "content": "hi"},
    ]


def test_an_answer_that_has_begun_is_continued():
    chat = chat_of(messages=[*HELLO, {"role": "assistant", "content": "I"}])
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat_of()


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_and_choices(choice, told):
    chat = chat_of(tools=[TOOL, {**TOOL, "type": "custom", "cache_control": {}}], tool_choice=choice)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}] * 2
    assert chat["tool_choice"] == told
    assert chat["parallel_tool_calls"] is True
    assert chat_of(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("thinking", "variables", "limit", "shown"),
    [
        (None, OFF, None, True),
        ({"type": "disabled"}, OFF, None, True),
        ({"type": "adaptive"}, ON, None, True),
        ({"type": "enabled", "budget_tokens": 8}, ON, 8, True),
        ({"type": "enabled", "budget_tokens": 8, "display": "summarized"}, ON, 8, True),
        ({"type": "adaptive", "display": "omitted"}, ON, None, False),
    ],
)
def test_thinking(thinking, variables, limit, shown):
    body = read_body({"messages": HELLO, "max_tokens": 9, "thinking": thinking})
    assert (body.chat["chat_template_kwargs"], body.max_thought, body.shows_thought) == (variables, limit, shown)


def test_the_form_of_the_output():
    schema = {"type": "object"}
    chat = chat_of(output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert chat["reasoning_effort"] == "high"
    assert chat["response_format"]["json_schema"]["schema"] == schema


def test_counting_needs_no_max_tokens_and_unknown_fields_are_told():
    body = read_body({"messages": HELLO, "colour": 1, "metadata": {"user_id": "u"}, "service_tier": "auto"}, counting=True)
    assert body.unknown == ("colour",)


@pytest.mark.parametrize("edits", [[], [{"type": "clear_thinking_20251015", "keep": "all"}], None])
def test_edits_of_the_context_that_leave_it_as_it_is(edits):
    """Agents ask for them with every request."""
    assert read_body({"messages": HELLO, "max_tokens": 9, "context_management": {"edits": edits}}).unknown == ()


BAD = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": HELLO * 5000}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{**USE, "input": "{}"}]}]}, "messages[0].content[0].input"),
    ({"messages": [{"role": "assistant", "content": [{**USE, "id": None}]}]}, "messages[0].content[0].id"),
    (
        {
            "messages": [
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [{**RESULT, "content": [{"type": "image"}]}]},
            ]
        },
        "messages[1].content[0].content[0].type",
    ),
    ({"system": 3}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"temperature": 1.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [1]}, "stop_sequences"),
    ({"stream": 1}, "stream"),
    ({"metadata": "u"}, "metadata"),
    ({"metadata": {"user_id": 3}}, "metadata.user_id"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"context_management": []}, "context_management"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits[0]"),
    ({"tools": [TOOL] * 200}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"effort": 1}}, "output_config.effort"),
]


@pytest.mark.parametrize(("body", "field"), BAD, ids=[f"{field}-{number}" for number, (_, field) in enumerate(BAD)])
def test_wrong_fields_are_named(body, field):
    with pytest.raises(RequestError) as caught:
        read_body({"messages": HELLO, "max_tokens": 9, **body})
    assert caught.value.field == field
    assert field in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "server_tool_use", "container_upload"])
def test_blocks_that_cannot_be_read_are_refused_by_their_type(kind):
    for role in ("user", "assistant"):
        with pytest.raises(RequestError, match=rf"messages\[0\].content\[0\].type must be .*, got '{kind}'"):
            read_body({"messages": [{"role": role, "content": [{"type": kind}]}], "max_tokens": 9})


def test_names_of_the_chat_are_told_back():
    body = read_body({"messages": HELLO, "system": "s", "max_tokens": 9, "tools": [TOOL, TOOL]})
    for field, own in (
        ("messages[0].content", "system.content"),
        ("messages[1]", "messages[0]"),
        ("tools[1].function.parameters.type", "tools[1].input_schema.type"),
        ("tools[1].function.name", "tools[1].name"),
        ("stop[3]", "stop_sequences[3]"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("response_format", "output_config.format"),
        ("continue_final_message", "messages[0]"),
    ):
        assert body.renamed(RequestError(f"{field} is wrong", field=field)).field == own
