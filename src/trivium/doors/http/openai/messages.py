"""The messages of a conversation: their form, and tools' calls and results as text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.doors.http.limits import MAX_MESSAGES, MAX_PROMPT_CHARS
from trivium.doors.http.openai.fields import is_list, too_many, wrong
from trivium.errors import RequestError

__all__ = ["Message", "check_messages", "extended", "text_of", "without_tools"]

Message = Mapping[str, Any]


def check_messages(messages: Any) -> list[Message]:
    """The messages, once their forms are right. Raises `RequestError` naming what is wrong: "messages[2].content"."""
    if not is_list(messages) or not messages:
        raise wrong("messages", "a non-empty list of objects", messages)
    if len(messages) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES, len(messages))
    num_chars = sum(_check_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    if num_chars > MAX_PROMPT_CHARS:
        message = f"messages must have at most {MAX_PROMPT_CHARS} characters together, got {num_chars}"
        raise RequestError(message, field="messages", allowed=f"at most {MAX_PROMPT_CHARS} characters", value=num_chars)
    return list(messages)


def text_of(message: Message) -> str:
    """A message's content as one text."""
    content = message.get("content")
    if is_list(content):
        return "".join(part["text"] for part in content)
    return content or ""


def extended(message: Message, *, before: str = "", after: str = "") -> Message:
    """A message with more text."""
    return {**message, "content": before + text_of(message) + after}


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """The conversation for a template that knows only texts: calls and results between the tags that Hermes models use.

    Results that follow one another become one message of the user, because many templates want the roles to alternate.
    """
    plain: list[Message] = []
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            if in_results:
                plain[-1] = extended(plain[-1], after="\n" + text)
            else:
                plain.append({"role": "user", "content": text})
        else:
            plain.append(_with_calls_as_text(message))
        in_results = message["role"] == "tool"
    return plain


def _with_calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message if message.get("content") is not None else {**message, "content": ""}
    texts = [text_of(message), *(f"<tool_call>\n{_call_text(call['function'])}\n</tool_call>" for call in calls)]
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": "\n".join(text for text in texts if text)}


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is told as it was written
            arguments = json.loads(arguments or "{}")
    return json.dumps({"name": function["name"], "arguments": arguments or {}}, ensure_ascii=False)


def _check_message(message: Any, name: str) -> int:
    """Characters of the message."""
    if not isinstance(message, Mapping):
        raise wrong(name, "an object with a role and a content", message)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise wrong(f"{name}.role", "a non-empty string", role)
    num_chars = _check_calls(message.get("tool_calls"), f"{name}.tool_calls")
    content = message.get("content")
    if is_list(content):
        return num_chars + sum(_check_part(part, f"{name}.content[{index}]") for index, part in enumerate(content))
    if isinstance(content, str):
        return num_chars + len(content)
    if content is not None or role != "assistant":
        raise wrong(f"{name}.content", "a string or a list of parts", content)
    return num_chars


def _check_part(part: Any, name: str) -> int:
    if not isinstance(part, Mapping):
        raise wrong(name, "an object with type and text", part)
    kind = part.get("type", "text")
    if kind != "text":
        raise wrong(f"{name}.type", "'text': the model takes text only", kind)
    if not isinstance(part.get("text"), str):
        raise wrong(f"{name}.text", "a string", part.get("text"))
    return len(part["text"])


def _check_calls(calls: Any, name: str) -> int:
    if calls is None:
        return 0
    if not is_list(calls):
        raise wrong(name, "a list of calls", calls)
    num_chars = 0
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        place = f"{name}[{index}].function"
        if not isinstance(function, Mapping):
            raise wrong(place, "an object with name and arguments", function)
        if not isinstance(function.get("name"), str):
            raise wrong(f"{place}.name", "a string", function.get("name"))
        arguments = function.get("arguments")
        if not (arguments is None or isinstance(arguments, (str, Mapping))):
            raise wrong(f"{place}.arguments", "the text of a JSON object", arguments)
        num_chars += len(arguments) if isinstance(arguments, str) else 0
    return num_chars
