"""For APIs whose requests are told to the engine as chat completions: what a body becomes, and errors in its own names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.doors.http.openai.fields import Fields, wrong
from trivium.errors import RequestError

__all__ = ["Conversation", "Translation", "entries", "fields_of", "joined_text", "required_string"]


class Conversation:
    """The messages of a chat completion, and where in the body each comes from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._sources: list[str] = []

    def add(self, source: str, role: str, content: str | None, **more: Any) -> dict[str, Any]:
        """A further message, which is returned."""
        message = {"role": role, "content": content, **more}
        self.messages.append(message)
        self._sources.append(source)
        return message

    @property
    def names(self) -> dict[str, str]:
        """What the body calls each message."""
        return {f"messages[{index}]": source for index, source in enumerate(self._sources)}

    @property
    def last(self) -> str:
        """Where the last message comes from."""
        return self._sources[-1]


@dataclass(frozen=True, slots=True)
class Translation:
    """A body, told as that of a chat completion.

    Attributes:
        chat: the chat completion, without `stream`.
        conversation: its messages, and where they come from.
        names: its fields, and what the body calls them.
        unknown: fields of the body that mean nothing.
        max_thought: limits the tokens of the thought, where the model has one.
    """

    chat: dict[str, Any]
    conversation: Conversation
    names: Mapping[str, str]
    stream: bool
    unknown: tuple[str, ...]
    max_thought: int | None = None

    def renamed(self, error: RequestError) -> RequestError:
        """An error about `chat`, told of the body as it came.

        Of several names that begin a field the longest counts: for `messages[2].content` first `messages[2]`, then `messages`.
        """
        field = error.field
        if field is None:
            return error
        names = {**self.names, **self.conversation.names}
        begin = [name for name in names if field.startswith(name) and field[len(name) : len(name) + 1] in ("", ".", "[")]
        longest = max(begin, key=len, default="")
        own = names[longest] + field[len(longest) :] if begin else field
        message, count = re.subn(rf"(?<![\w.]){re.escape(field)}(?!\w)", lambda found: own, str(error))
        if not count:
            message = f"{own}: {message}"
        return type(error)(message, field=own, allowed=error.allowed, value=error.value)


def fields_of(value: object, name: str) -> Fields:
    """The fields of an object within a body, or `RequestError`."""
    if not isinstance(value, dict):
        raise wrong(name, "an object", value)
    return Fields(value, f"{name}.")


def entries(fields: Fields, name: str, allowed: str, most: int) -> Iterator[tuple[str, Fields]]:
    """Names and fields of the objects in a list. Raises `RequestError`."""
    for index, value in enumerate(fields.list(name, allowed, most=most)):
        entry = f"{fields.name(name)}[{index}]"
        yield entry, fields_of(value, entry)


def required_string(fields: Fields, name: str) -> str:
    """A string that must be there, or `RequestError`."""
    value = fields.string(name)
    if value is None:
        raise fields.wrong(name, "a string")
    return value


def joined_text(content: object, name: str, kinds: Mapping[str, str]) -> str:
    """A content that is a text, or a list of parts: their texts with nothing between.

    `kinds` maps the types that a part may have to the member that holds its text. Raises `RequestError`.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(name, "a string or a list of parts", content)
    texts = []
    for index, part in enumerate(content):
        fields = fields_of(part, f"{name}[{index}]")
        kind = fields.choice("type", *kinds)
        if kind is None:
            raise fields.wrong("type", " or ".join(map(repr, kinds)))
        texts.append(required_string(fields, kinds[kind]))
    return "".join(texts)
