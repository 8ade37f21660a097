"""Clients that vanish, a queue that is full, a fault in the engine, an engine that ends, readers that do not read."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from bad_days_parts import (
    REQUESTS,
    Answer,
    Client,
    SlowModel,
    ask,
    ask_json,
    bad_day,
    check_well,
    error_of,
    head,
    is_idle,
    metrics_of,
    num_connections,
    post,
    stream_error,
    wait_for,
)
from engine_parts import VOCAB_SIZE
from fake_native import FakeModel
from http_parts import serving

from trivium.config import EngineConfig
from trivium.doors.http import server as server_module
from trivium.doors.http.listener import Listener
from trivium.doors.http.protocol import HttpProtocol
from trivium.engine.native_engine import NativeEngine

PATHS = list(REQUESTS)
NUM_CLIENTS = 300
LIMITS = {
    "/infer": ("parameters", "max_new_tokens"),
    "/infer_token": ("parameters", "max_new_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/chat/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}


def request_to(path, *, stream=False, tokens=8):
    """The body of a request for so many tokens."""
    body = json.loads(json.dumps(REQUESTS[path]))
    place = body
    *outer, name = LIMITS[path]
    for key in outer:
        place = place[key]
    place[name] = tokens
    return body | ({"stream": True} if stream else {})


def vanish(port, chance):
    """One client that goes away at a random point of a random request, or stays to the end: which it was."""
    path, stream = chance.choice(PATHS), chance.random() < 0.5
    data = post(path, request_to(path, stream=stream, tokens=chance.choice((16, 60, 150))))
    point = chance.choice(("headers", "body", "waiting", "answer", "first byte", "nothing", "stays"))
    with Client(port, timeout=60) as client:
        body = data.index(b"\r\n\r\n") + 4
        ends = {"nothing": 0, "headers": chance.randrange(1, body), "body": chance.randrange(body, len(data))}
        client.send(data[: ends.get(point, len(data))])
        if point == "stays":
            assert client.answer().status == 200
            return point
        if point == "waiting":
            client.readable(chance.random() * 0.02)
        elif point == "answer":
            client.readable(30)
            client.socket.recv(chance.randrange(1, 2000))
        elif point == "first byte":
            client.socket.recv(1)
        if chance.random() < 0.7:
            client.vanish()
    return point


def vanishing_clients(server, count, seed):
    chances = [random.Random(f"{seed} {i}") for i in range(count)]
    with ThreadPoolExecutor(24) as pool:
        points = Counter(pool.map(lambda chance: vanish(server.port, chance), chances))
    assert len(points) == 7
    assert sum(points.values()) == count


def test_three_hundred_clients_that_vanish_at_random_points():
    native = SlowModel(512, 16, VOCAB_SIZE)
    with bad_day(native, num_blocks=512) as server:
        vanishing_clients(server, NUM_CLIENTS, seed=1)
        wait_for(lambda: is_idle(server), "the end of what nobody waits for")
        finished = server.engine.stats().finished
        assert finished.get("abort", 0) > 20
        assert not finished.get("error")


def test_clients_that_vanish_from_the_real_model(smollm2):
    config = EngineConfig(model=smollm2, served_model_name="fake", max_num_seqs=8, max_model_len=256, num_kv_blocks=48)
    with NativeEngine.load(config) as engine, serving(engine) as server:
        vanishing_clients(server, 60, seed=2)
        wait_for(lambda: is_idle(server), "the end of what nobody waits for")
        assert engine.stats().finished.get("abort", 0) > 3
        check_well(server)


def test_blocks_are_free_within_a_step_or_two_of_the_client_leaving():
    native = SlowModel(256, 16, VOCAB_SIZE)
    native.pause = 0.02
    with bad_day(native) as server:
        for stream in (False, True):
            for path in PATHS:
                client = Client(server.port).send(post(path, request_to(path, stream=stream, tokens=200)))
                steps = server.engine.stats().steps
                wait_for(lambda steps=steps: server.engine.stats().steps > steps + 2, "some steps")
                client.vanish()
                steps = server.engine.stats().steps
                wait_for(lambda: is_idle(server), "the end")
                assert server.engine.stats().steps <= steps + 3, (path, stream)
        assert server.engine.stats().finished == {"abort": 2 * len(PATHS)}


@pytest.mark.parametrize("path", ["/infer", "/v1/chat/completions"])
def test_a_thousand_requests_against_a_small_queue(path):
    native = SlowModel(256, 16, VOCAB_SIZE)
    native.pause = 0.0005
    with bad_day(native, max_waiting=4, max_num_seqs=4) as server:
        body = post(path, request_to(path, tokens=4))
        stream = post(path, request_to(path, stream=True, tokens=4))

        def ask_all(thread):
            answers = []
            with Client(server.port, timeout=60) as client:
                for i in range(50):
                    answers.append(client.send(body if (i + thread) % 2 else stream).answer())
            return answers

        with ThreadPoolExecutor(20) as pool:
            answers = [answer for some in pool.map(ask_all, range(20)) for answer in some]
        statuses = Counter(answer.status for answer in answers)
        assert sum(statuses.values()) == 1000
        assert set(statuses) == {200, 429}
        for answer in answers:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                error_of(path, answer)
        wait_for(lambda: is_idle(server), "the end")
        stats = server.engine.stats()
        assert stats.finished == {"length": statuses[200]}
        assert stats.rejected == statuses[429]
        metrics = metrics_of(server)
        assert metrics['trivium:requests_rejected_total{model_name="fake",reason="queue_full"}'] == statuses[429]
        assert metrics['trivium:request_success_total{finished_reason="length",model_name="fake"}'] == statuses[200]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_fault_in_the_step_ends_its_requests_with_an_error_and_no_others(path, stream):
    native = FakeModel(256, 16, VOCAB_SIZE)
    with bad_day(native) as server:
        native.gate.clear()
        native.entered.clear()
        with Client(server.port) as client:
            client.send(post(path, request_to(path, stream=stream)))
            wait_for(native.entered.is_set, "the first step")
            native.fault = RuntimeError("the sky fell")
            native.gate.set()
            answer = client.answer()
            if stream and answer.status == 200:
                message = stream_error(path, answer)
            else:
                assert answer.status == 500
                message = error_of(path, answer)
            assert message
            # On the same connection the next is answered as if nothing had been.
            answer = client.send(post(path, request_to(path, stream=stream))).answer()
            assert answer.status == 200
            assert b"error" not in answer.body.replace(b'"error":null', b"").replace(b'"error": null', b"")
        assert server.engine.stats().finished["error"] == 1


def test_a_fault_spares_those_who_wait():
    native = FakeModel(256, 16, VOCAB_SIZE)
    with bad_day(native, max_num_seqs=1) as server, Client(server.port) as first, Client(server.port) as second:
        native.gate.clear()
        native.entered.clear()
        first.send(post("/infer", request_to("/infer")))
        wait_for(native.entered.is_set, "the first step")
        second.send(post("/infer", request_to("/infer")))
        wait_for(lambda: server.engine.stats().waiting == 1, "the wait")
        native.fault = RuntimeError("the sky fell")
        native.gate.set()
        assert first.answer().status == 500
        assert second.answer().status == 200


def test_a_fault_in_the_middle_of_streams():
    native = FakeModel(256, 16, VOCAB_SIZE)
    with bad_day(native) as server:
        for path in PATHS:
            native.gate.clear()
            native.entered.clear()
            with Client(server.port) as client:
                client.send(post(path, request_to(path, stream=True, tokens=100)))
                wait_for(native.entered.is_set, "the first step")
                calls = len(native.calls)
                FaultLater(native, calls + 3)
                native.gate.set()
                answer = client.answer()
                assert answer.status == 200
                assert stream_error(path, answer)
        assert server.engine.stats().finished["error"] == len(PATHS)


class FaultLater(list):
    """A list of a model's calls that has it fail with the step after so many."""

    def __init__(self, native, count):
        super().__init__(native.calls)
        self.native, self.count = native, count
        native.calls = self

    def append(self, call):
        super().append(call)
        if len(self) == self.count:
            self.native.fault = RuntimeError("the sky fell")


