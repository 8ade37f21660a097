"""Caps and deadlines of a connection."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from bad_days_parts import Client, ask, error_of, head, is_idle, post, wait_for
from engine_parts import make_engine
from http_parts import serving

from trivium.doors.http.limits import MAX_HEADER_BYTES, MAX_PIPELINED
from trivium.doors.http.listener import Listener
from trivium.doors.http.protocol import HttpProtocol

INFER = {"inputs": "hello", "parameters": {"max_new_tokens": 4}}
HEALTH = head("/health", method="GET")


@pytest.fixture(scope="module")
def engine():
    with make_engine() as running:
        yield running


@pytest.fixture
def held(engine):
    """The engine makes no step until the test's end."""
    engine.native.gate.clear()
    yield engine
    engine.native.gate.set()


def ends_by_abort(server):
    """Let the held engine go on; whether the one request that it has ends by an abort."""
    before = server.engine.stats().finished.get("abort", 0)
    time.sleep(0.05)
    server.engine.native.gate.set()
    wait_for(lambda: is_idle(server), "the request's end")
    return server.engine.stats().finished.get("abort", 0) == before + 1


@pytest.fixture
def server(engine, monkeypatch):
    monkeypatch.setattr(Listener, "tick_seconds", 0.02)
    with serving(engine) as running:
        yield running


def test_headers_up_to_the_cap(server):
    # The request line counts without its spaces and version, every header with its colon, space and line break.
    padding = MAX_HEADER_BYTES - len("/health") - len("Host: localhost\r\n") - len("X: \r\n")
    assert ask(server, head("/health", "X: " + "a" * padding, method="GET")).status == 200
    with Client(server.port) as client:
        answer = client.send(head("/infer", "X: " + "a" * (padding + 2))).answer()
        assert answer.status == 431
        assert error_of("/infer", answer) == "the request line and headers must have at most 65536 bytes together"
        assert answer.headers["connection"] == "close"
        assert client.closed()


def test_headers_that_never_end_are_refused_before_they_are_complete(server):
    with Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEADER_BYTES)
        assert client.answer().status == 431
        assert client.closed()


def test_a_head_within_the_chunk_of_a_long_body_counts_alone(server):
    body = b" " * (2 * MAX_HEADER_BYTES) + b"{}"
    with Client(server.port) as client:
        client.send(head("/infer", f"Content-Length: {len(body)}") + body + HEALTH)
        assert [client.answer().status for _ in range(2)] == [422, 200]


@pytest.mark.parametrize("start", [b"GET /hea", b"GET /health HTTP/1.1\r\nHost: x\r\nX: "])
def test_slow_headers_are_answered_408(server, monkeypatch, start):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.1)
    with Client(server.port) as client:
        answer = client.send(start).answer()
        assert answer.status == 408
        assert error_of("/", answer) == "the headers must arrive within 0.1 seconds"
        assert client.closed()


def test_a_connection_without_a_word_is_closed_without_a_word(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.1)
    with Client(server.port) as client:
        assert client.closed()
    with Client(server.port) as client:
        assert client.send(b"\r\n").closed()


def test_slow_headers_of_a_later_request(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.1)
    with Client(server.port) as client:
        assert client.send(HEALTH).answer().status == 200
        time.sleep(0.2)  # no request is due
        assert client.send(HEALTH).answer().status == 200
        assert client.send(HEALTH[:10]).answer().status == 408


def test_the_time_of_headers_is_told_in_the_form_of_the_api(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.1)
    for path in ("/infer", "/v1/messages", "/v1/completions"):
        with Client(server.port) as client:
            error_of(path, client.send(head(path)[:-2]).answer())


def test_a_body_that_does_not_come_ends_with_its_request(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "body_seconds", 0.1)
    with Client(server.port) as client:
        answer = client.send(head("/infer", "Content-Length: 100") + b"{").answer()
        assert answer.status == 408
        assert error_of("/infer", answer) == "the body must arrive within 0.1 seconds"
        assert client.closed()


