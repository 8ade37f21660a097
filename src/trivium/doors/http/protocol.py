"""`HttpProtocol`: one connection, with caps and deadlines on what a client may do with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from trivium.doors.http.bodies import dump
from trivium.doors.http.errors import HttpError, form_of
from trivium.doors.http.limits import (
    BODY_SECONDS,
    HEADER_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_HEADER_BYTES,
    MAX_PIPELINED,
    STALL_SECONDS,
)

__all__ = ["ABORT", "WRITE", "HttpProtocol", "Write"]

# Extensions of a scope.
ABORT = "trivium.abort"  # cuts the connection
WRITE = "trivium.write"  # a `Write`, for bodies of many parts: layers that look only at begin and end need not see each

Write = Callable[[bytes], Awaitable[None] | None]
"""Sends a part of a body whose start has been sent and whose end will be; gives what to wait for, if anything."""

log = logging.getLogger("trivium.http")

_MAX_SURPLUS = 64  # connections above the cap that are still told why they are refused


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, and what it lacks: what comes too late, too large or too often is answered and cut.

    The listener calls `check` about once a second, so a deadline costs a request no timer.
    """

    header_seconds = HEADER_SECONDS
    body_seconds = BODY_SECONDS + 5.0  # whoever reads the body (bodies.py) answers before; this ends the connection
    stall_seconds = STALL_SECONDS
    keep_alive_seconds = KEEP_ALIVE_SECONDS
    linger_seconds = 5.0  # that a client gets to read why it is refused

    def __init__(
        self, config: uvicorn.Config, state: ServerState, loop: asyncio.AbstractEventLoop, max_connections: int
    ) -> None:
        super().__init__(config, state, {}, loop)
        self._max_connections = max_connections
        self._surplus = False
        self._refused = False
        self._running: RequestResponseCycle | None = None  # the request that is being answered, or was last
        self.url = b""
        # Moments of the loop's clock, None while they do not apply.
        self._head_since: float | None = None  # a head is due: from the connection, or a further request's first byte
        self._body_since: float | None = None  # a body is due
        self._idle_since: float | None = None
        self._ending_since: float | None = None  # refused
        self._begun = False  # a message has
        self._marks = 0  # of what has been understood so far
        self._loose_bytes = 0  # that came since the last mark
        self._unread: tuple[int, float] | None = None  # bytes that a full buffer held, and since when no fewer

    @property
    def _busy(self) -> bool:
        """Whether an answer is under way, or due."""
        return self.cycle is not None and not self.cycle.response_complete

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()
        surplus = len(self.connections) - self._max_connections
        self._surplus = surplus > 0
        if surplus > _MAX_SURPLUS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._count_loose(len(data))
            return
        self._unset_keepalive_if_required()
        marks = self._marks
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, HttpError) else HttpError(400, "the request is not valid HTTP/1.1"))
            return
        if self._marks != marks:
            self._loose_bytes = 0
        elif self._head_since is not None or self._body_since is not None:
            self._count_loose(len(data))  # of a head, of trailers, of a chunk's extension: the parser keeps them in memory

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The offer to speak another protocol may be ignored, but the parser left out the body of the request.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(self._head_without_offer())
            self._feed(data[upgrade.args[0] :])

    def _head_without_offer(self) -> bytes:
        version = self.scope["http_version"].encode()
        lines = [b"%s %s HTTP/%s\r\n" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([*lines, b"\r\n"])

    def _count_loose(self, count: int) -> None:
        self._loose_bytes += count
        if self._loose_bytes > MAX_HEADER_BYTES:
            if self._refused:
                self.transport.abort()
            else:
                self._refuse(_head_too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn tells only the request that came last
            self._running.disconnected = True
            self._running.message_event.set()

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()

    # What the parser calls. An `HttpError` ends the connection with this answer.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]  # ours is a function
        self._begun = True
        self._idle_since = None
        if self._head_since is None:
            self._head_since = self.loop.time()
            self._marks += 1

    def on_headers_complete(self) -> None:
        self._marks += 1
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
            raise _head_too_large()
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise HttpError(400, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if self._surplus:
            raise HttpError(503, f"more than {self._max_connections} connections at once; try again later")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise HttpError(429, f"at most {MAX_PIPELINED} requests may be sent ahead of their answers")
        if self.parser.should_upgrade():
            self._check_offer(version)
            return
        self._head_since = None
        self._body_since = self.loop.time()
        super().on_headers_complete()
        if version == "1.0":
            _unchunk(self.cycle)
        self.scope["extensions"][WRITE] = self._write_of(self.cycle)  # type: ignore[assignment]  # ours is a function
        self.flow.resume_reading()  # also with requests in the pipe: only a reader notices that the client goes

    def on_body(self, body: bytes) -> None:
        self._marks += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is about to be read again
        self._marks += 1
        self._begun = False
        self._body_since = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _write_of(self, cycle: RequestResponseCycle) -> Write:
        flow, transport = self.flow, self.transport

        def write(part: bytes) -> Awaitable[None] | None:
            if flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
                return cycle.send({"type": "http.response.body", "body": part, "more_body": True})
            if part:  # an empty chunk would be the last
                transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            return None

        return write

    def _check_offer(self, version: str) -> None:
        """The client would like another protocol than HTTP/1.1."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise HttpError(400, "this is no proxy")
        if self._get_upgrade() == b"websocket":
            raise HttpError(400, "there are no WebSockets here")
        self.scope["method"], self.scope["http_version"] = method.decode("ascii"), version

    # Deadlines

    def check(self, now: float) -> None:
        """Do what is due at this moment of the loop's clock."""
        if self._ending_since is not None:
            if now - self._ending_since > self.linger_seconds:
                self.transport.abort()
        elif self.flow.write_paused or self.transport.is_closing():
            self._check_reader(now)
        elif self._head_since is not None:
            if now - self._head_since > self.header_seconds:
                self._head_is_late()
        elif self._body_since is not None:
            if now - self._body_since > self.body_seconds:
                self._body_is_late()
        elif not self._busy:
            # Uvicorn's own timer is gone once a stray byte, or the rest of a body, comes after an answer.
            self._idle_since = self._idle_since or now
            if now - self._idle_since > self.keep_alive_seconds:
                self.transport.close()

    def _check_reader(self, now: float) -> None:
        """Cut a client that has taken nothing of what waits for it for too long; its request notices the disconnect."""
        left = self.transport.get_write_buffer_size()
        if self._unread is None or left < self._unread[0]:
            self._unread = (left, now)
        elif now - self._unread[1] > self.stall_seconds:
            log.info("%s reads nothing: its connection is cut", self._who())
            self.transport.abort()

    def _head_is_late(self) -> None:
        if self._begun:
            self._refuse(HttpError(408, f"the headers must arrive within {self.header_seconds:g} seconds"))
        else:
            self.transport.close()  # it has asked for nothing

    def _body_is_late(self) -> None:
        if self._busy:
            self._refuse(HttpError(408, f"the body must arrive within {self.body_seconds:g} seconds"))
        else:
            self.transport.close()  # it was answered before

    # Refusals

    def _refuse(self, error: HttpError) -> None:
        """Answer in place of the application, and close. With an answer under way there is only the end."""
        log.info("%s is refused: %s", self._who(), error)
        self._refused = True
        self._loose_bytes = 0
        if self._busy:
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(self._refusal(error))
        # Closing while the client still sends would reset the connection, and the answer might never be read.
        self.flow.resume_reading()
        self._ending_since = self.loop.time()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone already
                self.transport.write_eof()

    def _refusal(self, error: HttpError) -> bytes:
        form = form_of(self.url.partition(b"?")[0].decode("latin-1"))
        body = dump(form.body(error))
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [b"%s: %s\r\n" % header for header in self.server_state.default_headers]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in (headers | form.headers(error)).items()]
        return b"".join([STATUS_LINE[form.status(error)], *lines, b"\r\n", body])

    def _who(self) -> str:
        client: Any = self.client
        return f"{client[0]}:{client[1]}" if client else "a client"


def _unchunk(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 has no chunks: a body whose length is not told ends with the connection."""
    send, told = cycle.send, True

    async def unchunked(message: Any) -> None:
        nonlocal told
        if message["type"] == "http.response.start":
            told = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not told:
                cycle.chunked_encoding = False
        elif not told:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = unchunked  # type: ignore[method-assign]


def _head_too_large() -> HttpError:
    return HttpError(431, f"the request line and headers must have at most {MAX_HEADER_BYTES} bytes together")
