"""`Listener`: the sockets of one port, the application behind them, and the connections that came through them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from trivium.doors.http.limits import HEADER_SECONDS, KEEP_ALIVE_SECONDS
from trivium.doors.http.protocol import HttpProtocol
from trivium.doors.sockets import BACKLOG, close_all, close_servers

__all__ = ["Listener"]

_POLL_SECONDS = 0.02


class Listener:
    """Takes connections from `open` to `close`. The sockets are its own from the start."""

    tick_seconds = 1.0  # between looks at what is due
    send_bytes = 256 * 1024  # that the system holds of an answer that is not read; by itself it would take megabytes

    def __init__(self, app: ASGIApp, sockets: list[socket.socket], *, tls: ssl.SSLContext | None, max_connections: int) -> None:
        self._sockets = sockets
        self._tls = tls
        self._max_connections = max_connections
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=int(KEEP_ALIVE_SECONDS),
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The one in use."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    @property
    def urls(self) -> list[str]:
        """One for each address."""
        scheme = "http" if self._tls is None else "https"
        return [f"{scheme}://{_in_url(sock.getsockname()[0])}:{self.port}" for sock in self._sockets]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return all(ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback for sock in self._sockets)

    @property
    def num_connections(self) -> int:
        return len(self._state.connections)

    async def open(self) -> None:
        """Answer from now on."""
        loop = asyncio.get_running_loop()
        self._tick(loop)
        for sock in self._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_bytes)
            server = await loop.create_server(
                lambda: HttpProtocol(self._config, self._state, loop, self._max_connections),
                sock=sock,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=None if self._tls is None else HEADER_SECONDS,
            )
            self._servers.append(server)

    def abandon(self) -> None:
        """Close the sockets of a listener that was not opened."""
        close_all(self._sockets)

    async def close(self, seconds: float) -> None:
        """Take no more connections, and end the idle ones; the others too, once their answers are complete or time is over."""
        await close_servers(self._servers)
        close_all(self._sockets)
        if not await self._wait_empty(seconds):
            for connection in list(self._state.connections):
                connection.transport.abort()
            if not await self._wait_empty(1.0):
                for task in list(self._state.tasks):
                    task.cancel()
                await self._wait_empty(1.0)
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_empty(self, seconds: float) -> bool:
        """Wait until no connection and no request is left; False if some are after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            for connection in list(self._state.connections):
                connection.shutdown()
            await asyncio.sleep(0)  # what has just been closed
            if not self._state.connections and not self._state.tasks:
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._timer = loop.call_later(self.tick_seconds, self._tick, loop)
        now = loop.time()
        for connection in list(self._state.connections):
            connection.check(now)  # type: ignore[union-attr]  # all are of our protocol


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