def test_an_engine_that_is_shut_down_under_load_ends_every_request_once():
    native = SlowModel(512, 16, VOCAB_SIZE)
    native.pause = 0.01
    with bad_day(native, num_blocks=512, check=False) as server:
        answers: list[tuple[str, bool, Answer]] = []

        def ask_one(i):
            path, stream = PATHS[i % 6], i % 4 < 2
            answers.append((path, stream, ask_json(server, path, request_to(path, stream=stream, tokens=150))))

        threads = [threading.Thread(target=ask_one, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        wait_for(lambda: server.engine.stats().steps > 5, "some steps")
        server.engine.shutdown()
        for thread in threads:
            thread.join(20)
        assert len(answers) == 24
        for path, stream, answer in answers:
            if stream and answer.status == 200:
                assert stream_error(path, answer)
            else:
                assert answer.status == 503
                assert error_of(path, answer)
        # The server itself lives on.
        assert ask(server, head("/version", method="GET")).status == 200
        for path in PATHS:
            answer = ask_json(server, path, request_to(path))
            assert answer.status == 503
            assert "retry-after" in answer.headers
            error_of(path, answer)
        assert is_idle(server)


@pytest.fixture
def small_buffers(monkeypatch):
    """Little fits between a server and a reader that does not read."""
    monkeypatch.setattr(Listener, "send_bytes", 4096)
    monkeypatch.setattr(Listener, "tick_seconds", 0.1)


@contextmanager
def unread_streams(server, count):
    """Clients that ask for streams and do not read them."""
    fat = {"prompt": "hello", "logprobs": 20, "stream": True, "max_tokens": 200}
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port, receive_buffer=4096)) for _ in range(count)]
        for client in clients:
            client.send(post("/v1/completions", fat))
        yield


