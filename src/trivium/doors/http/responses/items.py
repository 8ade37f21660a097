"""`input` and `instructions`: items of a conversation, told as the messages of a chat completion."""

from __future__ import annotations

from typing import Any

from trivium.doors.http.limits import MAX_MESSAGES
from trivium.doors.http.openai.fields import Fields, too_many, wrong
from trivium.doors.http.translation import Conversation, fields_of, joined_text, required_string
from trivium.errors import RequestError

__all__ = ["read_conversation"]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_THOUGHT = {"reasoning_text": "text"}


def read_conversation(fields: Fields) -> Conversation:
    """Raises `RequestError`."""
    reader = _ItemReader()
    instructions = fields.string("instructions")
    if instructions is not None:
        reader.conversation.add("instructions", "system", instructions)
    given = fields.required("input", "a string or a list of items")
    if isinstance(given, str):
        reader.conversation.add("input", "user", given)
    elif isinstance(given, list):
        if len(given) > MAX_MESSAGES:
            raise too_many("input", MAX_MESSAGES, len(given))
        for index, item in enumerate(given):
            reader.read(fields_of(item, f"input[{index}]"), f"input[{index}]")
    else:
        raise wrong("input", "a string or a list of items", given)
    if not reader.conversation.messages or given == []:
        raise wrong("input", "a string or a list of items with a message among them", given)
    return reader.conversation


class _ItemReader:
    """A thought, a text and calls that follow each other are one message of the assistant."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self._turn: dict[str, Any] | None = None  # the assistant's message, while calls may be added to it
        self._thought: dict[str, str] = {}  # for the next message of the assistant
        self._calls: dict[str, str] = {}  # names of the functions called, by call id

    def read(self, item: Fields, name: str) -> None:
        kind = item.any("type")
        if kind is None and "role" in item:
            kind = "message"
        if kind == "message":
            self._message(item, name)
        elif kind == "function_call":
            self._call(item, name)
        elif kind == "function_call_output":
            self._output(item, name)
        elif kind == "reasoning":
            self._reasoning(item, name)
        elif kind == "item_reference":
            raise RequestError(
                f"{name}.type must not be 'item_reference': nothing is stored that it could refer to; send the item itself",
                field=f"{name}.type",
                value=kind,
            )
        else:
            raise item.wrong("type", "'message', 'function_call', 'function_call_output' or 'reasoning'")

    def _message(self, item: Fields, name: str) -> None:
        role = item.choice("role", *_ROLES)
        if role is None:
            raise item.wrong("role", " or ".join(map(repr, _ROLES)))
        text = joined_text(item.any("content"), f"{name}.content", _TEXTS)
        if role == "assistant":
            self._turn = self._assistant(name, text)
        else:
            self._turn = None
            self.conversation.add(name, _ROLES[role], text)

    def _call(self, item: Fields, name: str) -> None:
        call_id, function, arguments = (required_string(item, member) for member in ("call_id", "name", "arguments"))
        self._calls[call_id] = function
        if self._turn is None or self._thought:
            self._turn = self._assistant(name, None)
        call = {"id": call_id, "type": "function", "function": {"name": function, "arguments": arguments}}
        self._turn.setdefault("tool_calls", []).append(call)

    def _output(self, item: Fields, name: str) -> None:
        call_id = required_string(item, "call_id")
        if call_id not in self._calls:
            raise item.wrong("call_id", "that of a function_call before it")
        self._turn = None
        text = joined_text(item.any("output"), f"{name}.output", _TEXTS)
        self.conversation.add(name, "tool", text, tool_call_id=call_id, name=self._calls[call_id])

    def _reasoning(self, item: Fields, name: str) -> None:
        """Only our own thoughts can be read: those of other servers are encrypted, and left out."""
        content = item.any("content")
        if content is not None:
            self._thought = {"reasoning_content": joined_text(content, f"{name}.content", _THOUGHT)}

    def _assistant(self, name: str, text: str | None) -> dict[str, Any]:
        thought, self._thought = self._thought, {}
        return self.conversation.add(name, "assistant", text, **thought)
