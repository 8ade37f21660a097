"""`Callers`: who calls this process's units over the bus; each is a client with a URL."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import zmq

from trivium.doors.unit.connection import Connection
from trivium.doors.unit.remote.endpoint import Change, Sockets

__all__ = ["Caller", "Callers"]

log = logging.getLogger("trivium.unit")

_MAX_CALLERS = 1000
_MAX_UNSENT_BYTES = 4 * 2**20  # a caller that leaves so much is cut off
_BUSY_BYTES = 4096  # unsent, from which on text is gathered into larger frames
_REACH_SECONDS = 10.0  # within which a new caller's URL has to answer
_LINGER_MS = 500  # for last frames


class Caller(Connection):
    """Has frames pushed to its URL, one a message, in order. It has gone once nobody takes them there any more."""

    def __init__(self, sockets: Sockets, url: str, gone: Callers) -> None:
        """Raises OSError."""
        self.url = url
        self.name = f"bus:{url}"
        self._callers = gone
        self._unsent: deque[bytes] = deque()
        self._num_unsent = 0  # bytes
        self._sender: asyncio.Task[None] | None = None
        self._unreached: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(_REACH_SECONDS, self._give_up)
        self._endpoint = sockets.connect(zmq.PUSH, url, changed=self._changed)

    @property
    def busy(self) -> bool:
        return self._num_unsent > _BUSY_BYTES

    def send(self, frame: bytes, *, apart: bool = False) -> None:
        if self.closed or (not self._unsent and self._endpoint.send(frame)):
            return
        self._unsent.append(frame)
        self._num_unsent += len(frame)
        if self._num_unsent > _MAX_UNSENT_BYTES:
            log.warning("%s does not take what it is sent and is cut off", self.name)
            self.close()
        elif self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_later())

    def close(self) -> None:
        """End it."""
        self.closed = True
        self._reached()
        if self._sender is not None:
            self._sender.cancel()
        self._endpoint.close(_LINGER_MS)
        self._callers.forget(self)

    async def _send_later(self) -> None:
        while self._unsent:
            await self._endpoint.send_soon(self._unsent[0])
            self._num_unsent -= len(self._unsent.popleft())
        self._sender = None

    def _changed(self, change: Change) -> None:
        if change is Change.UP:
            self._reached()
        elif change is Change.DOWN:
            self.close()

    def _reached(self) -> None:
        if self._unreached is not None:
            self._unreached.cancel()
            self._unreached = None

    def _give_up(self) -> None:
        log.warning("%s cannot be reached", self.name)
        self.close()


class Callers:
    """All callers, by their URLs."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._callers: dict[str, Caller] = {}

    def at(self, url: str) -> Caller:
        """Who is to be answered there. Raises ValueError for one too many, and OSError."""
        caller = self._callers.get(url)
        if caller is None:
            if len(self._callers) >= _MAX_CALLERS:
                raise ValueError(f"there are {_MAX_CALLERS} callers")
            caller = self._callers[url] = Caller(self._sockets, url, self)
        return caller

    def forget(self, caller: Caller) -> None:
        """One has gone."""
        if self._callers.get(caller.url) is caller:
            del self._callers[caller.url]

    def close(self) -> None:
        """End all."""
        for caller in tuple(self._callers.values()):
            caller.close()
