"""`system` and `messages`: turns made of blocks, told as the messages of a chat completion."""

from __future__ import annotations

import json
from typing import Any

from trivium.doors.http.limits import MAX_MESSAGES
from trivium.doors.http.openai.fields import Fields
from trivium.doors.http.translation import Conversation, fields_of, joined_text, required_string

__all__ = ["read_conversation"]

_TEXT = {"text": "text"}
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}


def read_conversation(fields: Fields) -> Conversation:
    """Raises `RequestError`."""
    reader = _TurnReader()
    system = fields.any("system")
    if system is not None:
        reader.conversation.add("system", "system", joined_text(system, "system", _TEXT))
    messages = fields.list("messages", "a list of messages", most=MAX_MESSAGES)
    if not messages:
        raise fields.wrong("messages", "a non-empty list of messages")
    for index, message in enumerate(messages):
        reader.read(fields_of(message, f"messages[{index}]"), f"messages[{index}]")
    return reader.conversation


class _TurnReader:
    """Turns of one role that follow each other are one turn, as the API has it: their texts are joined by an empty line."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self._tools: dict[str, str] = {}  # names of the tools used, by id

    def read(self, message: Fields, name: str) -> None:
        role = message.choice("role", *_BLOCKS)
        if role is None:
            raise message.wrong("role", " or ".join(map(repr, _BLOCKS)))
        content = message.any("content")
        if isinstance(content, str):
            self._say(name, role, content)
            return
        if not isinstance(content, list):
            raise message.wrong("content", "a string or a list of blocks")
        if role == "assistant":
            self._assistant(name, content)
        else:
            self._user(name, role, content)

    def _user(self, name: str, role: str, blocks: list[Any]) -> None:
        """Results of tools are messages of their own; texts between them are one each."""
        texts: list[str] = []
        for block, place in self._blocks(name, role, blocks):
            if block.any("type") == "text":
                texts.append(required_string(block, "text"))
                continue
            if texts:
                self._say(name, role, "".join(texts))
                texts = []
            self._result(block, place)
        if texts or not blocks:
            self._say(name, role, "".join(texts))

    def _result(self, block: Fields, place: str) -> None:
        tool_id = required_string(block, "tool_use_id")
        if tool_id not in self._tools:
            raise block.wrong("tool_use_id", "the id of a tool_use before it")
        content = block.any("content")
        text = "" if content is None else joined_text(content, f"{place}.content", _TEXT)
        if block.boolean("is_error"):
            text = f"Error: {text}"  # chat templates know no other way to tell it
        self.conversation.add(place, "tool", text, tool_call_id=tool_id, name=self._tools[tool_id])

    def _assistant(self, name: str, blocks: list[Any]) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for block, _ in self._blocks(name, "assistant", blocks):
            kind = block.any("type")
            if kind == "text":
                texts.append(required_string(block, "text"))
            elif kind == "thinking":
                thoughts.append(required_string(block, "thinking"))
            elif kind == "tool_use":
                calls.append(self._call(block))
            # What is in redacted_thinking only its maker can read.
        if thoughts or calls:
            more: dict[str, Any] = {"tool_calls": calls} if calls else {}
            if thoughts:
                more["reasoning_content"] = "".join(thoughts)
            self.conversation.add(name, "assistant", "".join(texts) if texts or not calls else None, **more)
        else:
            self._say(name, "assistant", "".join(texts))

    def _call(self, block: Fields) -> dict[str, Any]:
        tool_id, tool = required_string(block, "id"), required_string(block, "name")
        arguments = block.mapping("input")
        if arguments is None:
            raise block.wrong("input", "an object")
        self._tools[tool_id] = tool
        return {"id": tool_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}

    def _blocks(self, name: str, role: str, blocks: list[Any]) -> list[tuple[Fields, str]]:
        """The blocks of a turn, which must be of kinds that its role may have."""
        checked = []
        for index, value in enumerate(blocks):
            place = f"{name}.content[{index}]"
            block = fields_of(value, place)
            if block.choice("type", *_BLOCKS[role]) is None:
                raise block.wrong("type", " or ".join(map(repr, _BLOCKS[role])))
            checked.append((block, place))
        return checked

    def _say(self, name: str, role: str, text: str) -> None:
        last = self.conversation.messages[-1] if self.conversation.messages else {}
        if last.keys() == {"role", "content"} and last["role"] == role:
            last["content"] += f"\n\n{text}"
        else:
            self.conversation.add(name, role, text)
