"""Bodies that are no JSON, badly encoded, too deep, too long or too slow, over raw sockets."""

from __future__ import annotations

import json

import pytest
from bad_days_parts import REQUESTS, Client, ask, ask_json, bad_day, check_well, error_of, head, post

from trivium.doors.http import bodies

PATHS = [*REQUESTS, "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/tokenizer"]
MEGABYTE = 2**20

NO_JSON_OBJECT = {
    "nothing": b"",
    "space": b" \r\n\t ",
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "string": b'"inputs"',
    "array": b"[]",
    "array of objects": b'[{"inputs": "a"}]',
    "cut": b'{"inputs": "a"',
    "cut in a string": b'{"inputs": "a',
    "cut in an escape": b'{"inputs": "\\u00',
    "single quotes": b"{'inputs': 'a'}",
    "comma at the end": b'{"inputs": "a",}',
    "two objects": b'{"inputs": "a"}{"inputs": "b"}',
    "something after": b'{"inputs": "a"} x',
    "comment": b'{"inputs": "a" /* b */}',
    "bare key": b'{inputs: "a"}',
    "number as key": b'{1: "a"}',
    "raw line break": b'{"inputs": "a\nb"}',
    "raw NUL": b'{"inputs": "a\x00b"}',
    "wrong escape": b'{"inputs": "\\x41"}',
    "NaN": b'{"inputs": "a", "x": NaN}',
    "Infinity": b'{"inputs": "a", "x": Infinity}',
    "-Infinity": b'{"inputs": "a", "x": -Infinity}',
    "hexadecimal": b'{"inputs": "a", "x": 0x10}',
    "octal": b'{"inputs": "a", "x": 010}',
    "1e400": b'{"inputs": "a", "x": 1e400}',
    "10**400": b'{"inputs": "a", "x": 1' + b"0" * 400 + b"}",
    "a million digits": b'{"inputs": "a", "x": ' + b"9" * 1_000_000 + b"}",
    "NUL bytes": b"\x00" * 100,
    "latin-1": '{"inputs": "é"}'.encode("latin-1"),
    "utf-16": '{"inputs": "a"}'.encode("utf-16"),
    "utf-16 without mark": '{"inputs": "a"}'.encode("utf-16-le"),
    "utf-32": '{"inputs": "a"}'.encode("utf-32"),
    "byte order mark": '{"inputs": "a"}'.encode("utf-8-sig"),
    "cut character": b'{"inputs": "\xe4\xbd"}',
    "overlong": b'{"inputs": "\xc0\xaf"}',
    "surrogate in UTF-8": b'{"inputs": "\xed\xa0\x80"}',
    "beyond Unicode": b'{"inputs": "\xf5\x90\x80\x80"}',
    "lone high surrogate": rb'{"inputs": "\ud800"}',
    "lone low surrogate": rb'{"inputs": "\udc00"}',
    "surrogates the wrong way round": rb'{"inputs": "\udc00\ud800"}',
    "surrogate as a key": rb'{"inputs": "a", "\ud800": 1}',
    "form": b"inputs=a&stream=true",
    "multipart": b'--x\r\nContent-Disposition: form-data; name="inputs"\r\n\r\na\r\n--x--\r\n',
    "gzip": bytes.fromhex("1f8b0800000000000003ab56ca4cce2fcd2b51b25202006f5a0a4b0e000000"),
    "65 levels": b'{"inputs": "a", "x": ' + b"[" * 64 + b"]" * 64 + b"}",
    "65 levels of objects": b'{"a": ' * 65 + b"1" + b"}" * 65,
    "a thousand levels": b'{"inputs": "a", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a million levels": b"[" * 1_000_000,
    "a million levels of objects": b'{"a":' * 1_000_000,
}


@pytest.fixture(scope="module")
def server():
    with bad_day() as running:
        yield running


def bad_status(path):
    return 422 if path in ("/infer", "/infer_token", "/v1/tokenizer") else 400


@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_json_object_is_told_so(server, path):
    for name, body in NO_JSON_OBJECT.items():
        answer = ask_json(server, path, body)
        assert answer.status == bad_status(path), (name, answer)
        assert error_of(path, answer).startswith("the body"), (name, answer)
        assert len(answer.body) < 1000


@pytest.mark.parametrize("path", ["/infer", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_errors_before_a_stream_are_plain_json(server, path):
    for body in (b'{"stream": true', b'{"stream": true}', b'{"stream": true, "x": NaN}'):
        answer = ask_json(server, path, body)
        assert answer.status == bad_status(path)
        error_of(path, answer)


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "application/json; charset=utf-16",
        "multipart/form-data; boundary=x",
        "no content type",
        "\xff",
    ],
)
def test_only_the_body_tells_what_it_is(server, path, content_type):
    """As `curl -d` sends it: MindIE's handlers never look at the content type either."""
    body = json.dumps(REQUESTS[path]).encode()
    lines = [f"Content-Length: {len(body)}"] + ([] if content_type is None else [f"Content-Type: {content_type}"])
    answer = ask(server, head(path, *lines) + body)
    assert answer.status == 200, answer
    assert answer.json()


