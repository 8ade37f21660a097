"""Sockets that doors listen on."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable

from trivium.errors import ConfigError

__all__ = ["BACKLOG", "bind", "close_all", "close_servers"]

BACKLOG = 2048


def bind(host: str, port: int, option: str = "port") -> list[socket.socket]:
    """Sockets for all addresses of a host, on one port: a free one if it is 0.

    Raises `ConfigError` if the host has no address here, or the port, which `option` gave, is in use.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in _addresses(host, port, option):
            try:
                sockets.append(_bind_one(family, address, sockets[0].getsockname()[1] if sockets else port))
            except OSError as error:
                # A name like localhost also stands for an address of a protocol that this machine may not have.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
        if not sockets and missing is not None:
            raise ConfigError(f"{_host(option)} must be an address of this machine, got {host!r}: {missing.strerror}")
    except OSError as error:
        advice = f"; --{option.replace('_', '-')} chooses another" if error.errno == errno.EADDRINUSE else ""
        close_all(sockets)
        raise ConfigError(f"cannot listen on {host}, {option} {port}: {error.strerror}{advice}") from error
    return sockets


async def close_servers(servers: Iterable[asyncio.Server]) -> None:
    """Take no more connections; those that were accepted come to their protocols.

    `Server.close` alone loses a connection whose accepting task has yet to run: its transport finds no server to belong to.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
    for _ in range(3):  # the accepting task begins; it makes the transport; the transport tells its protocol
        await asyncio.sleep(0)
    for server in servers:
        server.close()


def _host(option: str) -> str:
    """The option that goes with one for a port."""
    return option.replace("port", "host")


def _addresses(host: str, port: int, option: str) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{_host(option)} must be an address or a name of this machine, got {host!r}") from error
    # A link-local address carries its interface; `getsockname` and `bind` agree on the rest.
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind_one(family: int, address: str, port: int) -> socket.socket:
    # With the protocol named, asyncio sets TCP_NODELAY on the connections: without it every token may wait for an ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != "::")
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close them."""
    for sock in sockets:
        sock.close()
