"""`ReplyLine`: where units answer one client."""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from trivium.doors.unit.connection import Connection
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.messages import Frame, read_frame

__all__ = ["ReplyLine"]

log = logging.getLogger("trivium.unit")


class ReplyLine:
    """Gives what units say to `told`, with the client and the bytes that the client is to get: all frames have one form."""

    def __init__(
        self, sockets: Sockets, connection: Connection, url: str, told: Callable[[Connection, Frame, bytes], None]
    ) -> None:
        """Raises OSError."""
        self.connection = connection
        self._told = told
        self._complained = False
        self._endpoint = sockets.bind(zmq.PULL, url, self._receive)

    @property
    def url(self) -> str:
        """Where units send to."""
        return self._endpoint.url

    def close(self) -> None:
        """The client has gone."""
        self._endpoint.close()

    def _receive(self, parts: list[bytes]) -> None:
        try:
            frame = read_frame(b"".join(parts))
            text = frame.write()
        except ValueError as error:
            if not self._complained:
                self._complained = True
                log.warning("a unit tells %s what is no frame: %s", self.connection.name, error)
            return
        self._told(self.connection, frame, text)
