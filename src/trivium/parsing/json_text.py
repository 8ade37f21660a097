"""Reading JSON as models write it: an object's members together with their own text."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["JsonState", "read_object"]

_BLANK = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(r'["{}\[\]]')
_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)  # up to the closing quote, to a cut escape, or to the end


def read_object(text: str, start: int = 0) -> tuple[dict[str, tuple[Any, str]], int]:
    """The JSON object at `start`: name -> (value, the value's text), and the position after it.

    Raises ValueError if there is no complete object, RecursionError if it is nested too deeply.
    """
    members: dict[str, tuple[Any, str]] = {}
    at = _expect(text, _skip(text, start), "{")
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError(f"a member's name must be a string, got {name!r}")
        begin = _expect(text, _skip(text, at), ":")
        value, at = _DECODER.raw_decode(text, begin)
        members[name] = (value, text[begin:at])
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _expect(text, at, ",")


class JsonState:
    """Where the beginning of a JSON text ends: `depth` brackets are open, and perhaps a string. Each character is read once."""

    __slots__ = ("_at", "depth", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._at = 0  # what comes before is read

    def advance(self, text: str, end: int) -> None:
        """Read on to `end`; `text` begins with all that has been read."""
        while True:
            if self.in_string:
                string = _STRING.match(text, self._at, end)
                self._at = self._at if string is None else string.end()
                if self._at == end or text[self._at] != '"':
                    return
                self._at += 1
                self.in_string = False
            mark = _MARK.search(text, self._at, end)
            if mark is None:
                self._at = end
                return
            self._at = mark.end()
            if mark.group() == '"':
                self.in_string = True
            else:
                self.depth += 1 if mark.group() in "{[" else -1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise ValueError(f"expected {mark!r} at position {at}")
    return _skip(text, at + 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
