"""Reading JSON as models write it: an object's members together with their own text."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["json_depth", "read_object"]

_BLANK = re.compile(r"[ \t\n\r]*")
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)


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


def json_depth(text: str) -> tuple[int, bool]:
    """How many brackets are open at the end of `text`, and whether a string is."""
    depth = 0
    for mark in _MARKS.findall(text):
        if mark == '"':
            return depth, True
        if len(mark) == 1:
            depth += 1 if mark in "{[" else -1
    return depth, False


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
