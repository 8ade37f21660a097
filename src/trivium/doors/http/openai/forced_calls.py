"""Reading answers that a grammar has made tool calls of, whole or in pieces."""

from __future__ import annotations

import json
import re
import uuid
from typing import Protocol

from trivium.parsing.tool_calls import ToolCallDelta

__all__ = ["CallListStream", "CallReader", "NamedCallStream", "new_call_id"]

# What stands between two calls' arguments: the end of a call, a comma, and the next call's beginning with its name.
_HEADER = re.compile(r'[\s,\[}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*(?=\S)')


class CallReader(Protocol):
    """Reads one answer piece by piece: what is new of (content, calls)."""

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]: ...

    def finish(self) -> tuple[str, list[ToolCallDelta]]: ...


def new_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


class NamedCallStream:
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        if not text:
            return "", []
        first = [] if self._begun else [ToolCallDelta(0, new_call_id(), self._name)]
        self._begun = True
        return "", [*first, ToolCallDelta(0, arguments=text)]

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        return "", []


class CallListStream:
    """The text is a JSON list of {"name": …, "parameters": {…}}. Arguments are passed on as they come.

    A call that is cut off before its arguments begin is left out; if it is the first, the text is content.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._num_calls = 0
        self._depth = 0  # brackets that are open in the arguments
        self._in_string = False
        self._escaped = False
        self._in_arguments = False

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        self._pending += text
        deltas: list[ToolCallDelta] = []
        while self._pending and self._advance(deltas):
            pass
        return "", deltas

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        rest, self._pending = self._pending, ""
        return ("" if self._num_calls else rest), []

    def _advance(self, deltas: list[ToolCallDelta]) -> bool:
        """Read a call's beginning, or some of its arguments; False if more text must come first."""
        if self._in_arguments:
            end = self._arguments_end()
            text, self._pending = self._pending[:end], self._pending[end:]
            deltas.append(ToolCallDelta(self._num_calls - 1, arguments=text))
            return True
        header = _HEADER.match(self._pending)
        if header is None:
            return False
        deltas.append(ToolCallDelta(self._num_calls, new_call_id(), json.loads(header[1])))
        self._num_calls += 1
        self._pending = self._pending[header.end() :]
        self._in_arguments = True
        return True

    def _arguments_end(self) -> int:
        """How much of the pending text belongs to the arguments, an object; notes when they are complete."""
        at = 0
        while at < len(self._pending):
            char = self._pending[at]
            at += 1
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self._in_arguments = False
                    return at
        return at
