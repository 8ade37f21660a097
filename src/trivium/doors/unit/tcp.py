"""TCP clients of the unit door."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import cast

from trivium.doors.sockets import close_servers
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.receiver import Receiver
from trivium.doors.unit.router import Router

__all__ = ["MAX_CONNECTIONS", "MAX_PENDING_BYTES", "MAX_UNSENT_BYTES", "TcpConnection", "TcpListener"]

log = logging.getLogger("trivium.unit")

MAX_CONNECTIONS = 1000
MAX_UNSENT_BYTES = 4 * 2**20  # a client that leaves so much is cut off
MAX_PENDING_BYTES = 64 * 2**20  # of unfinished messages of all clients together
_BUSY_BYTES = 4096  # unsent, from which on text is gathered into larger frames
_APART_SECONDS = 0.004
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE) ")
_MAX_SPACED = 64  # frames that may wait to be sent apart; more go at once


class TcpConnection(Connection, asyncio.Protocol):
    """One client. While it does not read its replies, nothing more is read from it; after `MAX_UNSENT_BYTES` it is cut off."""

    def __init__(self, listener: TcpListener) -> None:
        self.name = "tcp"
        self.receiver = Receiver(self, listener.router)
        self.num_pending = 0  # bytes of its unfinished message, as the listener has counted them
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._spaced: deque[tuple[bytes, bool]] = deque()  # frames, and whether apart, that wait for those before them
        self._last_sent = 0.0
        self._last_apart = 0.0
        self._heard = False  # anything

    @property
    def busy(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > _BUSY_BYTES

    def send(self, frame: bytes, *, apart: bool = False) -> None:
        if self.closed:
            return
        if self._spaced:
            self._spaced.append((frame, apart))
            if len(self._spaced) > _MAX_SPACED:
                self._send_spaced(at_once=True)
            return
        now = time.monotonic()
        if now < (self._last_sent if apart else self._last_apart) + _APART_SECONDS:
            self._spaced.append((frame, apart))
            self._later()
        else:
            self._write(frame, apart, now)

    def _write(self, frame: bytes, apart: bool, now: float) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        self._last_sent = now
        if apart:
            self._last_apart = now
        transport.write(frame)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("%s does not read what it is sent and is cut off", self.name)
            self.abort()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(_APART_SECONDS, self._send_spaced)

    def _send_spaced(self, *, at_once: bool = False) -> None:
        """Send the next frame that waits for its turn, or all; those behind it that need not be apart go with it."""
        now = time.monotonic()
        apart = False
        while self._spaced and (at_once or not apart):
            frame, apart = self._spaced.popleft()
            self._write(frame, apart, now)
            apart = apart or (bool(self._spaced) and self._spaced[0][1])
        if self._spaced:
            self._later()

    def close(self) -> None:
        """End it once everything is sent."""
        if not self.closed:
            self._send_spaced(at_once=True)
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it without sending what is left."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a frame is a packet
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        host, port = (transport.get_extra_info("peername") or ("gone", 0))[:2]
        self.name = f"tcp:{host}:{port}"
        self._listener.opened(self)

    def data_received(self, data: bytes) -> None:
        if not self._heard and _HTTP.match(data):
            # A web page can have a browser post messages to this port; headers would be skipped like any noise before them.
            log.warning("%s speaks HTTP and is cut off", self.name)
            self.abort()
        self._heard = True
        if not self.closed:
            self.receiver.feed(data)
            self._listener.count_pending(self)

    def pause_writing(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()
            self.receiver.pause(True)

    def resume_writing(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self.receiver.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._spaced.clear()
        self._listener.lost(self)


class TcpListener:
    """The port, and all its clients."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.connections: set[TcpConnection] = set()
        self._num_pending = 0  # bytes of unfinished messages
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Take the clients of bound sockets."""
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._servers.append(await loop.create_server(lambda: TcpConnection(self), sock=sock, backlog=MAX_CONNECTIONS))

    async def stop_listening(self) -> None:
        """Take no new clients."""
        await close_servers(self._servers)

    async def close(self, timeout: float) -> None:
        """End all connections; what is still to be sent gets `timeout` seconds."""
        await self.stop_listening()
        for connection in tuple(self.connections):
            connection.close()
        deadline = time.monotonic() + timeout
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)

    def expire(self, now: float) -> None:
        """Have all clients' unfinished messages given up in time."""
        for connection in tuple(self.connections):
            if not connection.closed:
                connection.receiver.expire(now)
                self.count_pending(connection)

    # For connections

    def opened(self, connection: TcpConnection) -> None:
        self.connections.add(connection)
        if len(self.connections) > MAX_CONNECTIONS:
            log.warning("%s is turned away: there are %d connections", connection.name, MAX_CONNECTIONS)
            connection.abort()

    def count_pending(self, connection: TcpConnection) -> None:
        """Its unfinished message has changed. If all are too large, whoever has sent most of them is cut off."""
        grown = connection.receiver.num_pending - connection.num_pending
        self._count(connection, grown)
        while grown > 0 and self._num_pending > MAX_PENDING_BYTES:
            largest = max(self.connections, key=lambda other: other.num_pending)
            log.warning("%s is cut off: clients have sent too many bytes of unfinished messages", largest.name)
            largest.abort()
            self._count(largest, -largest.num_pending)

    def lost(self, connection: TcpConnection) -> None:
        self.connections.discard(connection)
        self._count(connection, -connection.num_pending)

    def _count(self, connection: TcpConnection, grown: int) -> None:
        connection.num_pending += grown
        self._num_pending += grown
