"""Whole conversations as known clients hold them, each with its own way of reading, on the real model."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import socket
import time
import tty

import pytest
from unit_parts import serving_unit

from trivium.config import EngineConfig
from trivium.doors.unit import tcp
from trivium.engine import NativeEngine

NAMES = ["qwen2.5-0.5B-prefill-20e=smollm2", "qwen2.5-0.5b=smollm2"]


@pytest.fixture(scope="module")
def engine(smollm2):
    with NativeEngine.load(EngineConfig(model=smollm2, served_model_name="smollm2", num_kv_blocks=256)) as engine:
        yield engine


class Line:
    """A pseudo-terminal; `device` is the server's end."""

    def __init__(self):
        self.fd, self._slave = os.openpty()
        tty.setraw(self.fd)
        self.device = os.ttyname(self._slave)

    def write(self, data):
        os.write(self.fd, data)

    def read(self, count, timeout):
        """Up to `count` bytes; none if nothing comes in time."""
        return os.read(self.fd, count) if select.select([self.fd], [], [], timeout)[0] else b""

    def close(self):
        os.close(self.fd)
        os.close(self._slave)


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


@pytest.fixture
def door(engine, line):
    with serving_unit(engine, unit_models=NAMES, unit_serial=[f"{line.device}:115200"]) as door:
        yield door


class Arduino:
    """Counts braces, also those in strings; a line feed clears its buffer; knows replies by their request_id."""

    def __init__(self, line):
        self.line = line
        self.buffer = b""
        self.depth = 0

    def send(self, **fields):
        self.line.write(json.dumps(fields, separators=(",", ":")).encode())

    def next(self, timeout):
        """The next object, or None after `timeout` seconds without a byte."""
        while data := self.line.read(1, timeout):
            if data == b"\n":
                self.buffer, self.depth = b"", 0
                continue
            self.buffer += data
            self.depth += (data == b"{") - (data == b"}")
            if data == b"}" and self.depth == 0:
                found, self.buffer = self.buffer, b""
                return json.loads(found)
        return None

    def wait(self, request_id, timeout):
        while (reply := self.next(timeout)) is not None:
            if reply["request_id"] == request_id:
                return reply
        raise AssertionError(f"no reply to {request_id}")

    def infer_and_wait(self, work_id, text):
        data = {"delta": text, "index": 0, "finish": True}
        self.send(request_id="llm_inference", work_id=work_id, action="inference", object="llm.utf-8.stream", data=data)
        said = ""
        while True:
            reply = self.wait("llm_inference", 5.0)
            said += reply["data"].get("delta", "null")
            if reply["data"]["finish"]:
                return said


def test_arduino(door, line):
    client = Arduino(line)
    client.send(request_id="sys_ping", work_id="sys", action="ping", object="None", data="None")
    assert client.wait("sys_ping", 2.0)["error"]["code"] == 0
    client.send(request_id="sys_version", work_id="sys", action="version", object="None", data="None")
    assert float(client.wait("sys_version", 2.0)["data"][1:]) == 1.6
    client.send(request_id="sys_reset", work_id="sys", action="reset", object="None", data="None")
    assert client.wait("sys_reset", 2.0)["error"]["code"] == 0
    assert client.wait("0", 15.0)["error"]["message"] == "reset over"
    data = {
        "prompt": "You repeat what you are told. {}}",
        "response_format": "llm.utf-8.stream",
        "input": ["llm.utf-8.stream"],
        "enoutput": True,
        "enkws": True,
        "model": "qwen2.5-0.5B-prefill-20e",
        "max_token_len": 127,
    }
    client.send(request_id="llm_setup", work_id="llm", action="setup", object="llm.setup", data=data)
    work_id = client.wait("llm_setup", 30.0)["work_id"]
    assert work_id == "llm.1000"
    for text in ("Tell me a story.", "Write a C function: int main() {", "Say } and { and 你好."):
        assert client.infer_and_wait(work_id, text)
    client.send(request_id="llm_exit", work_id=work_id, action="exit")
    assert client.wait("llm_exit", 2.0)["error"]["code"] == 0
    client.send(request_id="llm_setup", work_id="llm", action="setup", object="llm.setup", data={**data, "model": "unknown"})
    work_id = client.wait("llm_setup", 30.0)["work_id"]  # this library does not look at the code
    assert work_id == "llm"
    data = {"delta": "hello", "index": 0, "finish": True}
    client.send(request_id="llm_inference", work_id=work_id, action="inference", object="llm.utf-8.stream", data=data)
    assert client.wait("llm_inference", 5.0)["error"]["code"] == -4


