"""`TextChunks`: a text that a client sends in numbered chunks, given out in order as far as it has come."""

from __future__ import annotations

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import MAX_MESSAGE_BYTES

__all__ = ["TextChunks"]

_MAX_WAITING = 65536


class TextChunks:
    """Chunks are {"delta": str, "index": int, "finish": bool}, from 0 on, in whatever order."""

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}  # for those before them
        self._next = 0
        self._num_chars = 0

    def add(self, data: object) -> tuple[str, bool]:
        """The text that has become complete with this chunk, and whether all has come. Raises `UnitError` STREAM for what is no
        chunk, for a number that was there already, a gap at the end, or too much."""
        if not isinstance(data, dict):
            raise UnitError(Code.STREAM)
        delta, index, finish = data.get("delta"), data.get("index"), data.get("finish")
        if not isinstance(delta, str) or type(index) is not int or not isinstance(finish, bool):
            raise UnitError(Code.STREAM)
        if index < self._next or index in self._waiting:
            raise UnitError(Code.STREAM)
        self._waiting[index] = delta
        self._num_chars += len(delta)
        if len(self._waiting) > _MAX_WAITING or self._num_chars > MAX_MESSAGE_BYTES:
            raise UnitError(Code.STREAM)
        text = []
        while self._next in self._waiting:
            text.append(self._waiting.pop(self._next))
            self._next += 1
        if finish and self._waiting:
            raise UnitError(Code.STREAM)
        return "".join(text), finish
