"""`InputReader`: what an inference brings, plain, in base64, or in chunks."""

from __future__ import annotations

import base64
import binascii
import weakref
from dataclasses import dataclass, field

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import MAX_MESSAGE_BYTES

__all__ = ["InputReader"]

_MAX_CHUNKS = 65536


@dataclass(slots=True)
class _Chunks:
    """Chunks by index, of a stream that has not ended."""

    texts: dict[int, str] = field(default_factory=dict)
    num_chars: int = 0


class InputReader:
    """Reads the inferences of one task. Chunks of streams are kept per connection, so that clients do not mix them up.

    The command's `object` decides: with "stream" in it, `data` is {"delta": str, "index": int, "finish": bool}, and the chunks
    0..n, in whatever order, are one input once the one with "finish" comes; with "base64" in it, the text is base64.
    """

    def __init__(self) -> None:
        self._streams: weakref.WeakKeyDictionary[Connection, _Chunks] = weakref.WeakKeyDictionary()

    def read_text(self, command: Command) -> str | None:
        """The whole text, or None while chunks are missing.

        Raises `UnitError`: STREAM (and the chunks are forgotten), BASE64, also if the bytes are not UTF-8, JSON for data that
        is no string.
        """
        text = self._collect(command)
        if text is None or "base64" not in command.object:
            return text
        try:
            return _decode(text).decode()
        except UnicodeDecodeError as error:
            raise UnitError(Code.BASE64, f"The decoded bytes are not UTF-8: {error.reason}.") from None

    def read_bytes(self, command: Command) -> bytes | None:
        """The bytes of base64, whether `object` says so or not; otherwise as `read_text`."""
        text = self._collect(command)
        return None if text is None else _decode(text)

    def _collect(self, command: Command) -> str | None:
        if "stream" in command.object:
            return self._add_chunk(command)
        if not isinstance(command.data, str):
            raise UnitError(Code.JSON)
        return command.data

    def _add_chunk(self, command: Command) -> str | None:
        chunks = self._streams.setdefault(command.connection, _Chunks())
        try:
            done = _add(chunks, command.data)
        except UnitError:
            del self._streams[command.connection]
            raise
        if not done:
            return None
        del self._streams[command.connection]
        if chunks.texts.keys() != set(range(len(chunks.texts))):
            raise UnitError(Code.STREAM)
        return "".join(chunks.texts[i] for i in range(len(chunks.texts)))


def _add(chunks: _Chunks, data: object) -> bool:
    """Keep a chunk; whether it is the last. Raises `UnitError` STREAM for what is none, or one too many."""
    if not isinstance(data, dict):
        raise UnitError(Code.STREAM)
    delta, index, finish = data.get("delta"), data.get("index"), data.get("finish")
    if not isinstance(delta, str) or type(index) is not int or not isinstance(finish, bool):
        raise UnitError(Code.STREAM)
    chunks.num_chars += len(delta) - len(chunks.texts.get(index, ""))
    chunks.texts[index] = delta
    if len(chunks.texts) > _MAX_CHUNKS or chunks.num_chars > MAX_MESSAGE_BYTES:
        raise UnitError(Code.STREAM)
    return finish


def _decode(text: str) -> bytes:
    """Raises `UnitError` BASE64. White space is allowed, and so is missing padding."""
    packed = "".join(text.split())
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise UnitError(Code.BASE64) from None