class UIFlow:
    """Reads lines through a receive buffer of 1 kB, decoding each part by itself; every object must have a request_id."""

    def __init__(self, line):
        self.line = line
        self.text = ""

    def ask(self, request_id, work_id, action, timeout=2.0, object="None", data="None"):
        fields = {"request_id": request_id, "work_id": work_id, "action": action, "object": object, "data": data}
        self.line.write(json.dumps(fields).encode())
        return self.wait(request_id, timeout)

    def wait(self, request_id, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            while "\n" not in self.text:
                part = self.line.read(7, timeout)
                assert part, f"no reply to {request_id}"
                self.text += part.decode()  # fails if a character is cut
            found, _, self.text = self.text.partition("\n")
            reply = json.loads(found)
            if request_id != "sys_lsmode":
                assert len(found) < 1024
            if reply["request_id"] == request_id:
                return reply
        raise AssertionError(f"no reply to {request_id}")


def test_uiflow(door, line):
    client = UIFlow(line)
    assert client.ask("sys_ping", "sys", "ping")["error"]["code"] == 0
    assert client.ask("sys_version", "sys", "version")["data"] == "v1.6"
    client.ask("sys_reset", "sys", "reset")
    client.wait("0", 15.0)
    models = client.ask("sys_lsmode", "sys", "lsmode")["data"]
    assert "qwen2.5-0.5B-prefill-20e" in [model["mode"] for model in models if model["type"] == "llm"]
    data = {
        "model": "qwen2.5-0.5B-prefill-20e",
        "response_format": "llm.utf-8.stream",
        "input": ["llm.utf-8.stream"],
        "enoutput": True,
        "max_token_len": 60,
        "prompt": "你是一个助手。",
    }
    work_id = client.ask("llm_setup", "llm", "setup", 30.0, "llm.setup", data)["work_id"]
    data = {"delta": "Write three words in Chinese: 你好", "index": 0, "finish": True}
    reply = client.ask("llm_inference", work_id, "inference", 10.0, "llm.utf-8.stream", data)
    while not reply["data"]["finish"]:
        assert reply["error"]["code"] == 0
        reply = client.wait("llm_inference", 10.0)
    assert client.ask("llm_exit", work_id, "exit")["error"]["code"] == 0


def test_the_benchmark_script(door):
    """Setup and exit read until a line feed has come, and parse all of it; the rate counts three tokens a frame."""
    sock = socket.create_connection(("127.0.0.1", door.port), 30)

    def send(fields):
        sock.sendall(json.dumps(fields).encode())

    def response():
        data = b""
        while b"\n" not in data:
            data += sock.recv(4096)
        return json.loads(data.decode())

    data = {
        "model": "qwen2.5-0.5B-prefill-20e",
        "response_format": "llm.utf-8.stream",
        "input": "llm.utf-8",
        "enoutput": True,
        "max_token_len": 256,
        "prompt": "You are a knowledgeable assistant.",
    }
    send({"request_id": "llm_001", "work_id": "llm", "action": "setup", "object": "llm.setup", "data": data})
    reply = response()
    assert reply["error"]["code"] == 0
    work_id = reply["work_id"]
    data = {"delta": "Tell me an adventure story.", "index": 0, "finish": True}
    send({"request_id": "llm_001", "work_id": work_id, "action": "inference", "object": "llm.utf-8.stream", "data": data})
    text, said, frames, finish = "", "", 0, False
    while not finish:
        text += sock.recv(4096).decode()
        *lines, text = text.split("\n")
        for found in lines:
            reply = json.loads(found)
            said += reply["data"]["delta"]
            finish = reply["data"]["finish"]
            frames += 1
    assert text == ""
    assert len(said) > 20
    assert 3 * (frames - 1) <= 256 + 3
    send({"request_id": "llm_exit", "work_id": work_id, "action": "exit"})
    assert response()["error"]["code"] == 0
    sock.close()


class Gateway:
    """Takes what one `recv(4096)` gives for one whole reply, and skips those with another id."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def ask(self, request_id, work_id, action, object="None", data="None"):
        fields = {"request_id": request_id, "work_id": work_id, "action": action, "object": object, "data": data}
        self.socket.sendall((json.dumps(fields) + "\n").encode())

    def wait(self, request_id):
        while (reply := json.loads(self.socket.recv(4096)))["request_id"] != request_id:
            pass
        return reply

    def converse(self):
        """Texts of three answers. Raises ValueError if two frames came in one read."""
        data = {
            "model": "qwen2.5-0.5B-prefill-20e",
            "response_format": "llm.utf-8.stream",
            "input": "llm.utf-8",
            "enoutput": True,
            "max_token_len": 12,
            "temperature": 0.7,
            "top_p": 1,
            "prompt": "You are a helpful assistant.",
        }
        self.ask("setup", "llm", "setup", "llm.setup", data)
        reply = self.wait("setup")
        assert reply["error"]["code"] == 0
        work_id = reply["work_id"]
        texts = []
        for i in range(3):
            self.ask(f"i{i}", work_id, "inference", "llm.utf-8", "user: Hello, how are you?")
            text = ""
            while not (reply := self.wait(f"i{i}"))["data"]["finish"]:
                text += reply["data"]["delta"]
            texts.append(text)
        self.ask("cancel", work_id, "pause", data={})
        assert self.wait("cancel")["error"]["code"] == 0
        self.ask("exit", work_id, "exit")
        assert self.wait("exit")["error"]["code"] == 0
        return texts


def test_the_openai_gateway(door):
    """Where this test's process is held up, frames pile up before its reads: then it begins again."""
    with Gateway(door.port) as system:
        system.ask("1", "sys", "lsmode")
        assert all(isinstance(model["mode_param"]["cmm_size"], int) for model in system.wait("1")["data"])
        system.ask("2", "sys", "cmminfo")
        assert system.wait("2")["data"]["remain"] > 0
    for _ in range(30):
        with Gateway(door.port) as client:
            try:
                texts = client.converse()
            except ValueError:
                client.ask("reset", "sys", "reset")
                continue
        break
    assert all(re.search(r"\w", text) for text in texts)


def test_a_write_is_a_frame_and_the_last_frame_comes_apart(door, monkeypatch):
    writes = []
    write = tcp.TcpConnection._write

    def watched(self, frame, apart, now):
        writes.append((now, frame, apart))
        write(self, frame, apart, now)

    monkeypatch.setattr(tcp.TcpConnection, "_write", watched)
    with door.client() as client:
        task = client.set_up(model="smollm2", max_token_len=10, temperature=0)
        client.infer(task, "Hello!")
        client.send("p", task, "pause")
        while client.receive()["request_id"] != "p":  # behind the last frame
            pass
        client.infer(task, "Hello!")
        client.answer()
        client.ask("e", task, "exit")
    assert all(frame.count(b"\n") == 1 and frame.endswith(b"}\n") for _, frame, _ in writes)
    for (before, _, earlier), (now, _, apart) in itertools.pairwise(writes):
        assert now - before >= tcp._APART_SECONDS or not (apart or earlier)


def test_the_example_script(door):
    """One request_id for everything, commands end with a line feed, `json.loads` on all that was read up to the first one."""
    sock = socket.create_connection(("127.0.0.1", door.port), 30)

    def ask(**fields):
        sock.sendall((json.dumps({"request_id": "4155", **fields}) + "\n").encode())

    def response():
        data = b""
        while not data.endswith(b"\n"):
            data += sock.recv(1)
        return json.loads(data.decode())

    data = {"model": "qwen2.5-0.5b", "response_format": "llm.utf-8.stream", "input": "llm.utf-8.stream", "enoutput": True}
    ask(work_id="llm", action="setup", object="llm.setup", data=data | {"max_token_len": 100, "prompt": "You are helpful."})
    work_id = response()["work_id"]
    for text in ("Hello", "How old are you?"):
        data = {"delta": text, "index": 0, "finish": True}
        ask(work_id=work_id, action="inference", object="llm.utf-8.stream", data=data)
        while not response()["data"]["finish"]:
            pass
    ask(work_id=work_id, action="exit")
    assert response()["error"]["code"] == 0
    sock.close()


def test_two_devices_at_once(door, line):
    arduino = Arduino(line)
    data = {"response_format": "llm.utf-8.stream", "enoutput": True, "model": "qwen2.5-0.5b", "max_token_len": 60, "prompt": ""}
    arduino.send(request_id="s", work_id="llm", action="setup", data={**data, "input": "llm.utf-8"})
    first = arduino.wait("s", 30.0)["work_id"]
    with door.client() as client:
        second = client.set_up(model="smollm2", max_token_len=60)
        client.infer(second, "Tell me a story about a cat.", "tcp")
        assert arduino.infer_and_wait(first, "Tell me a story about a dog.")
        text, frames = client.answer()
        assert text
        assert frames[0]["request_id"] == "tcp"
