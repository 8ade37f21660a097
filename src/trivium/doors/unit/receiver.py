"""`Receiver`: the way of a connection's bytes to the router."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trivium.doors.unit.connection import Connection
from trivium.doors.unit.framer import Framer

if TYPE_CHECKING:
    from trivium.doors.unit.router import Router

__all__ = ["Receiver"]


class Receiver:
    """Cuts what one connection receives into messages and has them answered."""

    def __init__(self, connection: Connection, router: Router) -> None:
        self._connection = connection
        self._router = router
        self._framer = Framer()
        self._last = time.monotonic()
        self._paused = False

    @property
    def num_pending(self) -> int:
        """Bytes kept of a message that has not ended."""
        return self._framer.num_pending

    def feed(self, data: bytes) -> None:
        """Bytes have come. Once the connection is closed, what is left of them is dropped."""
        self._last = time.monotonic()
        for received in self._framer.feed(data):
            if self._connection.closed:
                return
            self._router.route(self._connection, received)

    def pause(self, paused: bool) -> None:
        """While nothing is read, a client that has sent the rest of its message must not be taken for silent."""
        self._paused = paused
        self._last = time.monotonic()

    def expire(self, now: float) -> None:
        """Give up a message of which nothing more comes. To be called every second or so."""
        if not self._framer.idle and not self._paused:
            for received in self._framer.expire(now - self._last):
                self._router.route(self._connection, received)