def test_odd_but_right_json_is_taken(server):
    for body in (
        rb'{"inputs": "\ud83d\ude00 \u0000 \/ \u2028", "parameters": {"max_new_tokens": 2}}',
        b'\r\n\t {"inputs":"a","parameters":{"max_new_tokens":2}}\n\n',
        '{"inputs": "\U0010ffff\ufffe", "parameters": {"max_new_tokens": 2}}'.encode(),
        b'{"inputs": "a", "parameters": {"max_new_tokens": 2}, "x": ' + b"[" * 63 + b"]" * 63 + b"}",
        b'{"inputs": "a", "parameters": {"max_new_tokens": 2}, "x": 1' + b"0" * 300 + b"}",
        b'{"inputs": "a", "parameters": {"max_new_tokens": 2}, "x": 1e-999}',
    ):
        answer = ask_json(server, "/infer", body)
        assert answer.status == 200, (body, answer)


def test_the_last_of_duplicate_keys_counts(server):
    body = b'{"inputs": 1, "inputs": "hello", "parameters": {"max_new_tokens": 99, "max_new_tokens": 3, "details": true}}'
    assert ask_json(server, "/infer", body).json()["details"]["generated_tokens"] == 3
    answer = ask_json(server, "/v1/completions", b'{"prompt": "hello", "prompt": 1.5}')
    assert answer.status == 400


@pytest.mark.parametrize("path", ["/infer", "/v1/chat/completions", "/v1/messages"])
def test_a_body_of_too_many_arrays_and_objects_is_refused_unread(server, path, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_JSON_CONTAINERS", 100)
    inner = b"[" + b"{},[]," * 49 + b"1]"
    assert "the body may hold" not in ask_json(server, path, b'{"x": ' + inner + b"}").body.decode()
    monkeypatch.setattr(bodies.orjson, "loads", lambda data: 1 / 0)
    answer = ask_json(server, path, b'{"x": [' + inner + b"]}")
    assert answer.status == bad_status(path)
    assert error_of(path, answer) == "the body may hold [ and { at most 100 times, got 101"


@pytest.mark.parametrize("path", [*REQUESTS, "/tokenize"])
def test_a_body_of_fifty_megabytes_is_refused(server, path):
    with Client(server.port) as client:
        client.send(head(path, f"Content-Length: {50 * MEGABYTE}"))
        answer = client.answer()  # before any of it has been sent
    assert answer.status == 413
    assert "41943040 bytes (40 MB)" in error_of(path, answer)


def test_a_body_of_fifty_megabytes_that_is_sent_all_the_same(server):
    """A client that writes all before it reads gets the answer, or sees its connection closed, and nothing hangs."""
    for lines in ([f"Content-Length: {50 * MEGABYTE}"], ["Transfer-Encoding: chunked"]):
        with Client(server.port) as client:
            try:
                client.send(head("/infer", *lines))
                for _ in range(50):
                    data = b" " * MEGABYTE
                    client.send(data if "chunked" not in lines[0] else b"100000\r\n" + data + b"\r\n")
                answer = client.answer()
            except ConnectionError:
                continue
            assert answer.status == 413
            error_of("/infer", answer)


@pytest.mark.parametrize("path", ["/infer", "/v1/chat/completions", "/v1/messages"])
def test_a_chunked_body_is_cut_at_the_limit(path):
    with bad_day(options={"max_request_bytes": 64 * 1024}) as server:
        with Client(server.port) as client:
            client.send(head(path, "Transfer-Encoding: chunked"))
            client.send(b"10000\r\n" + b" " * 65536 + b"\r\n" + b"1\r\n \r\n")
            answer = client.answer()
        assert answer.status == 413
        assert "65536 bytes" in error_of(path, answer)
        body = json.dumps(REQUESTS[path]).encode().ljust(65536)
        chunked = b"8000\r\n" + body[:32768] + b"\r\n8000\r\n" + body[32768:] + b"\r\n0\r\n\r\n"
        assert ask(server, head(path, "Transfer-Encoding: chunked") + chunked).status == 200


def test_many_large_bodies_at_once_leave_the_server_well(server):
    """Bodies of 20 MB each, within the limit: a long prompt is refused by its length, not by what it costs."""
    body = post("/infer", json.dumps({"inputs": "a" * (20 * MEGABYTE)}).encode())
    clients = [Client(server.port, timeout=60) for _ in range(4)]
    for client in clients:
        client.send(body)
    for client in clients:
        answer = client.answer()
        assert answer.status == 422
        assert "4194304" in error_of("/infer", answer)
        client.__exit__()
    check_well(server)


@pytest.mark.parametrize("path", ["/infer", "/v1/chat/completions", "/v1/messages", "/tokenize"])
def test_a_body_that_does_not_arrive_is_a_408(server, monkeypatch, path):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    body = json.dumps(REQUESTS.get(path, {"prompt": "a"})).encode()
    for sent in (b"", body[:1], body[:-1]):
        with Client(server.port) as client:
            client.send(head(path, f"Content-Length: {len(body)}") + sent)
            answer = client.answer()
            assert answer.status == 408
            assert "0.2 seconds" in error_of(path, answer)
            assert client.closed()


def test_a_body_that_drips_is_a_408(server, monkeypatch):
    """Each byte in time, but not all of them: the deadline is the whole body's."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    with Client(server.port) as client:
        client.send(head("/infer", "Content-Length: 1000"))
        for _ in range(500):
            client.send(b" ")
            if client.readable(0.02):
                break
        assert client.answer().status == 408
