"""Listening sockets."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from trivium.doors.sockets import bind, close_all, close_servers


class Told(asyncio.Protocol):
    """Keeps the transports that a server's connections brought."""

    def __init__(self, transports: list[asyncio.BaseTransport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_accepted_at_the_end_comes_to_its_protocol_or_not_at_all(turns):
    """Whatever turn of the loop the server closes in: asyncio alone lost a connection that was accepted one turn before."""
    transports: list[asyncio.BaseTransport] = []
    failures: list[dict] = []

    async def accept_and_close() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        [sock] = bind("127.0.0.1", 0)
        server = await loop.create_server(lambda: Told(transports), sock=sock)
        with socket.create_connection(sock.getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await close_servers([server])
            num_told = len(transports)
            for _ in range(5):
                await asyncio.sleep(0)
            # The loop learns of the connection in turn 1, after this task has run.
            assert len(transports) == num_told == (turns > 1)
            close_all([sock])
            for transport in transports:
                transport.abort()
            await asyncio.sleep(0)

    asyncio.run(accept_and_close(), debug=True)  # in debug mode asyncio tells of what it gave up
    gc.collect()
    assert not failures


def test_closing_twice():
    async def close_twice() -> None:
        [sock] = bind("127.0.0.1", 0)
        server = await asyncio.get_running_loop().create_server(lambda: Told([]), sock=sock)
        address = sock.getsockname()
        await close_servers([server])
        await close_servers([server])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    asyncio.run(close_twice())