def test_a_hundred_streams_that_nobody_reads_are_cut(monkeypatch, small_buffers):
    """Whether their answers are complete or not; until then others are served."""
    monkeypatch.setattr(HttpProtocol, "stall_seconds", 0.5)
    with bad_day(num_blocks=512, max_num_seqs=32) as server, unread_streams(server, 100):
        assert ask_json(server, "/infer", request_to("/infer")).status == 200
        wait_for(lambda: not num_connections(server), "the end of what nobody reads", seconds=30)
        wait_for(lambda: is_idle(server), "the end of all requests")


def test_what_piles_up_for_a_reader_is_bounded(monkeypatch, small_buffers):
    """The engine is told to stop long before the reader is given up."""
    monkeypatch.setattr(server_module, "MAX_PENDING_DELTAS", 50)
    native = SlowModel(512, 16, VOCAB_SIZE)
    with bad_day(native, num_blocks=512, max_num_seqs=32) as server, unread_streams(server, 30):
        wait_for(lambda: server.engine.stats().finished, "the first end")
        wait_for(lambda: is_idle(server), "the end of what piles up")
        assert server.engine.stats().finished == {"abort": 30}


def test_loud_clients_do_not_starve_a_quiet_one():
    """Garbage from many connections at once, while a real request is under way."""
    native = SlowModel(256, 16, VOCAB_SIZE)
    with bad_day(native) as server:
        stop = threading.Event()

        def shout(seed):
            chance = random.Random(seed)
            while not stop.is_set():
                with Client(server.port) as client:
                    try:
                        client.send(chance.randbytes(2000) if chance.random() < 0.5 else post("/infer", chance.randbytes(2000)))
                        client.answer()
                    except ConnectionError:
                        pass

        threads = [threading.Thread(target=shout, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                answer = ask_json(server, "/infer", request_to("/infer", tokens=50))
                assert answer.status == 200
        finally:
            stop.set()
            for thread in threads:
                thread.join()
