"""A small HTTP/1.1 client for many streams at once: each byte that arrives is handed on at once, without a task in between."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from trivium.errors import ConfigError, TriviumError

__all__ = ["AnswerReader", "Client", "ClientError", "WholeAnswer"]


class ClientError(TriviumError):
    """The server cannot be reached, or what it sends is not HTTP."""


class AnswerReader(Protocol):
    """Reads one answer while it arrives. `now` is on the time.perf_counter clock. Methods must not raise."""

    def started(self, status: int, content_type: str) -> None: ...

    def received(self, data: bytes, now: float) -> None: ...


@dataclass
class WholeAnswer:
    """Keeps an answer."""

    status: int = 0
    content_type: str = ""
    body: bytearray = field(default_factory=bytearray)

    def started(self, status: int, content_type: str) -> None:
        self.status, self.content_type = status, content_type

    def received(self, data: bytes, now: float) -> None:
        self.body += data


class Client:
    """Sends requests to one server, over as many connections as there are requests at once. Idle ones are used again."""

    def __init__(self, base_url: str, *, api_key: str | None = None, verify: bool = True) -> None:
        """Raises `ConfigError`."""
        try:
            url = urlsplit(base_url)
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError as error:  # odd brackets, or a port out of range
            raise ConfigError(f"base_url must be like http://127.0.0.1:8000, got {base_url!r}: {error}") from None
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ConfigError(f"base_url must be like http://127.0.0.1:8000, got {base_url!r}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
            raise ConfigError("api_key must be printable ASCII")
        self._host, self._port = url.hostname, port
        self._prefix = url.path.rstrip("/")
        self._tls = _tls_context(verify) if url.scheme == "https" else None
        headers = [f"Host: {url.netloc.rpartition('@')[2]}", "User-Agent: trivium-bench", "Accept: */*"]
        headers += [f"Authorization: Bearer {api_key}"] if api_key else []
        self._headers = "".join(f"{header}\r\n" for header in headers)
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def exchange(self, method: str, path: str, body: bytes, reader: AnswerReader, timeout: float) -> None:
        """Send a request and have `reader` read the answer to its end. Raises `ClientError`."""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n" if body else "\r\n"
        try:
            await asyncio.wait_for(self._exchange(head.encode() + body, reader), timeout)
        except asyncio.TimeoutError:
            raise ClientError(f"no complete answer after {timeout:g} seconds") from None

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.abort()
        while self._open:
            await asyncio.sleep(0.001)

    async def _exchange(self, request: bytes, reader: AnswerReader) -> None:
        while True:
            connection = self._take_idle()
            fresh = connection is None
            if connection is None:
                connection = await self._connect()
            try:
                await connection.exchange(request, reader)
            except ClientError:
                if fresh or connection.answered:
                    raise
                continue  # the server has closed it just then, as it may
            finally:
                if not connection.reusable:
                    connection.abort()
            if connection.reusable:
                self._idle.append(connection)
            return

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self._open), self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise ClientError(f"cannot connect to {self._host}:{self._port}: {error}") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection; a further request may follow while it is `reusable`. It is one of `others` while it is open."""

    def __init__(self, others: set[_Connection]) -> None:
        self._others = others
        self.answered = False  # something of the present exchange's answer has come
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._done: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._content_type = ""
        self._until_close = True  # nothing but the end of the connection ends the body
        self._now = 0.0

    async def exchange(self, request: bytes, reader: AnswerReader) -> None:
        """Raises `ClientError`."""
        if self._transport is None:
            raise ClientError("the connection was closed")
        self._done = asyncio.get_running_loop().create_future()
        self._reader, self.answered, self.reusable = reader, False, False
        self._parser = httptools.HttpResponseParser(self)
        self._content_type, self._until_close = "", True
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._done = None

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._parser is None:
            self.abort()  # nothing was asked
            return
        self.answered = True
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ClientError(f"the answer is not HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport, self.reusable = None, False
        self._others.discard(self)
        if error is None and self._status >= 200 and self._until_close:
            self._end(None)
        else:
            self._end(ClientError(f"the connection was lost{f': {error}' if error else ''}"))

    # From the parser

    def on_message_begin(self) -> None:
        self._content_type, self._until_close = "", True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_headers_complete(self) -> None:
        status = self._status
        if status >= 200 and self._reader is not None:
            self._reader.started(status, self._content_type)

    def on_body(self, body: bytes) -> None:
        if self._reader is not None:
            self._reader.received(body, self._now)

    def on_message_complete(self) -> None:
        if self._status >= 200 and self._parser is not None:
            self.reusable = self._parser.should_keep_alive()
            self._end(None)

    @property
    def _status(self) -> int:
        return 0 if self._parser is None else self._parser.get_status_code()

    def _end(self, error: ClientError | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)


def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
