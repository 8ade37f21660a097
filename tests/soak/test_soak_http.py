"""Thousands of http requests, good and bad, whole and cut off, and what is left of them: nothing."""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct

import pytest
from soak_parts import SECONDS, WORDS, Server, assert_flat, in_threads

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

CLIENTS = 6


class Caller:
    """A client that keeps its connection, until it cuts it off in the middle of an answer."""

    def __init__(self, port, random):
        self.port = port
        self.random = random
        self.num_asked = 0
        self.connect()

    def connect(self):
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def text(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 8)))

    def send(self, path, body, method="POST"):
        self.num_asked += 1
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, data, {"Content-Type": "application/json"})
        return self.connection.getresponse()

    def ask(self, path, body, status=200):
        """The text of the answer."""
        response = self.send(path, body)
        text = response.read().decode()
        assert response.status == status, (path, body, text)
        return text

    def length(self):
        return self.random.randint(4, 8)

    def infer(self, **fields):
        return {"inputs": self.text(), "parameters": {"max_new_tokens": self.length()}, **fields}

    def chat(self, **fields):
        messages = [{"role": "user", "content": self.text()}]
        return {"model": "smollm2", "messages": messages, "max_tokens": self.length(), **fields}

    # What it does

    def infer_whole(self):
        assert isinstance(json.loads(self.ask("/infer", self.infer()))["generated_text"], (str, list))

    def infer_stream(self):
        text = self.ask("/infer", self.infer(stream=True))
        assert text.count("data:") >= 1

    def chat_whole(self):
        n = self.random.choice([1, 1, 2])
        answer = json.loads(self.ask("/v1/chat/completions", self.chat(n=n, seed=self.random.getrandbits(32))))
        assert len(answer["choices"]) == n

    def chat_stream(self):
        assert self.ask("/v1/chat/completions", self.chat(stream=True)).endswith("data: [DONE]\n\n")

    def complete(self):
        body = {"model": "smollm2", "prompt": self.text(), "max_tokens": self.length(), "logprobs": 2, "stop": ["."]}
        assert json.loads(self.ask("/v1/completions", body))["choices"]

    def cut_off(self):
        """In a stream, or while the whole answer is waited for; with an end, or a reset."""
        stream = self.random.random() < 0.7
        body = self.chat(stream=stream, max_tokens=100)
        if stream:
            response = self.send("/v1/chat/completions", body)
            response.readline()
        else:
            self.num_asked += 1
            self.connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        if self.random.random() < 0.5:
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if stream:
            response.close()
        self.connection.close()
        self.connect()

    def mistakes(self):
        """Names and routes that never come twice must not be kept, either."""
        name = f"x{self.random.getrandbits(64):x}"
        self.ask("/infer", b'{"inputs": ', 422)
        self.ask("/infer", self.infer(parameters={"temperature": -1}), 422)
        self.ask("/infer", self.infer(inputs="stone " * 600), 424)
        self.ask("/infer", self.infer(**{name: 1}))
        self.ask("/v1/chat/completions", self.chat(max_tokens=0), 400)
        self.ask("/v1/chat/completions", self.chat(model=name), 404)
        self.ask("/v1/chat/completions", self.chat(**{name: 1}, user=name))
        self.ask(f"/{name}", {}, 404)

    def questions(self):
        for path in ("/metrics", "/health", "/v1/models", "/"):
            response = self.send(path, b"", "GET")
            assert response.read()
            assert response.status == 200

    MIX = (
        (infer_whole, 25),
        (infer_stream, 25),
        (chat_whole, 15),
        (chat_stream, 15),
        (complete, 10),
        (cut_off, 10),
        (mistakes, 2),
        (questions, 1),
    )

    def run(self, count):
        """`count` requests, at least."""
        actions, weights = zip(*self.MIX, strict=True)
        while self.num_asked < count:
            self.random.choices(actions, weights)[0](self)


def load(server, number, count):
    """A round: clients together ask `count` times."""

    def use(i):
        caller = Caller(server.port, random.Random(f"{number}-{i}"))
        try:
            caller.run(count // CLIENTS)
        finally:
            caller.connection.close()
        return caller.num_asked

    return sum(in_threads(use, CLIENTS))


def test_memory_stays_flat_under_http(smollm2, is_short):
    """A kilobyte that each request left behind would be 5.6 MB between the first and the last rounds of the long form."""
    rounds, count = (6, 120) if is_short else (10, 800)
    with Server(smollm2, "--served-model-name", "smollm2") as server:
        server.warm_up()
        load(server, 0, count)
        footprints, total = [], 0
        for number in range(1, rounds + 1):
            total += load(server, number, count)
            footprints.append(server.settled())
        print(f"{total} requests")
        assert_flat(footprints, kib=4000, objects=200)
