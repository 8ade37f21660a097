"""From the body of a request to `/v1/responses` to the chat completion that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivium.doors.http.chat_fields import unknown_fields
from trivium.doors.http.limits import MAX_TOOLS
from trivium.doors.http.openai.fields import Fields
from trivium.doors.http.responses.items import read_conversation
from trivium.doors.http.translation import Translation, entries, fields_of
from trivium.errors import RequestError

__all__ = ["ResponsesRequest", "read_body"]

_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (_LOGPROBS, "reasoning.encrypted_content")  # thoughts are told openly, so that they can be sent back as they are

# Beside OpenAI's own, the fields that chat completions take under the same name.
_PASSED = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
)
# Of no effect on the answer, which repeats them.
_NOTED = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")

# What would change the answer and cannot be honoured, and why.
_REFUSED = {
    "previous_response_id": "no response is stored; send the earlier items as input",
    "conversation": "no conversation is stored; send the earlier items as input",
    "prompt": "no prompts are stored; send instructions and input",
    "context_management": "the context is never changed",
    "moderation": "there is no moderation",
}

_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(Translation):
    """One body. `repeated` are the fields of the answer that tell what was asked; `logprobs`: so are log-probabilities."""

    repeated: dict[str, Any]
    logprobs: bool


def read_body(body: Mapping[str, Any]) -> ResponsesRequest:
    """Null counts as not given. Raises `RequestError` naming the field; what only `chat` shows is told by its reader."""
    fields = Fields(body)
    _check_refused(fields)
    conversation = read_conversation(fields)
    stream = fields.boolean("stream")
    chat: dict[str, Any] = {
        "messages": conversation.messages,
        "max_completion_tokens": fields.integer("max_output_tokens", 1),
        "stream": stream,
    }
    chat |= {name: fields.any(name) for name in _PASSED}
    tools, places = _read_tools(fields, chat)
    text = _read_text(fields, chat)
    reasoning = _read_reasoning(fields, chat)
    logprobs = _read_logprobs(fields, chat)
    repeated = {
        "background": False,
        "instructions": fields.any("instructions"),
        "max_output_tokens": chat["max_completion_tokens"],
        "max_tool_calls": fields.integer("max_tool_calls", 1),  # of tools that the server runs: there are none
        "metadata": _read_metadata(fields),
        "parallel_tool_calls": chat["parallel_tool_calls"],
        "previous_response_id": None,
        "reasoning": reasoning,
        "service_tier": "default",
        "store": False,
        "text": text,
        "tool_choice": fields.any("tool_choice") or "auto",
        "tools": tools,
        "top_logprobs": fields.any("top_logprobs") or 0,
        "truncation": "disabled",
    }
    repeated |= {name: fields.string(name) for name in _NOTED}
    return ResponsesRequest(
        chat=chat,
        conversation=conversation,
        names={**_NAMES, **places},
        stream=stream,
        unknown=unknown_fields(fields, "responses", _NAMES),
        repeated=repeated,
        logprobs=logprobs,
    )


def _check_refused(fields: Fields) -> None:
    for name, reason in _REFUSED.items():
        if fields.any(name):
            raise RequestError(f"{name} cannot be honoured: {reason}", field=name, allowed="unset")
    if fields.boolean("background"):
        raise RequestError("background must be false: no response is stored that could be asked for", field="background")
    if fields.choice("truncation", "auto", "disabled") == "auto":
        raise RequestError("truncation must be 'disabled': input that is too long is an error", field="truncation")
    options = fields.object("stream_options")
    if options is not None and options.boolean("include_obfuscation"):
        raise options.wrong("include_obfuscation", "false")
    fields.choice("service_tier", "auto", "default")
    fields.boolean("store")  # nothing is stored, which the answer says


def _read_tools(fields: Fields, chat: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """All tools as the answer repeats them, and the places of those that `chat` has."""
    listed, functions = [], []
    for name, tool in entries(fields, "tools", "a list of tools", MAX_TOOLS):
        if tool.any("type") != "function":
            raise tool.wrong("type", "'function': other tools are not run here")
        tool.boolean("strict")
        function = {member: tool.any(member) for member in ("name", "description", "parameters", "strict") if member in tool}
        listed.append({"type": "function", "description": None, "parameters": None, "strict": None, **function})
        functions.append((name, function))
    choice, allowed = _read_choice(fields, [function.get("name") for _, function in functions])
    kept = [(name, function) for name, function in functions if allowed is None or function.get("name") in allowed]
    chat["tools"] = [{"type": "function", "function": function} for _, function in kept]
    chat["tool_choice"] = choice
    chat["parallel_tool_calls"] = fields.boolean("parallel_tool_calls", True)
    return listed, {f"tools[{index}].function": name for index, (name, _) in enumerate(kept)}


def _read_choice(fields: Fields, known: list[Any]) -> tuple[Any, list[str] | None]:
    """The choice as a chat completion has it, and the names of the tools to choose from if those are not all."""
    choice = fields.any("tool_choice")
    if choice is None or isinstance(choice, str):
        return fields.choice("tool_choice", "none", "auto", "required"), None
    chosen = fields_of(choice, "tool_choice")
    if chosen.choice("type", "function", "allowed_tools") == "function":
        return {"type": "function", "function": {"name": chosen.any("name")}}, None
    if chosen.any("type") is None:
        raise chosen.wrong("type", "'function' or 'allowed_tools'")
    names = []
    for _, tool in entries(chosen, "tools", "a list of {'type': 'function', 'name': …}", MAX_TOOLS):
        if tool.any("type") != "function":
            raise tool.wrong("type", "'function'")
        if tool.any("name") not in known:
            raise tool.wrong("name", "one of the tools")
        names.append(tool.any("name"))
    return chosen.choice("mode", "auto", "required"), names


def _read_text(fields: Fields, chat: dict[str, Any]) -> dict[str, Any]:
    text = fields.object("text")
    wanted = None if text is None else text.object("format")
    if text is not None and text.choice("verbosity", "low", "medium", "high") not in (None, "medium"):
        raise text.wrong("verbosity", "'medium'")
    if wanted is None:
        return {"format": {"type": "text"}, "verbosity": "medium"}
    kind = wanted.choice("type", "text", "json_object", "json_schema")
    if kind is None:
        raise wanted.wrong("type", "'text', 'json_object' or 'json_schema'")
    told: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        if wanted.mapping("schema", "a JSON schema: an object") is None:
            raise wanted.wrong("schema", "a JSON schema: an object")
        described = {name: wanted.any(name) for name in ("name", "description", "strict", "schema")}
        chat["response_format"] = {"type": kind, "json_schema": described}
        told |= described
    elif kind == "json_object":
        chat["response_format"] = told
    return {"format": told, "verbosity": "medium"}


def _read_reasoning(fields: Fields, chat: dict[str, Any]) -> dict[str, Any]:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return {"effort": None, "summary": None}
    for name in ("summary", "generate_summary"):  # "auto" leaves it to us, and we make none
        if reasoning.choice(name, "auto", "concise", "detailed") not in (None, "auto"):
            raise reasoning.wrong(name, "'auto' or unset: thoughts are told in full")
    effort = chat["reasoning_effort"] = reasoning.string("effort")
    variables = fields.mapping("chat_template_kwargs") or {}
    if effort == "none":
        chat["chat_template_kwargs"] = {"enable_thinking": False, "thinking": False, **variables}
    return {"effort": effort, "summary": None}


def _read_logprobs(fields: Fields, chat: dict[str, Any]) -> bool:
    include = fields.list("include", f"a list of {' or '.join(map(repr, _INCLUDES))}", lambda name: name in _INCLUDES)
    wanted = _LOGPROBS in include
    top = fields.integer("top_logprobs", 0, 20)
    if top and not wanted:
        raise RequestError(f"top_logprobs needs {_LOGPROBS!r} in include", field="top_logprobs", allowed="0", value=top)
    if wanted:
        chat |= {"logprobs": True, "top_logprobs": top}
    return wanted


def _read_metadata(fields: Fields) -> dict[str, Any]:
    metadata = fields.mapping("metadata", "an object of strings") or {}
    if not all(isinstance(value, str) for value in metadata.values()):
        raise fields.wrong("metadata", "an object of strings")
    return metadata
