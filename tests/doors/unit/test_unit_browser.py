"""A web page must not drive the unit door: browsers post whatever they are told to any port of this machine."""

from __future__ import annotations

import contextlib
import socket

import pytest
from engine_parts import make_engine
from unit_parts import serving_unit

MESSAGE = b'{"request_id":"1","work_id":"sys","action":"reset"}'


@pytest.fixture(scope="module")
def door():
    with make_engine() as engine, serving_unit(engine) as door:
        yield door


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "OPTIONS", "DELETE"])
def test_what_speaks_http_is_cut_off(door, method, caplog):
    with door.client() as client:
        client.set_up("llm")
        with socket.create_connection(("127.0.0.1", door.port), 20) as browser:
            browser.sendall(f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 51\r\n\r\n".encode() + MESSAGE)
            with contextlib.suppress(ConnectionResetError):
                assert browser.recv(1000) == b""
        assert "speaks HTTP" in caplog.text
        (work_id,) = client.ask("t", "llm", "taskinfo")["data"]
        assert client.ask("x", work_id, "exit")["error"]["code"] == 0


def test_noise_before_a_message_is_allowed(door):
    with door.client() as client:
        client.send_bytes(b"post \r\n GET " + MESSAGE)
        assert client.receive()["error"]["code"] == 0
        client.send_bytes(b"POST " + MESSAGE)
        assert client.receive()["error"]["code"] == 0
