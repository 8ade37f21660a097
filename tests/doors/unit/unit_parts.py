"""Parts for tests of the unit door: a server with an engine in a thread, clients, and units without a network."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.server import UnitServer


class FakeConnection(Connection):
    """Keeps what it is sent."""

    def __init__(self, name="fake"):
        self.name = name
        self.frames = []
        self.slow = False

    @property
    def busy(self):
        return self.slow

    def send(self, frame, *, apart=False):
        if not self.closed:
            assert frame.endswith(b"}\n")
            assert frame.count(b"\n") == 1
            self.frames.append(frame)

    @property
    def replies(self):
        return [json.loads(frame) for frame in self.frames]

    def take(self):
        replies = self.replies
        self.frames.clear()
        return replies


class RunningUnitServer:
    """A unit door that answers on `port`."""

    def __init__(self, server, loop, engine):
        self.server = server
        self.loop = loop
        self.engine = engine

    @property
    def port(self):
        return self.server.port

    def client(self, **options):
        return Client(self.port, **options)

    def call(self, function):
        """Run a function on the server's loop."""

        async def run():
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    @property
    def num_tasks(self):
        return self.call(lambda: sum(len(unit.tasks) for unit in self.server.units.values()))


@contextmanager
def serving_unit(engine, *, load=None, stop_timeout=10.0, **options):
    """Serve an engine with `UnitConfig` options; the engine stays the test's, and must be idle at the end."""
    ready = threading.Event()
    failure = []
    running = []

    async def run():
        loop = asyncio.get_running_loop()
        server = UnitServer(UnitConfig(**{"unit_port": 0, **options}), Dispatcher(engine), load)
        await server.start()
        end = asyncio.Event()
        running.append((RunningUnitServer(server, loop, engine), end))
        ready.set()
        await end.wait()
        await server.stop(stop_timeout)

    def run_thread():
        try:
            asyncio.run(run())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run_thread, name="unit-server")
    thread.start()
    ready.wait(30)
    if failure:
        thread.join(30)
        raise failure[0]
    door, end = running[0]
    try:
        yield door
    finally:
        door.loop.call_soon_threadsafe(end.set)
        thread.join(30)
    assert not thread.is_alive()
    assert not failure, failure
    assert not any(unit.tasks for unit in door.server.units.values())
    wait_until(lambda: blocks(engine) == (0, 0, 0))


def blocks(engine):
    """What must be zero when nothing runs."""
    stats = engine.stats()
    return stats.running, stats.waiting, stats.used_blocks


def wait_until(condition, timeout=30.0):
    """Until a condition holds that another thread brings about."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.005)


class Client:
    """A plain TCP client that reads line by line."""

    def __init__(self, port, timeout=60.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, request_id="1", work_id="sys", action="ping", **fields):
        self.send_bytes(json.dumps({"request_id": request_id, "work_id": work_id, "action": action, **fields}).encode())

    def send_bytes(self, data):
        self.socket.sendall(data)

    def line(self):
        while b"\n" not in self.buffer:
            data = self.socket.recv(65536)
            assert data, f"the server hung up; {self.buffer!r} was left"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def receive(self):
        reply = json.loads(self.line())
        assert list(reply) == ["created", "data", "error", "object", "request_id", "work_id"]
        assert list(reply["error"]) == ["code", "message"]
        assert isinstance(reply["created"], int)
        return reply

    def ask(self, *args, **fields):
        """Send a command and read one reply."""
        self.send(*args, **fields)
        return self.receive()

    def set_up(self, unit="llm", **data):
        """The work_id of a new task."""
        fields = {"model": "fake", "response_format": "llm.utf-8.stream", "input": "llm.utf-8", "enoutput": True, "prompt": ""}
        reply = self.ask("setup", unit, "setup", object=f"{unit}.setup", data=fields | data)
        assert reply["error"]["code"] == 0, reply
        return reply["work_id"]

    def infer(self, work_id, text, request_id="i"):
        """Send a text as one chunk of a stream."""
        chunk = {"delta": text, "index": 0, "finish": True}
        self.send(request_id, work_id, "inference", object="llm.utf-8.stream", data=chunk)

    def answer(self):
        """The text of one streamed answer, and its frames: numbered, one finish frame at the end, one id, none too long."""
        frames = []
        while not frames or not frames[-1]["data"]["finish"]:
            line = self.line()
            assert len(line) < 1000
            frames.append(json.loads(line))
        assert [frame["data"]["index"] for frame in frames] == list(range(len(frames)))
        assert all(frame["data"]["delta"] for frame in frames[:-1])
        assert frames[-1]["data"]["delta"] == ""
        assert len({(frame["request_id"], frame["work_id"], frame["object"]) for frame in frames}) == 1
        return "".join(frame["data"]["delta"] for frame in frames), frames

    def assert_silent(self, seconds=0.1):
        """Nothing more comes."""
        assert not self.buffer
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            data = b""
        self.socket.settimeout(60)
        assert not data, data
