"""Replies as bytes: one compact line of JSON each, keys in alphabetical order."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["MAX_FRAME", "NONE", "StreamFrames", "reply", "to_ascii", "to_json"]

NONE = "None"  # how the protocol says that there is no object or no data
MAX_FRAME = 1000  # bytes of a streamed text frame, also in ASCII form: some clients have buffers of 1 kB
_MIN_ROOM = 64  # for text, if the ids of a frame leave no more

_NON_ASCII = re.compile(r"[^\x00-\x7f]")


def reply(request_id: str, work_id: str, *, object: str = NONE, data: object = NONE, code: int = 0, message: str = "") -> bytes:
    """One frame with all seven keys and a line feed.

    Braces inside strings are escaped, because some clients count braces without knowing strings.
    """
    return b'{"created":%d,"data":%b%b' % (time.time(), to_json(data), _tail(request_id, work_id, object, code, message))


class StreamFrames:
    """The frames of one streamed answer, numbered from 0, each at most `MAX_FRAME` bytes unless its ids are very long."""

    __slots__ = ("_ids", "_room", "_tail", "index")

    def __init__(self, request_id: str, work_id: str, object: str) -> None:
        self._ids = (request_id, work_id, object)
        self._tail = _tail(request_id, work_id, object, 0, "")
        self._room = max(_MIN_ROOM, MAX_FRAME - len(to_ascii(self._delta("", 10**6))))
        self.index = 0

    def deltas(self, text: str) -> list[bytes]:
        """Frames with a text: one, or several if it is long; none for an empty text."""
        pieces = [text] if len(text) * 12 <= self._room else split_text(text, self._room)
        frames = []
        for piece in pieces:
            if piece:
                frames.append(self._delta(piece, self.index))
                self.index += 1
        return frames

    def finish(self, code: int = 0, message: str = "") -> bytes:
        """The last frame, without text."""
        data = {"delta": "", "finish": True, "index": self.index}
        return b'{"created":%d,"data":%b%b' % (time.time(), to_json(data), _tail(*self._ids, code, message))

    def _delta(self, text: str, index: int) -> bytes:
        return b'{"created":%d,"data":{"delta":%b,"finish":false,"index":%d}%b' % (
            time.time(),
            _string(text),
            index,
            self._tail,
        )


def split_text(text: str, room: int) -> list[str]:
    """Cut a text into pieces that take at most `room` (12 at least) bytes each, in a JSON string in ASCII."""
    pieces, start, used = [], 0, 0
    for i, char in enumerate(text):
        size = _width(char)
        if used + size > room:
            pieces.append(text[start:i])
            start, used = i, 0
        used += size
    pieces.append(text[start:])
    return pieces


def to_ascii(frame: bytes) -> bytes:
    """The same JSON with escapes instead of characters beyond ASCII."""
    if frame.isascii():
        return frame
    return _NON_ASCII.sub(_escape, frame.decode()).encode()


def _width(char: str) -> int:
    if char < " " or char in "{}":
        return 6
    if char in '"\\':
        return 2
    if char <= "\x7f":
        return 1
    return 6 if char <= "\uffff" else 12


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _tail(request_id: str, work_id: str, object: str, code: int, message: str) -> bytes:
    """A frame's end, from the error on."""
    return b',"error":{"code":%d,"message":%b},"object":%b,"request_id":%b,"work_id":%b}\n' % (
        code,
        _string(message),
        _string(object),
        _string(request_id),
        _string(work_id),
    )


def _string(text: str) -> bytes:
    try:
        written = orjson.dumps(text)
    except TypeError:  # a lone surrogate, as in the name of a file that is not UTF-8
        written = orjson.dumps(text.encode("utf-8", "replace").decode())
    return written.replace(b"{", b"\\u007b").replace(b"}", b"\\u007d")


def to_json(value: object) -> bytes:
    """Any JSON value, keys sorted. Raises TypeError for what JSON does not have."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        items: list[tuple[str, Any]] = sorted(value.items())
        return b"{%b}" % b",".join(_string(key) + b":" + to_json(item) for key, item in items)
    if isinstance(value, (list, tuple)):
        return b"[%b]" % b",".join(map(to_json, value))
    return orjson.dumps(value)
