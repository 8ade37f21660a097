"""`WaitingCommands`: commands of one connection that wait for its setup to end."""

from __future__ import annotations

from collections import deque

import orjson

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection

__all__ = ["WaitingCommands"]

MAX_COMMANDS = 64
MAX_BYTES = 8 * 2**20


class WaitingCommands:
    """First in, first out. They are kept as text, which takes far less memory than what it describes can.

    Attributes:
        num_bytes: that are kept.
    """

    def __init__(self, connection: Connection) -> None:
        self.num_bytes = 0
        self._connection = connection
        self._texts: deque[tuple[int, bytes]] = deque()

    def add(self, command: Command, resets: int, room: int) -> bool:
        """Keep a command that came after so many resets, in at most `room` bytes; False if that is too little.

        Raises ValueError for data that is nested too deeply.
        """
        try:
            text = orjson.dumps([command.request_id, command.work_id, command.action, command.object, command.data])
        except TypeError as error:
            raise ValueError(str(error)) from error
        if len(self._texts) == MAX_COMMANDS or len(text) > min(room, MAX_BYTES - self.num_bytes):
            return False
        self._texts.append((resets, text))
        self.num_bytes += len(text)
        return True

    def take(self) -> tuple[int, Command] | None:
        """The next one, and after how many resets it came; None if there is none."""
        if not self._texts:
            return None
        resets, text = self._texts.popleft()
        self.num_bytes -= len(text)
        return resets, Command(self._connection, *orjson.loads(text))
