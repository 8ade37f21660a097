"""Parts for tests of the bus: units in processes of their own, and one whose every word the test says."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import zmq
from fake_native import continuation

SPEECH = ["kws", "asr", "whisper", "tts", "melotts"]  # for other processes to be
UNIT = Path(__file__).with_name("joining_unit.py")


@contextmanager
def unit(bus, name):
    """A unit that has joined."""
    process = subprocess.Popen([sys.executable, UNIT, bus, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
        if process.poll() is None:
            process.stdin.close()
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def letters(prompt, count):
    """What the fake model answers."""
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def remote(door):
    return door.server._router.remote


def remote_tasks(door):
    return door.call(lambda: sorted(remote(door)._registry.tasks))


def split(packed):
    """The halves of a pair."""
    end = 1 + packed[0]
    return packed[1:end].decode(), packed[end:]


class Caller:
    """Asks the door as units do."""

    def __init__(self, url):
        self.context = zmq.Context()
        self.sockets = []
        self.call = self.socket(zmq.REQ)
        self.call.connect(url)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.context.destroy(0)

    def socket(self, kind):
        """One that is closed in the end, wherever a test fails."""
        socket = self.context.socket(kind)
        socket.set(zmq.RCVTIMEO, 20000)
        self.sockets.append(socket)
        return socket

    def ask(self, *parts):
        self.call.send_multipart([part if isinstance(part, bytes) else part.encode() for part in parts])
        return self.call.recv()

    def set(self, key, value):
        return self.ask("sql_set", json.dumps({"key": key, "val": value}))

    def register(self, name):
        """The number, where the output is to be, and where inferences will be."""
        number, urls = split(self.ask("register_unit", name))
        output_url, inference_url = split(urls)
        return int(number), output_url, inference_url.decode()

    def publish(self, url):
        """A task's output."""
        output = self.socket(zmq.XPUB)
        output.bind(url)
        assert output.recv() == b"\1"
        return output

    def listen(self, url, at_most=1000):
        """Subscribe to all that is said there."""
        listener = self.socket(zmq.SUB)
        listener.set(zmq.RCVHWM, at_most)
        listener.subscribe(b"")
        listener.connect(url)
        return listener


class SpokenUnit:
    """A unit of a folder that does what the test says, and nothing of itself."""

    def __init__(self, caller, folder, name="echo"):
        self.name = name
        self.caller = caller
        self.rpc = caller.socket(zmq.REP)
        self.rpc.bind(f"ipc://{folder}/rpc.{name}")
        self.lines = {}

    def take(self, answer=b"None"):
        """An action that comes: its name, the URL for frames, the message."""
        action, payload = self.rpc.recv_multipart()
        self.rpc.send(answer)
        url, text = split(payload)
        return action.decode(), url, json.loads(text)

    def say(self, url, request_id, work_id, data="None", object="None", code=0):
        """One frame to a user."""
        if url not in self.lines:
            self.lines[url] = self.caller.socket(zmq.PUSH)
            self.lines[url].connect(url)
        error = {"code": code, "message": "no" if code else ""}
        frame = {"request_id": request_id, "work_id": work_id, "object": object, "data": data, "error": error}
        self.lines[url].send(json.dumps(frame).encode())

    def set_up(self, client, **data):
        """A task that a user has set up."""
        fields = {"model": "", "response_format": f"{self.name}.utf-8.stream", "input": [], "enoutput": True}
        client.send("setup", self.name, "setup", data=fields | data)
        _, url, _ = self.take()
        task = SpokenTask(self)
        self.say(url, "setup", task.work_id)
        reply = client.receive()
        assert (reply["work_id"], reply["error"]["code"]) == (task.work_id, 0)
        return task

    def act(self, client, action, work_id, request_id="act", **fields):
        """Have a user ask for an action, and answer it."""
        client.send(request_id, work_id, action, **fields)
        name, url, _ = self.take()
        assert name == action
        self.say(url, request_id, work_id)


class SpokenTask:
    """A task of such a unit."""

    def __init__(self, unit):
        self.unit = unit
        number, output_url, inference_url = unit.caller.register(unit.name)
        self.work_id = f"{unit.name}.{number}"
        self.output = unit.caller.publish(output_url)
        self.inferences = unit.caller.listen(inference_url)

    def asked(self):
        """The next inference: the URL for its answer."""
        return json.loads(self.inferences.recv())["zmq_com"]

    def part(self, url, request_id, index, text="", *, finish=False, **fields):
        """A part of a streamed answer."""
        data = {"delta": text, "finish": finish, "index": index}
        self.unit.say(url, request_id, self.work_id, data, f"{self.unit.name}.utf-8.stream", **fields)

    def die(self):
        """As when its process is killed."""
        self.output.close(0)
        self.inferences.close(0)
