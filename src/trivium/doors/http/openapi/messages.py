"""Anthropic's messages."""

from __future__ import annotations

from trivium.doors.http.anthropic.request import MAX_EDITS, NO_EDIT
from trivium.doors.http.anthropic.routes import COUNT_TOKENS, MESSAGES
from trivium.doors.http.limits import MAX_MESSAGES, MAX_STOP_STRINGS, MAX_TOOLS
from trivium.doors.http.openapi.chat import JSON_SCHEMA
from trivium.doors.http.openapi.kinds import (
    Schema,
    array,
    boolean,
    choice,
    either,
    event,
    integer,
    mapping,
    number,
    object_of,
    record,
    ref,
    string,
)
from trivium.doors.http.openapi.operation import Operation, Payload
from trivium.doors.http.openapi.sampling import MODEL, WORD

__all__ = ["OPERATIONS", "SCHEMAS"]

_NAME = string(minLength=1)
_TEXT = object_of({"type": {"const": "text"}, "text": string()}, "type", "text")
_TEXTS = either(string(), array(_TEXT))
_RESULT = object_of(
    {
        "type": {"const": "tool_result"},
        "tool_use_id": string("That of a tool_use before it"),
        "content": _TEXTS,
        "is_error": boolean(),
    },
    "type",
    "tool_use_id",
)
_TOOL_USE = object_of(
    {"type": {"const": "tool_use"}, "id": string(), "name": string(), "input": mapping()}, "type", "id", "name", "input"
)
_THINKING = object_of({"type": {"const": "thinking"}, "thinking": string()}, "type", "thinking")
_REDACTED = object_of({"type": {"const": "redacted_thinking"}}, "type")
_MESSAGE = either(
    object_of({"role": {"const": "user"}, "content": either(string(), array(either(_TEXT, _RESULT)))}, "role", "content"),
    object_of(
        {
            "role": {"const": "assistant"},
            "content": either(string(), array(either(_TEXT, _TOOL_USE, _THINKING, _REDACTED))),
        },
        "role",
        "content",
    ),
    object_of({"role": {"const": "system"}, "content": _TEXTS}, "role", "content"),
)
_TOOL = object_of(
    {"type": {"const": "custom"}, "name": _NAME, "description": string(), "input_schema": mapping(text="Of an object")},
    "name",
    "input_schema",
)
_PROMPT: dict[str, Schema] = {
    "messages": array(ref("Message"), minItems=1, maxItems=MAX_MESSAGES),
    "model": MODEL,
    "system": _TEXTS,
    "tools": array(_TOOL, "Tools that the model may ask for.", maxItems=MAX_TOOLS),
    "tool_choice": either(
        object_of({"type": choice("auto", "any", "none"), "disable_parallel_tool_use": boolean()}, "type"),
        object_of({"type": {"const": "tool"}, "name": _NAME, "disable_parallel_tool_use": boolean()}, "type", "name"),
    ),
    "thinking": either(
        object_of({"type": choice("adaptive", "disabled"), "display": choice("summarized", "omitted")}, "type"),
        object_of(
            {
                "type": {"const": "enabled"},
                "budget_tokens": integer(1, text="Less than max_tokens"),
                "display": choice("summarized", "omitted"),
            },
            "type",
            "budget_tokens",
        ),
    ),
    "output_config": object_of(
        {
            "effort": choice("low", "medium", "high", "xhigh", "max"),
            "format": object_of({"type": {"const": "json_schema"}, "schema": JSON_SCHEMA}, "type", "schema"),
        }
    ),
    "context_management": object_of(
        {"edits": array(object_of({"type": {"const": NO_EDIT}, "keep": {"const": "all"}}, "type", "keep"), maxItems=MAX_EDITS)}
    ),
}
_REQUEST = object_of(
    {
        **_PROMPT,
        "max_tokens": integer(1, text="Tokens of the answer at most."),
        "temperature": number(0, 1),
        "top_p": number(0, 1),
        "top_k": integer(0),
        "stop_sequences": array(WORD, "Texts that end the answer.", maxItems=MAX_STOP_STRINGS),
        "stream": boolean("Send the answer as events while it is made. Default: false."),
        "metadata": object_of({"user_id": string()}),
        "service_tier": choice("auto", "standard_only"),
    },
    "messages",
    "max_tokens",
)
_BLOCK = either(
    record({"type": {"const": "text"}, "text": string()}),
    record({"type": {"const": "thinking"}, "thinking": string(), "signature": string()}),
    record({"type": {"const": "tool_use"}, "id": string(), "name": string(), "input": mapping()}),
)
_ANSWER = record(
    {
        "id": string(),
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": string(),
        "content": array(_BLOCK),
        "stop_reason": choice("end_turn", "max_tokens", "stop_sequence", "tool_use"),
        "stop_sequence": {"type": ["string", "null"]},
        "usage": record(
            {
                "input_tokens": integer(0),
                "cache_creation_input_tokens": integer(0),
                "cache_read_input_tokens": integer(0),
                "output_tokens": integer(0),
            }
        ),
    }
)
_EVENTS = event(
    "The `type` in it is the event's.",
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
)

SCHEMAS: dict[str, Schema] = {
    "Message": _MESSAGE,
    "MessageRequest": _REQUEST,
    "MessageAnswer": _ANSWER,
    "CountTokensRequest": object_of(_PROMPT, "messages"),
}

OPERATIONS = (
    Operation(
        "post",
        MESSAGES,
        "createMessage",
        "Anthropic",
        "Answer a conversation.",
        {200: Payload("The answer", {"application/json": ref("MessageAnswer"), "text/event-stream": _EVENTS})},
        body=ref("MessageRequest"),
        example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32},
        errors="AnthropicError",
        also=(404,),
    ),
    Operation(
        "post",
        COUNT_TOKENS,
        "countMessageTokens",
        "Anthropic",
        "Count the tokens of a conversation.",
        {200: Payload("Their number", {"application/json": record({"input_tokens": integer(0)})})},
        body=ref("CountTokensRequest"),
        example={"messages": [{"role": "user", "content": "Hello!"}]},
        errors="AnthropicError",
        also=(404,),
    ),
)
