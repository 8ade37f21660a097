"""`Endpoint`: a ZeroMQ socket on the event loop, with bounds, and what happens on it as calls."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import count
from pathlib import Path
from typing import cast

import zmq
import zmq.asyncio

__all__ = ["MAX_BYTES", "Change", "Endpoint", "Sockets"]

log = logging.getLogger("trivium.unit")

MAX_BYTES = 6 * 2**20  # of a message: one of a client in base64, and its envelope
_MAX_QUEUED = 32  # messages, in each direction of each connection
_MAX_SOCKETS = 8192
_RECONNECT_MS, _RECONNECT_MAX_MS = 2, 1000
_HEARTBEAT_MS, _SILENT_MS = 3000, 9000  # a peer that stops answering within its system is given up

_monitors = count()


class Change(Enum):
    """What became of a connection that an endpoint makes."""

    UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
    DOWN = zmq.EVENT_DISCONNECTED
    REFUSED = zmq.EVENT_CONNECT_RETRIED  # nobody is there; it goes on trying


class Sockets:
    """All sockets of one bus."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._open: set[Endpoint] = set()

    def bind(
        self, kind: int, url: str, receive: Callable[[list[bytes]], None] | None = None, *, inner: Path | None = None
    ) -> Endpoint:
        """Take connections at a URL, whose port may be "*". `receive` gets each message. Raises OSError.

        Give `inner`, a folder that others cannot enter, if they can enter that of the socket: it is made there, and gets its
        name only when it is closed to them.
        """
        endpoint = self._make(kind, url, receive)
        path = Path(url.removeprefix("ipc://")) if url.startswith("ipc://") else None
        made = path if path is None or inner is None else inner / f"{path.name}.new"
        try:
            endpoint.socket.bind(url if made is None else f"ipc://{made}")
            if path is not None and made is not None:
                made.chmod(0o600)
                made.replace(path)
                endpoint.holds(path)
        except zmq.ZMQError as error:
            endpoint.close()
            raise OSError(error.errno, error.strerror, url) from error
        except OSError:
            endpoint.close()
            raise
        endpoint.url = endpoint.socket.get_string(zmq.LAST_ENDPOINT) if path is None else url
        return endpoint

    def connect(
        self,
        kind: int,
        url: str,
        receive: Callable[[list[bytes]], None] | None = None,
        changed: Callable[[Change], None] | None = None,
    ) -> Endpoint:
        """Connect to a URL, now or as soon as somebody is there. Raises OSError if it is no URL."""
        endpoint = self._make(kind, url, receive)
        if changed is not None:
            endpoint.watch(changed)
        try:
            endpoint.socket.connect(url)
        except zmq.ZMQError as error:
            endpoint.close()
            raise OSError(error.errno, error.strerror, url) from error
        endpoint.url = url
        return endpoint

    def close(self) -> None:
        """End all of them. What has not been sent is dropped."""
        for endpoint in tuple(self._open):
            endpoint.close()
        self._context.term()

    def _make(self, kind: int, url: str, receive: Callable[[list[bytes]], None] | None) -> Endpoint:
        endpoint = Endpoint(self._context.socket(kind), self._open.discard)
        endpoint.socket.set(zmq.IPV6, "[" in url)  # an IPv4 address would be told in IPv6's form
        self._open.add(endpoint)
        if receive is not None:
            endpoint.read(receive)
        return endpoint


class Endpoint:
    """One socket. Nothing waits here: a message that cannot leave is refused, and what is called must be quick."""

    def __init__(self, socket: zmq.asyncio.Socket, closed: Callable[[Endpoint], None]) -> None:
        self.socket = socket
        self.url = ""
        self._file: tuple[Path, int] | None = None  # that stands for it, which ZeroMQ would leave behind
        self._closed = closed
        self._monitor: zmq.asyncio.Socket | None = None
        self._jobs: list[asyncio.Task[None]] = []
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, _MAX_QUEUED)
        socket.set(zmq.RCVHWM, _MAX_QUEUED)
        socket.set(zmq.MAXMSGSIZE, MAX_BYTES)
        socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)

    def send(self, *parts: bytes) -> bool:
        """Send a message; False if too many wait already, or nobody can take it."""
        if self.socket.closed:
            return False
        sent = cast("asyncio.Future[object]", self.socket.send_multipart(parts, flags=zmq.NOBLOCK))
        return sent.exception() is None

    async def send_soon(self, message: bytes) -> None:
        """Send a message as soon as it can leave."""
        await self.socket.send(message)

    def close(self, linger_ms: int = 0) -> None:
        """End it; what waits to be sent gets so long, if anybody takes it."""
        if self.socket.closed:
            return
        self._closed(self)
        for job in self._jobs:
            job.cancel()
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
        self.socket.close(linger_ms)
        if self._file is not None:
            path, inode = self._file
            with suppress(OSError):
                if path.lstat().st_ino == inode:  # nobody else has taken the name
                    path.unlink()

    def holds(self, path: Path) -> None:
        """This file stands for it."""
        self._file = path, path.lstat().st_ino

    def read(self, receive: Callable[[list[bytes]], None]) -> None:
        """Have `receive` called with each message."""
        self._start(self.socket, receive)

    def watch(self, changed: Callable[[Change], None]) -> None:
        """Have `changed` called when a connection is made or lost."""
        name = f"inproc://monitor-{next(_monitors)}"
        self._monitor = self.socket.get_monitor_socket(sum(change.value for change in Change), name)
        self._start(self._monitor, lambda parts: changed(Change(struct.unpack("=hi", parts[0])[0])))

    def _start(self, socket: zmq.asyncio.Socket, receive: Callable[[list[bytes]], None]) -> None:
        self._jobs.append(asyncio.get_running_loop().create_task(_read(socket, receive)))


async def _read(socket: zmq.asyncio.Socket, receive: Callable[[list[bytes]], None]) -> None:
    while not socket.closed:
        parts = await socket.recv_multipart()
        try:
            receive(parts)
        except Exception:
            log.exception("a message on the bus was not understood")
        await asyncio.sleep(0)  # however fast they come, others have their turn