def test_a_body_that_drips_after_its_answer_ends_the_connection(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "body_seconds", 0.2)
    with Client(server.port) as client:
        client.send(head("/nothing", "Content-Length: 100"))
        assert client.answer().status == 404
        for _ in range(100):
            if client.readable(0.01):
                break
            client.send(b" ")
        assert client.closed()


def test_an_idle_connection_is_closed(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "keep_alive_seconds", 0.1)
    with Client(server.port) as client:
        client.send(HEALTH).answer()
        assert client.closed()


def test_stray_bytes_do_not_keep_an_idle_connection(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "keep_alive_seconds", 0.3)
    with Client(server.port) as client:
        client.send(HEALTH).answer()
        for _ in range(100):
            if client.readable(0.02):
                break
            client.send(b"\r\n")
        assert client.closed()


def test_requests_in_between_do_keep_it(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "keep_alive_seconds", 0.2)
    with Client(server.port) as client:
        for _ in range(5):
            assert client.send(HEALTH).answer().status == 200
            time.sleep(0.1)


def test_a_running_request_has_no_deadline_of_the_connection(server, held, monkeypatch):
    for name in ("header_seconds", "body_seconds", "keep_alive_seconds", "stall_seconds"):
        monkeypatch.setattr(HttpProtocol, name, 0.05)
    with Client(server.port) as client:
        client.send(post("/infer", INFER))
        assert not client.readable(0.3)
        held.native.gate.set()
        assert client.answer().status == 200


def test_what_is_no_http_is_a_400_in_json(server):
    with Client(server.port) as client:
        answer = client.send(b"hello\r\n\r\n").answer()
        assert (answer.status, error_of("/", answer)) == (400, "the request is not valid HTTP/1.1")
        assert client.closed()


def test_a_broken_body_while_the_request_waits_for_it(server):
    with Client(server.port) as client:
        client.send(head("/infer", "Transfer-Encoding: chunked") + b"1\r\n{\r\n")
        answer = client.send(b"xyz\r\n").answer()
        assert (answer.status, error_of("/infer", answer)) == (400, "the request is not valid HTTP/1.1")
        assert client.closed()


def test_nonsense_behind_a_running_request_ends_both(server, held):
    with Client(server.port) as client:
        client.send(post("/infer", {**INFER, "stream": True}))
        wait_for(lambda: server.engine.stats().running, "the request's start")
        held.native.gate.set()
        client.send(b"\x00\x00")
        wait_for(lambda: is_idle(server), "the request's end")


def test_websockets_are_refused_and_other_offers_passed_over(server):
    lines = (
        "Connection: Upgrade",
        "Upgrade: WebSocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    answer = ask(server, head("/v1/realtime", *lines, method="GET"))
    assert (answer.status, error_of("/v1/realtime", answer)) == (400, "there are no WebSockets here")
    with Client(server.port) as client:
        client.send(post("/infer", INFER, "Connection: Upgrade", "Upgrade: h2c"))
        assert client.answer().status == 200
        data = post("/infer", INFER, "Connection: Upgrade", "Upgrade: h2c")
        client.send(data[:-5])
        time.sleep(0.05)
        client.send(data[-5:] + HEALTH)
        assert [client.answer().status for _ in range(2)] == [200, 200]


def test_connections_above_the_cap(engine):
    with serving(engine, max_connections=3) as server:
        kept = [Client(server.port) for _ in range(3)]
        for client in kept:
            assert client.send(HEALTH).answer().status == 200
        for path in ("/infer", "/v1/messages", "/v1/models"):
            with Client(server.port) as client:
                answer = client.send(head(path, "Content-Length: 10") + b"0123456789").answer()
                assert answer.status == 503
                assert answer.headers["retry-after"] == "1"
                assert error_of(path, answer) == "more than 3 connections at once; try again later"
                assert client.closed()
        crowd = [Client(server.port) for _ in range(100)]
        assert sum(client.readable(0.02) and client.closed() for client in crowd) >= 30  # not even told why
        for client in (kept.pop(), *crowd):
            client.__exit__()
        wait_for(lambda: ask(server, HEALTH).status == 200, "a free place")
        for client in kept:
            client.__exit__()


def test_more_requests_ahead_of_their_answers_than_allowed(server, held):
    with Client(server.port) as client:
        client.send(post("/infer", INFER))
        wait_for(lambda: server.engine.stats().running, "the request's start")
        client.send(post("/infer", INFER) * (MAX_PIPELINED + 1))
        assert client.closed()
    assert ends_by_abort(server)


def test_a_client_that_leaves_with_requests_in_the_pipe(server, held):
    with Client(server.port) as client:
        client.send(post("/infer", INFER))
        wait_for(lambda: server.engine.stats().running, "the request's start")
        client.send(post("/infer", INFER))
        time.sleep(0.05)
    assert ends_by_abort(server)


def test_requests_in_a_pipe(server):
    with Client(server.port) as client:
        client.send(post("/infer", INFER) * (MAX_PIPELINED + 1))
        assert [client.answer().status for _ in range(MAX_PIPELINED + 1)] == [200] * (MAX_PIPELINED + 1)


def test_a_reader_that_takes_nothing_is_cut_and_its_request_ended(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "stall_seconds", 0.2)
    smallest = 4096
    listener = server.server._listeners[0]
    for sock in listener._sockets:  # connections inherit it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, smallest)
    body = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 250, "details": True}}
    asked = b"".join(post("/infer", body) for _ in range(9))
    with Client(server.port, receive_buffer=smallest) as client:
        client.send(asked)
        wait_for(lambda: listener.num_connections == 1, "the connection")
        wait_for(lambda: listener.num_connections == 0, "the cut")
    wait_for(lambda: is_idle(server), "the end of its request")


