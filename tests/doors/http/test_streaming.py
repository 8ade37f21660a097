"""How the events of a stream leave."""

from __future__ import annotations

import asyncio

import pytest

from trivium.doors.dispatcher import ClientGoneError
from trivium.doors.http.protocol import WRITE
from trivium.doors.http.streaming import EventStream


class Exchange:
    """The ASGI side of a server, which notes in which way everything came."""

    def __init__(self, *, slow=False):
        self.sent, self.written, self.waited = [], [], 0
        self._slow = slow

    async def send(self, message):
        self.sent.append(message)

    def write(self, part):
        self.written.append(part)
        return self._drain() if self._slow else None

    async def _drain(self):
        self.waited += 1


class Generation:
    closed = False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed = True


def run(exchange, events, extensions):
    generation = Generation()
    scope = {"type": "http", "path": "/infer", "extensions": extensions}
    try:
        asyncio.run(EventStream(generation, events(), {"x-more": "1"})(scope, None, exchange.send))
    finally:
        assert generation.closed
    return exchange


async def two_events():
    yield b"data: 1\n\n"
    yield b"data: 2\n\n"


def ends(exchange):
    """Start and end always come through all layers, which look at them."""
    start, end = exchange.sent[0], exchange.sent[-1]
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert {b"content-type", b"cache-control", b"x-more"} <= {name for name, _ in start["headers"]}
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
    return exchange.sent[1:-1]


def test_parts_take_the_short_way_if_the_server_has_one():
    exchange = Exchange()
    assert ends(run(exchange, two_events, {WRITE: exchange.write})) == []
    assert exchange.written == [b"data: 1\n\n", b"data: 2\n\n"]


def test_a_slow_reader_is_waited_for():
    exchange = Exchange(slow=True)
    run(exchange, two_events, {WRITE: exchange.write})
    assert exchange.waited == 2


def test_another_server_gets_messages():
    parts = ends(run(Exchange(), two_events, {}))
    assert [(part["body"], part["more_body"]) for part in parts] == [(b"data: 1\n\n", True), (b"data: 2\n\n", True)]


def test_a_failure_is_logged_and_ends_the_stream(caplog):
    async def failing():
        yield b"data: 1\n\n"
        raise RuntimeError("broken")

    exchange = Exchange()
    assert ends(run(exchange, failing, {WRITE: exchange.write})) == []
    assert exchange.written == [b"data: 1\n\n"]
    assert "a stream of /infer failed" in caplog.text


def test_a_client_that_has_gone_gets_no_end():
    async def gone():
        yield b"data: 1\n\n"
        raise ClientGoneError

    exchange = Exchange()
    with pytest.raises(ClientGoneError):
        run(exchange, gone, {WRITE: exchange.write})
    assert [message["type"] for message in exchange.sent] == ["http.response.start"]
