"""OpenAI's responses."""

from __future__ import annotations

from trivium.doors.http.limits import MAX_MESSAGES, MAX_TOOLS
from trivium.doors.http.openapi.chat import JSON_SCHEMA
from trivium.doors.http.openapi.kinds import (
    Schema,
    anything,
    array,
    boolean,
    choice,
    either,
    integer,
    mapping,
    number,
    object_of,
    optional,
    record,
    ref,
    string,
)
from trivium.doors.http.openapi.operation import Operation, Payload
from trivium.doors.http.openapi.sampling import CHAT_LOGPROBS, MODEL, SAMPLING
from trivium.doors.http.responses.routes import RESPONSES

__all__ = ["OPERATIONS", "SCHEMAS"]

_NAME = string(minLength=1)
_TEXT_PART = either(
    object_of({"type": choice("input_text", "output_text"), "text": string()}, "type", "text"),
    object_of({"type": {"const": "refusal"}, "refusal": string()}, "type", "refusal"),
)
_CONTENT = either(string(), array(_TEXT_PART))
_ITEM = either(
    object_of(
        {
            "type": {"const": "message"},
            "role": choice("user", "assistant", "system", "developer"),
            "content": _CONTENT,
        },
        "role",
        "content",
    ),
    object_of(
        {"type": {"const": "function_call"}, "call_id": string(), "name": string(), "arguments": string()},
        "type",
        "call_id",
        "name",
        "arguments",
    ),
    object_of(
        {"type": {"const": "function_call_output"}, "call_id": string("That of a call before it"), "output": _CONTENT},
        "type",
        "call_id",
        "output",
    ),
    object_of(
        {
            "type": {"const": "reasoning"},
            "content": array(object_of({"type": {"const": "reasoning_text"}, "text": string()}, "type", "text")),
        },
        "type",
    ),
)
_FUNCTION = object_of(
    {
        "type": {"const": "function"},
        "name": _NAME,
        "description": string(),
        "parameters": mapping(text="A JSON schema of an object"),
        "strict": boolean(),
    },
    "type",
    "name",
)
_CHOSEN = object_of({"type": {"const": "function"}, "name": _NAME}, "type", "name")
_FORMAT = either(
    object_of({"type": choice("text", "json_object")}, "type"),
    object_of(
        {
            "type": {"const": "json_schema"},
            "name": anything(),
            "description": anything(),
            "schema": JSON_SCHEMA,
            "strict": anything("It is always so"),
        },
        "type",
        "schema",
    ),
)
_REQUEST = object_of(
    {
        "input": either(
            string(), array(ref("ResponseInputItem"), minItems=1, maxItems=MAX_MESSAGES), text="The conversation so far."
        ),
        "instructions": string("A system message before it."),
        "model": MODEL,
        **SAMPLING,
        "max_output_tokens": integer(1, text="Tokens of the answer at most. Default: the room left."),
        "chat_template_kwargs": mapping(text="Variables of the model's template."),
        "tools": array(_FUNCTION, "Functions that the model may ask for.", maxItems=MAX_TOOLS),
        "tool_choice": either(
            choice("none", "auto", "required"),
            _CHOSEN,
            object_of(
                {"type": {"const": "allowed_tools"}, "mode": choice("auto", "required"), "tools": array(_CHOSEN)},
                "type",
            ),
        ),
        "parallel_tool_calls": boolean("Default: true."),
        "max_tool_calls": integer(1, text="Of tools that the server runs: there are none."),
        "text": object_of({"format": _FORMAT, "verbosity": {"const": "medium"}}),
        "reasoning": object_of(
            {"effort": choice("none", "minimal", "low", "medium", "high", "xhigh", "max"), "summary": {"const": "auto"}}
        ),
        "include": array(choice("message.output_text.logprobs", "reasoning.encrypted_content")),
        "top_logprobs": integer(0, 20, "Only with message.output_text.logprobs in include."),
        "metadata": mapping(string(), "Repeated in the answer."),
        "stream": boolean("Send the answer as events while it is made. Default: false."),
        "background": {"const": False},
        "truncation": {"const": "disabled"},
        "store": boolean("Nothing is stored."),
        "user": string("Without effect, as the following."),
        "safety_identifier": string(),
        "prompt_cache_key": string(),
        "prompt_cache_retention": string(),
    },
    "input",
)

_STATUS = choice("completed", "incomplete")
_OUTPUT = either(
    record(
        {
            "id": string(),
            "type": {"const": "message"},
            "status": _STATUS,
            "role": {"const": "assistant"},
            "content": array(
                record(
                    {
                        "type": {"const": "output_text"},
                        "text": string(),
                        "annotations": array(mapping()),
                        "logprobs": CHAT_LOGPROBS,
                    }
                )
            ),
        }
    ),
    record(
        {
            "id": string(),
            "type": {"const": "reasoning"},
            "status": _STATUS,
            "summary": array(mapping()),
            "content": array(record({"type": {"const": "reasoning_text"}, "text": string()})),
        }
    ),
    record(
        {
            "id": string(),
            "type": {"const": "function_call"},
            "status": _STATUS,
            "call_id": string(),
            "name": string(),
            "arguments": string("The text of a JSON object"),
        }
    ),
)
_USAGE = record(
    {
        "input_tokens": integer(0),
        "input_tokens_details": record({"cached_tokens": integer(0)}),
        "output_tokens": integer(0),
        "output_tokens_details": record({"reasoning_tokens": integer(0)}),
        "total_tokens": integer(0),
    }
)
_RESPONSE = record(
    {
        "id": string(),
        "object": {"const": "response"},
        "created_at": integer(0),
        "completed_at": {"type": ["integer", "null"]},
        "status": _STATUS,
        "error": {"type": "null"},
        "incomplete_details": optional(record({"reason": {"const": "max_output_tokens"}})),
        "model": string(),
        "output": array(_OUTPUT),
        "usage": _USAGE,
        "temperature": number(),
        "top_p": number(),
    },
    text="It also repeats what was asked for: instructions, tools, tool_choice, text, reasoning, metadata and others.",
)
_EVENTS = record({"event": string("response.created, response.output_text.delta, …"), "data": string("A JSON object")})

SCHEMAS: dict[str, Schema] = {"ResponseInputItem": _ITEM, "ResponseRequest": _REQUEST, "Response": _RESPONSE}

OPERATIONS = (
    Operation(
        "post",
        RESPONSES,
        "createResponse",
        "OpenAI",
        "Answer a conversation, told as items.",
        {200: Payload("The answer", {"application/json": ref("Response"), "text/event-stream": _EVENTS})},
        body=ref("ResponseRequest"),
        example={"input": "Hello!", "max_output_tokens": 32},
        also=(404,),
    ),
)
