"""`TextChunks`: a text that a client sends in numbered chunks, given out in order as far as it has come."""

from __future__ import annotations

import sys

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import MAX_MESSAGE_BYTES
from trivium.doors.unit.input import CHUNK_BYTES

__all__ = ["TextChunks"]

_MAX_WAITING = 65536


class TextChunks:
    """Chunks are numbered from 0 on, and come in whatever order.

    Attributes:
        num_bytes: of memory for those that wait.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._waiting: dict[int, str] = {}  # for those before them
        self._next = 0
        self._num_chars = 0

    @property
    def begun(self) -> bool:
        """Whether some of the text has been given out."""
        return self._next > 0

    def add(self, delta: str, index: int, finish: bool) -> str:
        """The text that has become complete with this chunk. Raises `UnitError` STREAM for a number that was there already, a
        gap at the end, or too much."""
        if index < self._next or index in self._waiting:
            raise UnitError(Code.STREAM)
        self._waiting[index] = delta
        self.num_bytes += _num_bytes(delta)
        self._num_chars += len(delta)
        if len(self._waiting) > _MAX_WAITING or self._num_chars > MAX_MESSAGE_BYTES:
            raise UnitError(Code.STREAM)
        text = []
        while self._next in self._waiting:
            text.append(self._waiting.pop(self._next))
            self.num_bytes -= _num_bytes(text[-1])
            self._next += 1
        if finish and self._waiting:
            raise UnitError(Code.STREAM)
        return "".join(text)


def _num_bytes(delta: str) -> int:
    return sys.getsizeof(delta) + CHUNK_BYTES
