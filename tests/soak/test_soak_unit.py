"""Thousands of inferences through the unit door, and what is left of them: nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import struct

import pytest
from soak_parts import SECONDS, WORDS, Server, assert_flat, in_threads
from unit_parts import Client

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

DEVICES = 6  # of the eight tasks that there may be: an exit and the next setup may overlap
QUEUE = 8
BURST = QUEUE + 3


class Device:
    """A client with one task. It keeps its connection until it hangs up, and its task over that."""

    def __init__(self, port, random):
        self.port = port
        self.random = random
        self.num_asked = 0  # inferences
        self.client = None
        self.task = None
        self.connect()

    def connect(self):
        self.client = Client(self.port, SECONDS)
        self.ended = set()  # request ids whose last frame has come
        self.next = {}  # index of the next frame of each

    def close(self):
        self.client.close()

    def hang_up(self):
        if self.random.random() < 0.5:  # a reset, not an end
            self.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
        self.connect()

    def text(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 8)))

    def set_up(self, model="smollm2", **data):
        self.streams = self.random.random() < 0.6
        fields = {
            "model": model,
            "response_format": "llm.utf-8.stream" if self.streams else "llm.utf-8",
            "input": self.random.choice(["llm.utf-8", ["llm.utf-8.stream", "asr.1"]]),
            "enoutput": True,
            "prompt": self.random.choice(["", "You answer briefly."]),
            "max_token_len": self.random.randint(4, 8),
            "context": self.random.random() < 0.15,
        }
        reply = self.ask("llm", "setup", data=fields | data)
        assert reply["error"]["code"] == 0, reply
        self.task = reply["work_id"]

    def exit(self):
        assert self.ask(self.task, "exit")["error"]["code"] == 0

    def new_id(self):
        return f"{self.random.getrandbits(64):x}"

    def ask(self, work_id, action, **fields):
        """The reply to a command; the frames of answers that come before it are taken, too."""
        request_id = self.new_id()
        self.client.send(request_id, work_id, action, **fields)
        while (frame := self.frame())["request_id"] != request_id:
            pass
        return frame

    def infer(self, text=None, kind=None):
        """Send an inference in one of its forms; its request_id."""
        self.num_asked += 1
        request_id, text = self.new_id(), self.text() if text is None else text
        kind = kind or self.random.choice(["llm.utf-8", "llm.utf-8.stream", "chunks", "llm.base64"])
        if kind == "chunks":
            kind, chunks = "llm.utf-8.stream", [text[:1], text[1:4], text[4:]]
            for index in (1, 0):
                data = {"delta": chunks[index], "index": index, "finish": False}
                self.client.send(request_id, self.task, "inference", object=kind, data=data)
            data = {"delta": chunks[2], "index": 2, "finish": True}
        elif kind == "llm.utf-8.stream":
            data = {"delta": text, "index": 0, "finish": True}
        else:
            data = base64.b64encode(text.encode()).decode() if kind == "llm.base64" else text
        self.client.send(request_id, self.task, "inference", object=kind, data=data)
        return request_id

    def frame(self):
        """The next frame; those of an answer must be numbered, and nothing may follow its last."""
        frame = json.loads(self.client.line())
        request_id, data = frame["request_id"], frame["data"]
        if not frame["object"].startswith("llm.utf-8"):
            return frame
        assert request_id not in self.ended, frame
        if isinstance(data, dict):
            assert data["index"] == self.next.setdefault(request_id, data["index"])
            self.next[request_id] += 1
        if not isinstance(data, dict) or data["finish"]:
            self.ended.add(request_id)
        return frame

    def wait(self, *request_ids):
        """Until these answers have ended; the error codes of their last frames, which must be the only ones with an error."""
        codes = dict.fromkeys(request_ids)
        while not self.ended.issuperset(request_ids):
            frame = self.frame()
            if frame["request_id"] in codes:
                codes[frame["request_id"]] = frame["error"]["code"]
        self.ended.clear()
        self.next.clear()
        return [codes[request_id] for request_id in request_ids]

    # What it does

    def answer(self):
        assert self.wait(self.infer()) == [0]

    def pause(self):
        request_id = self.infer()
        assert self.ask(self.task, "pause")["error"]["code"] == 0
        if request_id not in self.ended:
            assert self.wait(request_id) == [0]

    def pause_from_elsewhere(self):
        """The last frame goes to the other connection; the next answer comes here."""
        self.infer()
        with Client(self.port, SECONDS) as other:
            other.send("p", self.task, "pause")
            other.line()
        assert self.wait(self.infer()) == [0]

    def disconnect(self):
        for _ in range(self.random.randint(1, 3)):
            self.infer()
        if self.random.random() < 0.5:
            self.client.line()
        self.hang_up()
        # Those that still wait come here; the task's queue is theirs first.
        self.ask(self.task, "taskinfo")
        assert self.wait(self.infer()) == [0]

    def burst(self):
        codes = self.wait(*(self.infer() for _ in range(BURST)))
        assert set(codes) <= {0, -13}, codes
        assert codes[: QUEUE + 1] == [0] * (QUEUE + 1)

    def set_up_anew(self):
        if self.random.random() < 0.5:
            self.infer()  # which the exit ends
        self.exit()
        self.set_up()

    def forget(self):
        assert self.wait(self.infer("reset")) == [0]

    def mistakes(self):
        assert self.wait(self.infer("stone " * 600)) == [-11]
        assert self.wait(self.bad("llm.base64", "?")) == [-23]
        assert self.wait(self.bad("llm.utf-8.stream", {"delta": "", "index": 1, "finish": True})) == [-25]
        assert self.ask("llm.1", "inference", object="llm.utf-8", data="x")["error"]["code"] == -4
        assert self.ask("llm", "setup", data={"model": "none"})["error"]["code"] == -5
        assert self.ask(self.task, "link", data="asr.1")["error"]["code"] == -20
        assert self.ask("sys", "bashexec", data="ls")["error"]["code"] == -3
        for data, code in ((b"}", -1), (b'{"request_id":1}', -2)):
            self.client.send_bytes(data)
            while (frame := self.frame())["request_id"] != "0":
                pass
            assert frame["error"]["code"] == code

    def bad(self, kind, data):
        request_id = self.new_id()
        self.client.send(request_id, self.task, "inference", object=kind, data=data)
        return request_id

    def questions(self):
        assert self.ask(self.task, "taskinfo")["data"]["enoutput"] is True
        for action in ("ping", "version", "lsmode", "cmminfo", "hwinfo"):
            assert self.ask("sys", action)["error"]["code"] == 0

    MIX = (
        (answer, 60),
        (pause, 10),
        (pause_from_elsewhere, 4),
        (disconnect, 6),
        (burst, 2),
        (set_up_anew, 6),
        (forget, 4),
        (mistakes, 4),
        (questions, 4),
    )

    def run(self, count):
        """`count` inferences, at least."""
        self.set_up()
        actions, weights = zip(*self.MIX, strict=True)
        while self.num_asked < count:
            self.random.choices(actions, weights)[0](self)


def load(server, number, count):
    """A round: devices together ask `count` times. Tasks end one by one, or by a reset."""

    def use(i):
        with contextlib.closing(Device(server.unit_port, random.Random(f"{number}-{i}"))) as device:
            device.run(count // DEVICES)
            if number % 2:
                device.exit()
        return device.num_asked

    asked = in_threads(use, DEVICES)
    with Client(server.unit_port, SECONDS) as client:
        client.ask("r", "sys", "reset")
        assert client.ask("t", "llm", "taskinfo")["data"] == []
    return sum(asked)


def test_memory_stays_flat(smollm2, is_short):
    """A kilobyte that each inference left behind would be 7 MB between the first and the last rounds of the long form."""
    rounds, count = (6, 120) if is_short else (10, 1000)
    with Server(smollm2, "--served-model-name", "smollm2", "--unit-queue", QUEUE) as server:
        server.warm_up()
        load(server, 0, count)
        footprints, total = [], 0
        for number in range(1, rounds + 1):
            total += load(server, number, count)
            footprints.append(server.settled())
        print(f"{total} inferences")
        assert_flat(footprints, kib=4000, objects=200)


def test_models_come_and_go(smollm2, is_short, tmp_path):
    """A model that is not its server's own is freed with its last task, down to a tenth of what it takes."""
    second = tmp_path / "second.gguf"
    second.symlink_to(smollm2)
    with Server(smollm2, "--served-model-name", "smollm2", "--unit-models", f"second={second}") as server:
        server.warm_up()
        footprints = []
        for number in range(6 if is_short else 30):
            with contextlib.closing(Device(server.unit_port, random.Random(number))) as device:
                device.set_up(model="second")
                for _ in range(3):
                    device.answer()
                device.exit()
            footprints.append(server.settled())
        assert_flat(footprints[2:], kib=15000, objects=200)
