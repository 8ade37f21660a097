"""From the body of a request to `/v1/messages` to the chat completion that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivium.doors.http.anthropic.messages import read_conversation
from trivium.doors.http.chat_fields import unknown_fields
from trivium.doors.http.limits import MAX_TOOLS
from trivium.doors.http.openai.fields import Fields
from trivium.doors.http.translation import Translation, entries
from trivium.errors import RequestError

__all__ = ["MAX_EDITS", "NO_EDIT", "MessagesRequest", "read_body"]

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

# Of no effect on the answer: prompts are always cached, and every request is served alike.
_NOTED = ("cache_control", "speed", "user_profile_id", "workspace_id")

# What would change the answer and cannot be honoured.
_REFUSED = ("container", "diagnostics", "inference_geo", "mcp_servers")

# The one edit of the context that asks for nothing: agents send it with every request.
NO_EDIT = "clear_thinking_20251015"
_KEEP_ALL = ("all", {"type": "all"})
MAX_EDITS = 16

_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
    "chat_template_kwargs": "thinking",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(Translation):
    """One body. `shows_thought` tells whether the answer holds its thought's text."""

    shows_thought: bool


def read_body(body: Mapping[str, Any], *, counting: bool = False) -> MessagesRequest:
    """Null counts as not given; a body whose tokens are only counted has no `max_tokens`.

    Raises `RequestError` naming the field; what only `chat` shows is told by its reader.
    """
    fields = Fields(body)
    fields.any(*_NOTED)
    for name in _REFUSED:
        if fields.any(name):
            raise RequestError(f"{name} cannot be honoured here; leave it out", field=name, allowed="unset")
    if not counting:
        fields.required("max_tokens", "an integer >= 1")
    fields.choice("service_tier", "auto", "standard_only")
    _check_metadata(fields)
    _check_edits(fields)
    conversation = read_conversation(fields)
    max_tokens = fields.integer("max_tokens", 1)
    stream = fields.boolean("stream")
    chat: dict[str, Any] = {
        "model": fields.any("model"),
        "stream": stream,
        "messages": conversation.messages,
        "max_tokens": max_tokens,
        "stop": fields.list("stop_sequences", "a list of strings", lambda value: isinstance(value, str)) or None,
        "temperature": fields.number("temperature", 0.0, 1.0),
        "top_p": fields.number("top_p", 0.0, 1.0),
        "top_k": fields.integer("top_k", 0),
        **_read_output(fields),
        **_read_tools(fields),
    }
    if conversation.messages[-1]["role"] == "assistant":
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    variables, max_thought, shown = _read_thinking(fields, max_tokens)
    chat["chat_template_kwargs"] = variables
    return MessagesRequest(
        chat=chat,
        conversation=conversation,
        names={**_NAMES, **_tool_names(len(chat["tools"])), "continue_final_message": conversation.last},
        stream=stream,
        unknown=unknown_fields(fields, "messages", _NAMES),
        max_thought=max_thought,
        shows_thought=shown,
    )


def _check_metadata(fields: Fields) -> None:
    metadata = fields.object("metadata")
    if metadata is not None:
        metadata.string("user_id")


def _check_edits(fields: Fields) -> None:
    management = fields.object("context_management")
    if management is None:
        return
    for name, edit in entries(management, "edits", "a list of edits", MAX_EDITS):
        if edit.any("type") != NO_EDIT or edit.any("keep") not in _KEEP_ALL:
            raise RequestError(
                f"{name} cannot be honoured: the context is never changed, so an edit must be {NO_EDIT!r} with keep: 'all'",
                field=name,
                allowed=f"{NO_EDIT!r} with keep: 'all'",
            )


def _read_tools(fields: Fields) -> dict[str, Any]:
    tools = []
    for _, tool in entries(fields, "tools", "a list of tools", MAX_TOOLS):
        if tool.any("type") not in (None, "custom"):
            raise tool.wrong("type", "'custom': tools of the server's own are not run here")
        if tool.mapping("input_schema", "a JSON schema: an object") is None:
            raise tool.wrong("input_schema", "a JSON schema: an object")
        function = {"name": tool.any("name"), "description": tool.any("description"), "parameters": tool.any("input_schema")}
        tools.append({"type": "function", "function": {name: value for name, value in function.items() if value is not None}})
    choice = fields.object("tool_choice", "an object with a type")
    if choice is None:
        return {"tools": tools}
    kind = choice.choice("type", *_CHOICES, "tool")
    if kind is None:
        raise choice.wrong("type", "'auto', 'any', 'tool' or 'none'")
    told = {"type": "function", "function": {"name": choice.any("name")}} if kind == "tool" else _CHOICES[kind]
    return {"tools": tools, "tool_choice": told, "parallel_tool_calls": not choice.boolean("disable_parallel_tool_use")}


def _tool_names(count: int) -> dict[str, str]:
    names = {f"tools[{index}].function": f"tools[{index}]" for index in range(count)}
    return names | {f"tools[{index}].function.parameters": f"tools[{index}].input_schema" for index in range(count)}


def _read_output(fields: Fields) -> dict[str, Any]:
    output = fields.object("output_config")
    if output is None:
        return {}
    told: dict[str, Any] = {"reasoning_effort": output.string("effort")}
    wanted = output.object("format")
    if wanted is None:
        return told
    if wanted.choice("type", "json_schema") is None:
        raise wanted.wrong("type", "'json_schema'")
    schema = wanted.mapping("schema", "a JSON schema: an object")
    if schema is None:
        raise wanted.wrong("schema", "a JSON schema: an object")
    return {**told, "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}}


def _read_thinking(fields: Fields, max_tokens: int | None) -> tuple[dict[str, Any], int | None, bool]:
    """Variables for the template, the limit of the thought, whether it is told. No thought unless it is asked for."""
    thinking = fields.object("thinking", "an object with a type")
    if thinking is None:
        return _variables(False), None, True
    kind = thinking.choice("type", "enabled", "adaptive", "disabled")
    if kind is None:
        raise thinking.wrong("type", "'enabled', 'adaptive' or 'disabled'")
    shown = thinking.choice("display", "summarized", "omitted") != "omitted"
    budget = thinking.integer("budget_tokens", 1)
    if kind != "enabled":
        return _variables(kind == "adaptive"), None, shown
    if budget is None or (max_tokens is not None and budget >= max_tokens):
        raise thinking.wrong("budget_tokens", "an integer >= 1 and less than max_tokens")
    return _variables(True), budget, shown


def _variables(thinks: bool) -> dict[str, Any]:
    """What chat templates call it."""
    return {"enable_thinking": thinks, "thinking": thinks}
