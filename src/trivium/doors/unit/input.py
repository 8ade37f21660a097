"""`InputReader`: what an inference brings, plain, in base64, or in chunks."""

from __future__ import annotations

import binascii
import sys
import time
from dataclasses import dataclass, field

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import MAX_MESSAGE_BYTES

__all__ = ["CHUNK_BYTES", "MAX_KEPT_BYTES", "QUIET_SECONDS", "STREAM_BYTES", "InputReader", "read_chunk", "too_much"]

QUIET_SECONDS = 60.0  # after which a stream that does not go on is given up
MAX_KEPT_BYTES = 16 * 2**20  # of memory for the chunks of all clients
_MAX_CHUNKS = 65536
STREAM_BYTES, CHUNK_BYTES = 1000, 150  # that are kept beside the text

_Key = tuple[Connection, str]  # of a stream: where it comes from, and its request_id


@dataclass(slots=True)
class _Stream:
    """Chunks by index, of a stream that has not ended."""

    last: Command  # without its data
    heard: float = 0.0
    refused: bool = False  # it has had its error: what still comes of it is dropped
    texts: dict[int, str] = field(default_factory=dict)
    num_chars: int = 0
    num_bytes: int = STREAM_BYTES


class InputReader:
    """Reads the inferences of one task. Chunks of streams are kept per connection and request_id, so that they do not mix.

    The command's `object` decides: with "stream" in it, `data` is {"delta": str, "index": int, "finish": bool}, and the chunks
    0..n, in whatever order, are one input once the one with "finish" comes, which is n; a second chunk 0 begins anew. With
    "base64" in it, the text is base64. Bytes that came as such (`Framer`) stand for their base64.
    """

    def __init__(self) -> None:
        self._streams: dict[_Key, _Stream] = {}
        self.num_kept = 0  # bytes of memory; with those that the task keeps itself

    def read_text(self, command: Command) -> str | None:
        """The whole text, or None while chunks are missing.

        Raises `UnitError`: STREAM (and the chunks are forgotten), BUSY if too many chunks wait, BASE64, also if the bytes are
        not UTF-8, JSON for data that is no string.
        """
        data = self._collect(command)
        if data is None:
            return None
        if "base64" not in command.object:
            return data if isinstance(data, str) else binascii.b2a_base64(data, newline=False).decode("ascii")
        try:
            return _decode(data).decode()
        except UnicodeDecodeError as error:
            raise UnitError(Code.BASE64, f"The decoded bytes are not UTF-8: {error.reason}.") from None

    def read_bytes(self, command: Command) -> bytes | None:
        """The bytes of base64, whether `object` says so or not; otherwise as `read_text`."""
        data = self._collect(command)
        return None if data is None else _decode(data)

    def expire(self, now: float) -> list[Command]:
        """Forget what clients that have gone have begun, and what does not go on; the last command of each stream that is to be
        refused for that. To be called every second or so, with `time.monotonic()`."""
        late = []
        for key, stream in tuple(self._streams.items()):
            if key[0].closed or (stream.refused and now - stream.heard >= QUIET_SECONDS):
                self._forget(key)
            elif now - stream.heard >= QUIET_SECONDS:
                late.append(stream.last)
                self._refuse(stream, now)
        return late

    def _collect(self, command: Command) -> str | bytes | None:
        if "stream" in command.object:
            return self._add_chunk(command)
        if not isinstance(command.data, (str, bytes)):
            raise UnitError(Code.JSON)
        return command.data

    def _add_chunk(self, command: Command) -> str | None:
        key = command.connection, command.request_id
        try:
            delta, index, finish = read_chunk(command.data)
        except UnitError:
            self._forget(key)
            raise
        stream = self._streams.get(key)
        if stream is not None and index == 0 and (stream.refused or 0 in stream.texts):
            self._forget(key)  # the client has lost what it had begun, and uses the id again
            stream = None
        if stream is None:
            stream = self._begin(key, command)
        stream.heard = time.monotonic()
        try:
            if not stream.refused:
                self._add(stream, delta, index)
        finally:
            if finish:
                self._forget(key)
        return _join(stream.texts, index) if finish and not stream.refused else None

    def _begin(self, key: _Key, command: Command) -> _Stream:
        """Raises `UnitError` BUSY."""
        if self.num_kept + STREAM_BYTES > MAX_KEPT_BYTES:
            raise too_much()
        stream = self._streams[key] = _Stream(command.without_data())
        self.num_kept += stream.num_bytes
        return stream

    def _add(self, stream: _Stream, delta: str, index: int) -> None:
        """Raises `UnitError`, and drops the rest of the stream: STREAM if it is too long, BUSY if those of all clients are."""
        before = stream.texts.get(index)
        num_bytes = sys.getsizeof(delta) + (CHUNK_BYTES if before is None else -sys.getsizeof(before))
        stream.num_chars += len(delta) - len(before or "")
        if stream.num_chars > MAX_MESSAGE_BYTES or (before is None and len(stream.texts) == _MAX_CHUNKS):
            self._refuse(stream, stream.heard)
            raise UnitError(Code.STREAM, f"A text has at most {_MAX_CHUNKS} chunks and {MAX_MESSAGE_BYTES} characters.")
        if self.num_kept + num_bytes > MAX_KEPT_BYTES:
            self._refuse(stream, stream.heard)
            raise too_much()
        stream.texts[index] = delta
        stream.num_bytes += num_bytes
        self.num_kept += num_bytes

    def _refuse(self, stream: _Stream, now: float) -> None:
        """What still comes of it shall not be taken for another stream, which would have an error of its own."""
        self.num_kept -= stream.num_bytes - STREAM_BYTES
        stream.num_bytes = STREAM_BYTES
        stream.texts.clear()
        stream.refused, stream.heard = True, now

    def _forget(self, key: _Key) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self.num_kept -= stream.num_bytes


def too_much() -> UnitError:
    """For a chunk that would take more memory than those of one task may."""
    return UnitError(Code.BUSY, "Too many chunks wait for the rest of their texts.")


def read_chunk(data: object) -> tuple[str, int, bool]:
    """Raises `UnitError` STREAM for what is no chunk."""
    if not isinstance(data, dict):
        raise UnitError(Code.STREAM)
    delta, index, finish = data.get("delta"), data.get("index"), data.get("finish")
    if not isinstance(delta, str) or type(index) is not int or not isinstance(finish, bool):
        raise UnitError(Code.STREAM)
    return delta, index, finish


def _join(texts: dict[int, str], last: int) -> str:
    """Raises `UnitError` STREAM if the chunks are not 0..last."""
    if texts.keys() != set(range(len(texts))) or last != len(texts) - 1:
        raise UnitError(Code.STREAM)
    return "".join(texts[i] for i in range(len(texts)))


def _decode(data: str | bytes) -> bytes:
    """Raises `UnitError` BASE64. White space is allowed, and so is missing padding."""
    if isinstance(data, bytes):
        return data
    text = data.rstrip("= \t\r\n")
    try:
        decoded = binascii.a2b_base64(text + "==")
    except ValueError:
        raise UnitError(Code.BASE64) from None
    # What is no base64 is skipped, and padding in the middle is an end: then there are fewer bytes than there should be.
    fits = _fits(len(decoded), len(text)) or _fits(len(decoded), len(text) - sum(map(text.count, " \t\r\n")))
    if not fits or data.count("=", len(text)) > 2:
        raise UnitError(Code.BASE64)
    return decoded


def _fits(num_bytes: int, num_chars: int) -> bool:
    return num_chars % 4 != 1 and num_chars * 3 // 4 == num_bytes
