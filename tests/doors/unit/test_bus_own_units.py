"""The units of this process, called over the bus by programs of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
import zmq
from bus_parts import letters, remote, unit
from engine_parts import make_engine
from unit_parts import blocks, serving_unit, wait_until

from trivium.doors.unit.remote import caller as caller_module

PROGRAM = Path(__file__).with_name("calling_program.py")
SETUP = {"model": "fake", "response_format": "llm.utf-8.stream", "input": "llm.utf-8", "enoutput": True, "prompt": ""}


class Program:
    """A process that calls units."""

    def __init__(self, process):
        self.process = process
        self.queues = {kind: Queue() for kind in ("url", "taken", "frame", "output")}
        self.reader = Thread(target=self._read)
        self.reader.start()
        self.url = self.next("url")

    def _read(self):
        for line in self.process.stdout:
            kind, what = json.loads(line)
            self.queues[kind].put(what)

    def next(self, kind):
        return self.queues[kind].get(timeout=20)

    def _write(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def listen(self, work_id):
        self._write("listen", work_id)

    def call(self, name, action, text):
        """What the unit returns; the text is a message, or anything."""
        self._write("call", name, action, text if isinstance(text, str) else json.dumps(text))
        return self.next("taken")

    def act(self, action, work_id="llm", request_id="1", **fields):
        """An action that is taken, and the frame that answers it."""
        message = {"request_id": request_id, "work_id": work_id, "action": action, **fields}
        assert self.call(work_id.partition(".")[0], action, message) == "None"
        return self.next("frame")

    def set_up(self, **data):
        reply = self.act("setup", object="llm.setup", data=SETUP | data)
        assert reply["error"]["code"] == 0, reply
        return reply["work_id"]

    def answer(self, first=None):
        """The text of a streamed answer, and its last frame."""
        frames = [first or self.next("frame")]
        while not frames[-1]["data"]["finish"]:
            frames.append(self.next("frame"))
        assert [frame["data"]["index"] for frame in frames] == list(range(len(frames)))
        return "".join(frame["data"]["delta"] for frame in frames), frames

    def assert_silent(self, seconds=0.1):
        with pytest.raises(Empty):
            self.queues["frame"].get(timeout=seconds)


@contextmanager
def calling(bus):
    process = subprocess.Popen([sys.executable, PROGRAM, bus], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    program = None
    try:
        program = Program(process)
        yield program
        if process.poll() is None:
            process.stdin.close()
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        if program is not None:
            program.reader.join(20)
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def program(bus, door):
    with calling(bus) as program:
        yield program


def code(frame):
    return frame["request_id"], frame["work_id"], frame["error"]["code"]


def test_a_conversation(program, door):
    work_id = program.set_up(temperature=0, max_token_len=9)
    assert work_id == "llm.1000"
    program.listen(work_id)
    wait_until(lambda: door.call(lambda: door.server.bus.is_heard(work_id)))
    chunk = {"delta": "hello {world}", "index": 0, "finish": True}
    first = program.act("inference", work_id, "i", object="llm.utf-8.stream", data=chunk)
    text, frames = program.answer(first)
    assert text == letters("hello {world}", 9)
    assert {(frame["request_id"], frame["work_id"], frame["object"]) for frame in frames} == {
        ("i", work_id, "llm.utf-8.stream")
    }
    told = [program.next("output") for _ in frames]
    assert [frame | {"created": 0} for frame in told] == [frame | {"created": 0} for frame in frames]
    assert program.act("taskinfo")["data"] == [work_id]
    assert program.act("taskinfo", work_id)["data"]["inputs"] == ["llm.utf-8"]
    assert code(program.act("work", work_id)) == ("1", work_id, 0)
    assert code(program.act("exit", work_id)) == ("1", work_id, 0)
    assert code(program.act("exit", work_id)) == ("1", work_id, -6)
    assert code(program.act("inference", work_id, object="llm.utf-8", data="x")) == ("1", work_id, -4)
    program.assert_silent()


def test_output_for_listeners_alone(program, door):
    work_id = program.set_up(temperature=0, max_token_len=3, enoutput=False)
    program.listen(work_id)
    wait_until(lambda: door.call(lambda: door.server.bus.is_heard(work_id)))
    message = {"request_id": "i", "work_id": work_id, "object": "llm.utf-8", "data": "hello"}
    assert program.call("llm", "inference", message) == "None"
    assert program.next("output")["data"] == {"delta": letters("hello", 3), "finish": False, "index": 0}
    assert program.next("output")["data"]["finish"]
    program.assert_silent()


def test_a_pause_ends_the_answer(program, door):
    work_id = program.set_up(temperature=0, max_token_len=200)
    door.engine.native.gate.clear()
    message = {"request_id": "i", "work_id": work_id, "object": "llm.utf-8", "data": "a long story"}
    assert program.call("llm", "inference", message) == "None"
    wait_until(lambda: door.engine.stats().running == 1)
    assert program.call("llm", "pause", {"request_id": "p", "work_id": work_id, "action": "pause"}) == "None"
    frames = [program.next("frame")]
    while len({frame["request_id"] for frame in frames}) < 2 or not any(
        frame["request_id"] == "i" and frame["data"]["finish"] for frame in frames
    ):
        frames.append(program.next("frame"))
    door.engine.native.gate.set()
    assert sum(frame["request_id"] == "i" and frame["data"]["finish"] for frame in frames) == 1
    assert sum(frame["request_id"] == "p" for frame in frames) == 1
    program.assert_silent()


MESSAGES = [
    "",
    "{",
    "no JSON",
    "[]",
    "}",
    '{"request_id":"1"}{"request_id":"2"}',
    '{"request_id":7,"work_id":"llm","action":"setup"}',
    '{"work_id":"llm","action":"setup"}',
    '{"request_id":"1","work_id":7,"action":"setup"}',
    json.dumps({"request_id": "x" * 300, "work_id": "llm", "action": "setup"}),
    {"request_id": "1", "work_id": "llm", "action": "setup"},
    {"request_id": "1", "work_id": "llm", "action": "setup", "data": "no object"},
    {"request_id": "1", "work_id": "llm", "action": "setup", "data": {}},
    {"request_id": "1", "work_id": "llm", "action": "setup", "data": SETUP | {"model": "unknown"}},
    {"request_id": "1", "work_id": "llm", "action": "setup", "data": SETUP | {"temperature": "hot"}},
    {"request_id": "1", "work_id": "llm.7", "action": "link", "data": "asr.1"},
    {"request_id": "1", "work_id": "llm.7", "action": "pause"},
    {"request_id": "1", "work_id": "llm.7", "action": "inference", "object": "llm.utf-8", "data": "x"},
    {"request_id": "1", "work_id": "llm.1000", "action": "link", "data": "asr.1"},
    {"request_id": "1", "work_id": "llm.1000", "action": "inference", "object": "llm.utf-8.stream", "data": "x"},
    {"request_id": "1", "work_id": "llm.1000", "action": "inference", "object": "llm.utf-8.base64", "data": "!"},
    {"request_id": "1", "work_id": "llm.1000", "action": "inference", "object": "llm.utf-8", "data": 7},
    {"request_id": "1", "work_id": "llm.1000", "action": "taskinfo", "data": None, "what": "is ignored"},
]


def test_errors_are_those_of_tcp(program, door):
    assert program.set_up() == "llm.1000"
    with door.client() as client:
        for message in MESSAGES:
            if isinstance(message, str):
                action, text = "setup", message
                client.send_bytes(message.encode())
                many = len(message.split("}{"))
                if not message.endswith("}"):
                    client.send_bytes(b"}" if "{" in message else b'{"no message":0}')
            else:
                action, text, many = message["action"], json.dumps(message), 1
                client.send_bytes(text.encode())
            assert program.call("llm", action, text) == "None"
            told = program.next("frame")
            for _ in range(many):
                expected = client.receive()
            assert told | {"created": 0} == expected | {"created": 0}, message
    program.assert_silent()


def test_what_the_call_says_of_the_message(program):
    """The unit and the action are those that were called, whatever the message says."""
    assert program.call("llm", "taskinfo", {"request_id": "1"}) == "None"
    assert program.next("frame")["object"] == "llm.tasklist"
    assert program.call("llm", "taskinfo", {"request_id": "1", "work_id": "", "action": "exit"}) == "None"
    assert program.next("frame")["object"] == "llm.tasklist"
    assert program.call("llm", "taskinfo", {"request_id": "1", "work_id": None}) == "None"
    assert code(program.next("frame")) == ("0", "sys", -2)
    for work_id in ("sys", "asr.1000"):
        assert program.call("llm", "setup", {"request_id": "1", "work_id": work_id, "data": SETUP}) == "None"
        assert code(program.next("frame")) == ("1", work_id, -6)
    assert program.call("llm", "dance", {"request_id": "1", "work_id": "llm"}) == "dance NotAction"
    assert json.loads(program.call("llm", "list_action", ""))["actions"] == [
        *("list_action", "setup", "inference", "link", "unlink", "pause", "work", "exit", "taskinfo")
    ]
    program.assert_silent()


def test_a_task_belongs_to_who_commanded_last(bus, door, program):
    work_id = program.set_up(temperature=0, max_token_len=4)
    with door.client() as client, calling(bus) as other:
        client.infer(work_id, "typed")
        assert client.answer()[0] == letters("typed", 4)
        assert other.answer(other.act("inference", work_id, object="llm.utf-8", data="called"))[0] == letters("called", 4)
        assert program.answer(program.act("inference", work_id, object="llm.utf-8", data="again"))[0] == letters("again", 4)


def test_a_program_that_ends_leaves_its_tasks(bus, door):
    with calling(bus) as program:
        work_id = program.set_up(max_token_len=200)
        door.engine.native.gate.clear()
        program.call("llm", "inference", {"request_id": "i", "work_id": work_id, "object": "llm.utf-8", "data": "a long story"})
        wait_until(lambda: door.engine.stats().running == 1)
        program.process.kill()
        program.process.wait()
    wait_until(lambda: not door.call(lambda: remote(door)._callers._callers))
    door.engine.native.gate.set()
    wait_until(lambda: blocks(door.engine) == (0, 0, 0))
    with calling(bus) as program:
        assert program.act("taskinfo")["data"] == [work_id]
        assert program.act("exit", work_id)["error"]["code"] == 0


def test_units_of_both_kinds_are_linked(bus, door, program):
    """One that has joined says something, ours answers, and the program hears the answer."""
    with unit(bus, "asr"), door.client() as client:
        hears = client.set_up("asr", response_format="asr.utf-8")
        program.set_up(temperature=0, input=["llm.utf-8", hears], max_token_len=5)
        client.send("h", hears, "inference", object="asr.utf-8", data="what is heard")
        assert client.receive()["data"] == "what is heard"
        assert program.answer()[0] == letters("what is heard", 5)


def test_calls_that_cannot_be_answered(caller, door, bus, monkeypatch):
    monkeypatch.setattr(caller_module, "_MAX_CALLERS", 0)
    url = caller.ask("sql_select", "rpc.llm").decode() if bus.startswith("tcp:") else f"ipc://{bus}/rpc.llm"
    call = caller.socket(zmq.REQ)
    call.connect(url)
    own = b"tcp://127.0.0.1:9"
    for payload in (
        b"",
        b"\x05abc",
        b"\x00{}",
        b"\x01x{}",
        b"\x12ipc:///etc/passwd{}",
        b"\x02\xff\xff{}",
        bytes([len(own)]) + own,
    ):
        call.send_multipart([b"setup", payload])
        assert call.recv() == b"False"
    call.send(b"setup")
    assert call.recv() == b"False"
    with door.client() as client:
        assert client.ask()["error"]["code"] == 0


def test_a_program_that_is_not_there(caller, door, bus, monkeypatch, caplog):
    monkeypatch.setattr(caller_module, "_REACH_SECONDS", 0.2)
    url = caller.ask("sql_select", "rpc.llm").decode() if bus.startswith("tcp:") else f"ipc://{bus}/rpc.llm"
    call = caller.socket(zmq.REQ)
    call.connect(url)
    with zmq.Context() as context, context.socket(zmq.PULL) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    own = f"tcp://127.0.0.1:{port}".encode()
    call.send_multipart([b"taskinfo", bytes([len(own)]) + own + b'{"request_id":"1"}'])
    assert call.recv() == b"None"
    wait_until(lambda: "cannot be reached" in caplog.text)
    assert not door.call(lambda: remote(door)._callers._callers)


def test_a_program_that_does_not_read(caller, door, bus, monkeypatch, caplog):
    monkeypatch.setattr(caller_module, "_MAX_UNSENT_BYTES", 20000)
    url = caller.ask("sql_select", "rpc.llm").decode() if bus.startswith("tcp:") else f"ipc://{bus}/rpc.llm"
    call = caller.socket(zmq.REQ)
    call.connect(url)
    frames = caller.socket(zmq.PULL)
    frames.set(zmq.RCVHWM, 1)
    frames.bind("tcp://127.0.0.1:*" if bus.startswith("tcp:") else f"ipc://{bus}/llm/9000.sock")
    own = frames.get(zmq.LAST_ENDPOINT).rstrip(b"\0")
    message = json.dumps({"request_id": "1", "work_id": "llm" + "x" * 200}).encode()
    for _ in range(100000):
        call.send_multipart([b"exit", bytes([len(own)]) + own + message])
        assert call.recv() == b"None"
        if "is cut off" in caplog.text:
            break
    assert "is cut off" in caplog.text
    with door.client() as client:
        assert client.ask()["error"]["code"] == 0


def test_the_door_ends_before_the_program(bus):
    with make_engine() as engine, ExitStack() as later:
        with serving_unit(engine, unit_bus=bus, stop_timeout=0.0):
            program = later.enter_context(calling(bus))
            work_id = program.set_up(max_token_len=200)
            engine.native.gate.clear()
            program.call("llm", "inference", {"request_id": "i", "work_id": work_id, "object": "llm.utf-8", "data": "story"})
            wait_until(lambda: engine.stats().running == 1)
            answers = []
            listener = Thread(target=lambda: (answers.append(program.answer()), engine.native.gate.set()))
            listener.start()
        listener.join(20)
        assert answers[0][1][-1]["request_id"] == "i"
        program.assert_silent()


def test_names_that_are_ours(caller, bus):
    for key in ("rpc.llm", "serial_zmq_url"):
        value = caller.ask("sql_select", key)
        assert value
        assert caller.set(key, "tcp://127.0.0.1:9") == b"False"
        assert caller.ask("sql_unset", key) == b"False"
        assert caller.ask("sql_select", key) == value