def test_a_reader_that_takes_a_little_now_and_then_is_not_cut(server, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "stall_seconds", 0.3)
    with Client(server.port, receive_buffer=4096) as client:
        for sock in server.server._listeners[0]._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.send(head("/openapi.json", method="GET") + head("/", method="GET"))
        received = b""
        while b"</html>" not in received:
            time.sleep(0.005)
            received += client.socket.recv(16384)


def test_http_1_0_streams_end_with_the_connection(server):
    body = b'{"inputs": "hello", "stream": true}'
    with Client(server.port) as client:
        answer = client.send(head("/infer", f"Content-Length: {len(body)}", version="HTTP/1.0") + body).answer()
        assert "transfer-encoding" not in answer.headers
        assert len(answer.events) == 20
        assert client.closed()


def test_small_writes_do_not_wait(server):
    with Client(server.port) as client:
        client.send(HEALTH).answer()
        (connection,) = server.server._listeners[0]._state.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Flow:
    write_paused = False


class Cycle:
    """Of uvicorn, as far as `write` looks at it."""

    disconnected, chunked_encoding = False, True

    def __init__(self):
        self.messages = []

    async def send(self, message):
        self.messages.append(message)


class Transport(list):
    write = list.append


@pytest.fixture
def parts():
    """`write`, and all that it meets."""
    protocol = HttpProtocol.__new__(HttpProtocol)
    protocol.flow, protocol.transport = Flow(), Transport()
    cycle = Cycle()
    return protocol._write_of(cycle), protocol.flow, cycle, protocol.transport


def test_a_part_is_a_chunk_and_an_empty_one_none(parts):
    write, _, cycle, transport = parts
    assert write(b"data: 12345678\n\n") is None
    assert write(b"") is None  # would be the last one
    assert transport == [b"10\r\ndata: 12345678\n\n\r\n"]
    assert cycle.messages == []


@pytest.mark.parametrize(
    "change",
    [
        lambda flow, cycle: setattr(flow, "write_paused", True),
        lambda flow, cycle: setattr(cycle, "disconnected", True),
        lambda flow, cycle: setattr(cycle, "chunked_encoding", False),
    ],
    ids=["full", "gone", "HTTP/1.0"],
)
def test_a_part_that_cannot_go_at_once_goes_as_a_message(parts, change):
    write, flow, cycle, transport = parts
    change(flow, cycle)
    asyncio.run(write(b"part"))
    assert transport == []
    assert cycle.messages == [{"type": "http.response.body", "body": b"part", "more_body": True}]
