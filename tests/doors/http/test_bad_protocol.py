"""What is no good HTTP, or HTTP that few clients speak, over raw sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest
from bad_days_parts import REQUESTS, Client, ask, bad_day, check_well, head, is_idle, post, wait_for

from trivium.doors.http.listener import Listener
from trivium.doors.http.protocol import HttpProtocol

INFER = REQUESTS["/infer"]
STREAM = post("/infer", {**INFER, "stream": True})
LONG_STREAM = post("/infer", {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 200}})
KILOBYTE = 1024


@pytest.fixture(scope="module")
def server():
    with bad_day() as running:
        yield running


def broken(line: str, *lines: str, body: bytes = b"") -> bytes:
    """A request of these lines, byte for byte."""
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1") + body


INFER_LINES = ("POST /infer HTTP/1.1", "Host: localhost")
CHUNKED = (*INFER_LINES, "Transfer-Encoding: chunked")
NO_REQUESTS = {
    "nothing that is HTTP": broken("hello"),
    "only line breaks and words": broken("", "hello there"),
    "NUL bytes": b"\x00" * 64,
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + b"\x01" * 200,
    "HTTP/2": broken("PRI * HTTP/2.0", "", "SM"),
    "HTTP/0.9": broken("GET /"),
    "HTTP/9.9": broken("GET / HTTP/9.9", "Host: localhost"),
    "an unknown method": broken("FETCH /infer HTTP/1.1", "Host: localhost"),
    "a lower-case method": broken("post /infer HTTP/1.1", "Host: localhost", "Content-Length: 0"),
    "CONNECT": broken("CONNECT localhost:80 HTTP/1.1", "Host: localhost"),
    "no path": broken("POST  HTTP/1.1", "Host: localhost"),
    "a relative path": broken("POST infer HTTP/1.1", "Host: localhost"),
    "a space in the path": broken("POST /in fer HTTP/1.1", "Host: localhost"),
    "NUL in the path": broken("POST /infer\x00 HTTP/1.1", "Host: localhost"),
    "a raw byte in the path": broken("POST /inf\xffer HTTP/1.1", "Host: localhost"),
    "NUL in a header": broken(*INFER_LINES, "X: a\x00b", "Content-Length: 0"),
    "a space in a header's name": broken(*INFER_LINES, "Content Length: 0"),
    "a header without a colon": broken(*INFER_LINES, "Content-Length"),
    "a header without a name": broken(*INFER_LINES, ": 1"),
    "a negative length": broken(*INFER_LINES, "Content-Length: -1"),
    "a length in words": broken(*INFER_LINES, "Content-Length: ten"),
    "a length of many digits": broken(*INFER_LINES, "Content-Length: " + "9" * 40),
    "two lengths": broken(*INFER_LINES, "Content-Length: 2", "Content-Length: 3", body=b"{} "),
    "length and chunks": broken(*CHUNKED, "Content-Length: 2", body=b"0\r\n\r\n"),
    "an unknown encoding": broken(*CHUNKED, "Transfer-Encoding: gzip", body=b"0\r\n\r\n"),
    "a chunk of no size": broken(*CHUNKED, body=b"xyz\r\n"),
    "a chunk of negative size": broken(*CHUNKED, body=b"-1\r\n"),
    "a chunk of endless size": broken(*CHUNKED, body=b"f" * 20 + b"\r\n"),
    "a chunk longer than told": broken(*CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_what_is_no_request_is_a_client_error_and_ends_the_connection(server, name):
    with Client(server.port) as client:
        client.send(NO_REQUESTS[name])
        try:
            answer = client.answer()
        except ConnectionError:
            return  # closing without a word is fine too
        assert 400 <= answer.status < 500, answer
        assert client.closed()


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_nothing_can_be_smuggled_behind_what_is_no_request(server, name):
    """A request behind a broken one must not be answered as if it stood alone."""
    with Client(server.port) as client:
        try:
            client.send(NO_REQUESTS[name] + post("/infer", INFER))
            while True:
                assert client.answer().status >= 400
        except ConnectionError:
            pass


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "HEAD", "PROPFIND", "SUBSCRIBE"])
def test_other_methods_are_told_what_is_taken(server, method):
    for path in [*REQUESTS, "/tokenize", "/v1/tokenizer"]:
        answer = ask(server, head(path, "Content-Length: 0", method=method), method)
        assert answer.status == 405, (path, answer)
        assert "POST" in answer.headers["allow"]
    assert ask(server, head("/nothing", method=method), method).status == 404


def test_options_of_the_server(server):
    with Client(server.port) as client:
        client.send(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.answer().status < 500


def test_head_of_what_can_be_got(server):
    for path in ("/health", "/v1/models", "/openapi.json"):
        got = ask(server, head(path, method="GET"))
        answer = ask(server, head(path, method="HEAD"), "HEAD")
        assert (got.status, answer.status) == (200, 200)
        assert answer.headers["content-length"] == got.headers["content-length"]


def test_trace_repeats_nothing(server):
    answer = ask(server, head("/infer", "X-Secret: xyzzy", method="TRACE"))
    assert answer.status == 405
    assert b"xyzzy" not in answer.body


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost/infer",
        "http://localhost:1234/infer?x=1",
        "HTTP://LOCALHOST/infer",
        "/%69nfer",
        "/infer?a=b&c=%00#x",
        "/infer#fragment",
    ],
)
def test_other_ways_to_write_the_path(server, target):
    assert ask(server, post(target, INFER)).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/infer/",
        "//infer",
        "/INFER",
        "/infer%00",
        "/infer%2f",
        "/infer%0d%0aX:1",
        "/./infer",
        "/v1/../infer",
        "/infer;x",
        "/%ff%fe",
        "/%",
        "/%zz",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/" + "a" * 8000,
        "/" + "%41" * 8000,
    ],
)
def test_paths_that_lead_nowhere(server, target):
    answer = ask(server, post(target, INFER))
    assert answer.status in (400, 404, 405), answer
    assert len(answer.body) < 1000


def test_a_disguised_path_does_not_pass_the_key():
    with bad_day(options={"api_key": ["sesame"]}) as server:
        for target in ("/infer", "/%69nfer", "//infer", "/health/../infer", "/health%2f..%2finfer", "http://localhost/infer"):
            assert ask(server, post(target, INFER)).status in (401, 404), target
        for value in (
            "Bearer",
            "Bearer ",
            "Basic sesame",
            "sesame",
            "Bearer sesame2",
            "Bearer sesam",
            "Bearer \xff",
            "Bearer sesame\x0b",
        ):
            answer = ask(server, post("/infer", INFER, f"Authorization: {value}"))
            assert 400 <= answer.status < 500, value
        assert ask(server, post("/infer", INFER, "Authorization: Bearer sesame")).status == 200


def test_headers_of_64_kilobytes_are_too_long(server):
    ok = ask(server, post("/infer", INFER, "X-Long: " + "a" * (60 * KILOBYTE)))
    assert ok.status == 200
    for data in (
        post("/infer", INFER, "X-Long: " + "a" * (65 * KILOBYTE)),
        post("/infer", INFER, *[f"X-{i}: a" for i in range(10_000)]),
        post("/infer?" + "a" * (65 * KILOBYTE), INFER),
        post("/infer", INFER, "X-" + "a" * (65 * KILOBYTE) + ": 1"),
    ):
        with Client(server.port) as client:
            try:
                client.send(data)
                answer = client.answer()
            except ConnectionError:
                continue
            assert answer.status == 431
            assert client.closed()


def is_cut(client: Client, more: bytes, status: int) -> bool:
    """Whether the server answers so and ends the connection, however much more is sent."""
    try:
        for _ in range(500):
            client.send(more)
            if client.readable(0):
                break
        assert client.answer().status == status
        for _ in range(500):
            client.send(more[:1000])
            time.sleep(0.01)
    except ConnectionError:
        return True
    return False


@pytest.fixture
def impatient(monkeypatch):
    """A server that looks after its connections often, and lets nobody linger."""
    monkeypatch.setattr(Listener, "tick_seconds", 0.05)
    monkeypatch.setattr(HttpProtocol, "linger_seconds", 0.2)
    with bad_day() as running:
        yield running


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n"])
def test_headers_without_end_are_cut(impatient, start):
    """Megabytes of a request line, of one header, of many: the server stops reading long before."""
    more = b"a: b\r\n" * 11_000 if start.endswith(b"\n") else b"a" * 65536
    with Client(impatient.port) as client:
        client.send(start)
        assert is_cut(client, more, 431)


def test_trailers_without_end_are_cut(impatient):
    for more in (b"a: b\r\n" * 11_000, b"a" * 65536):
        with Client(impatient.port) as client:
            client.send(head("/infer", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n")
            assert is_cut(client, more, 431)


def test_slow_headers_end_the_connection(impatient, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.3)
    clients = [Client(impatient.port) for _ in range(200)]
    starts = [b"", b"P", b"POST /infer HTTP/1.1\r\n", head("/infer", "Content-Length: 2")[:-2]]
    for i, client in enumerate(clients):
        client.send(starts[i % 4])
    assert ask(impatient, post("/infer", INFER)).status == 200  # the others are served meanwhile
    for client in clients:
        for _ in range(100):
            if client.readable(0.02):
                break
        with contextlib.suppress(ConnectionError):
            assert client.answer().status == 408
        client.__exit__()


def test_slow_headers_of_a_second_request(impatient, monkeypatch):
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.3)
    with Client(impatient.port) as client:
        assert client.send(post("/infer", INFER)).answer().status == 200
        client.send(b"POST /inf")
        assert client.readable(5)


def test_a_refused_body_cannot_drip_for_ever(impatient, monkeypatch):
    """After a 413 the rest of the body is of no use: the connection ends, however slowly it comes."""
    monkeypatch.setattr(HttpProtocol, "body_seconds", 0.3)
    with Client(impatient.port) as client:
        client.send(head("/infer", "Content-Length: 50000000"))
        assert client.answer().status == 413
        for _ in range(400):
            with contextlib.suppress(ConnectionError):
                client.send(b" ")
            if client.readable(0.02):
                break
        assert client.closed()


def test_pipelined_requests_are_answered_in_order(server):
    with Client(server.port) as client:
        client.send(b"".join(post("/tokenize", {"prompt": "a" * i}) for i in range(9)))
        assert [client.answer().json()["count"] for _ in range(9)] == list(range(9))
        client.send(STREAM + post("/infer", INFER) + head("/health", method="GET") + STREAM)
        answers = [client.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert len(answers[0].events) == len(answers[3].events) == 8
    assert json.loads(answers[0].events[-1])["generated_text"] == answers[1].json()["generated_text"]


def test_a_client_that_leaves_with_requests_in_the_pipe(server):
    for count in (1, 2, 5):
        with Client(server.port) as client:
            client.send(LONG_STREAM * count)
            assert client.readable(10)
        wait_for(lambda: is_idle(server), "the end of what nobody reads")


def test_http_1_0_gets_no_chunks(server):
    body = json.dumps(INFER).encode()
    with Client(server.port) as client:
        client.send(head("/infer", f"Content-Length: {len(body)}", version="HTTP/1.0") + body)
        assert client.answer().json()["generated_text"]
        assert client.closed()
    body = json.dumps({**INFER, "stream": True}).encode()
    with Client(server.port) as client:
        client.send(head("/infer", f"Content-Length: {len(body)}", version="HTTP/1.0") + body)
        answer = client.answer()
        assert "transfer-encoding" not in answer.headers
        assert len(answer.events) == 8


def test_a_client_that_asks_first_is_told_to_go_on(server):
    body = json.dumps(INFER).encode()
    with Client(server.port) as client:
        client.send(head("/infer", f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert client.answer("HEAD").status == 100
        client.send(body)
        assert client.answer().status == 200
    with Client(server.port) as client:
        client.send(head("/infer", "Content-Length: 50000000", "Expect: 100-continue"))
        assert client.answer().status == 413


def test_an_offer_of_http_2_is_passed_over(server):
    """Java's HttpClient and others make it with every first request, body included."""
    with Client(server.port) as client:
        lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
        client.send(post("/infer", INFER, *lines))
        assert client.answer().status == 200


def test_there_are_no_websockets(server):
    lines = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    assert ask(server, head("/infer", *lines, method="GET")).status in (400, 405)


def test_one_byte_at_a_time(server):
    with Client(server.port) as client:
        client.socket.setsockopt(6, 1, 1)  # TCP_NODELAY
        for byte in post("/infer", INFER):
            client.send(bytes([byte]))
        assert client.answer().status == 200


def test_a_body_with_a_get_is_passed_over(server):
    with Client(server.port) as client:
        client.send(head("/health", "Content-Length: 5", method="GET") + b"hello" + post("/infer", INFER))
        assert client.answer().status == 200
        assert client.answer().status == 200


def test_a_client_that_closes_its_side_first(server):
    """Whoever shuts down writing after the request is gone, or reads its answer: in no case does anything stay behind."""
    for data in (post("/infer", INFER), LONG_STREAM, head("/infer", "Content-Length: 10") + b"{", b"POST /inf"):
        with Client(server.port) as client:
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                client.answer()
    check_well(server)
