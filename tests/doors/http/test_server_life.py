"""From the first socket to the last: loading, serving, draining, and what is left behind."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

import pytest
from bad_days_parts import Client, SlowModel, ask, error_of, head, is_idle, post, stream_error, wait_for
from engine_parts import VOCAB_SIZE, make_engine
from http_parts import RunningServer, ServerThread, can_connect, serving

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.server import StoppedError
from trivium.doors.sockets import bind
from trivium.errors import ConfigError, ModelLoadError

INFER = {"inputs": "hello", "parameters": {"max_new_tokens": 8}}
STREAM = {**INFER, "stream": True}


@pytest.fixture
def engine():
    with make_engine() as running:
        yield running


def get(port, path):
    with Client(port) as client:
        return client.send(head(path, method="GET")).answer()


class TestListening:
    def test_a_port_in_use_is_told_before_anything_is_loaded(self, engine):
        loads = []
        with serving(engine) as server:
            other = ServerThread(lambda: loads.append(1), port=server.port)
            other.join()
            assert isinstance(other.failure, ConfigError)
            assert str(other.failure) == (
                f"cannot listen on 127.0.0.1, port {server.port}: Address already in use; --port chooses another"
            )
            assert get(server.port, "/health").status == 200
        assert not loads

    def test_a_management_port_in_use_frees_the_other(self, engine):
        with serving(engine) as server:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            other = ServerThread(lambda: engine, port=port, management_port=server.port)
            other.join()
            assert isinstance(other.failure, ConfigError)
            assert "--management-port chooses another" in str(other.failure)
            assert not can_connect(port)

    @pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 70, "-"])
    def test_a_host_that_is_not_here(self, host):
        with pytest.raises(ConfigError, match="host must be an address"):
            bind(host, 0)

    def test_localhost_is_all_its_addresses_on_one_port(self, engine):
        with serving(engine, host="localhost") as server:
            addresses = {info[4][0] for info in socket.getaddrinfo("localhost", server.port, type=socket.SOCK_STREAM)}
            assert any(can_connect(server.port, address) for address in addresses)
            assert server.server.urls[0].startswith("http://")
            assert all(url.endswith(f":{server.port}") for url in server.server.urls)

    def test_ipv6(self, engine):
        with serving(engine, host="::1") as server:
            assert server.server.urls == [f"http://[::1]:{server.port}"]
            assert can_connect(server.port, "::1")
            assert not can_connect(server.port, "127.0.0.1")

    def test_every_address_of_both_kinds(self, engine):
        with serving(engine, host="::") as server:
            assert can_connect(server.port, "::1")
            assert can_connect(server.port, "127.0.0.1")

    def test_addresses_are_logged(self, engine, caplog):
        caplog.set_level("INFO", "trivium.http")
        with serving(engine, management_port=0) as server:
            lines = [record.getMessage() for record in caplog.records]
            assert f"http: http://127.0.0.1:{server.port}" in lines
            assert f"management: http://127.0.0.1:{server.management_port}" in lines
            assert not [line for line in lines if "whoever" in line]

    @pytest.mark.parametrize(("options", "warned"), [({}, True), ({"api_key": ["k"]}, False)])
    def test_a_door_open_to_everyone_is_warned_of(self, engine, caplog, options, warned):
        with serving(engine, host="0.0.0.0", **options):
            lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert bool([line for line in lines if line.startswith("whoever reaches http://0.0.0.0:")]) == warned


class TestLoading:
    def test_it_answers_while_it_loads(self, engine):
        gate = threading.Event()

        def load():
            gate.wait(30)
            return engine

        thread = ServerThread(load)
        port = thread.wait_listening()
        assert get(port, "/health").json() == {"status": "loading"}
        ready = get(port, "/ready")
        assert (ready.status, ready.json(), ready.headers["retry-after"]) == (503, {"status": "loading"}, "1")
        for path in ("/infer", "/v1/messages", "/v1/completions"):
            with Client(port) as client:
                answer = client.send(post(path, INFER)).answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert error_of(path, answer) == "the model is being loaded; GET /ready tells when it is there"
        assert not thread.ready.is_set()
        gate.set()
        assert thread.ready.wait(30)
        assert get(port, "/ready").json() == {"status": "ready"}
        assert ask(RunningServer(thread.server, engine), post("/infer", INFER)).status == 200
        thread.server.stop()
        thread.join()
        assert thread.failure is None

    def test_a_failure_ends_the_server_with_it(self):
        gate = threading.Event()

        def load():
            gate.wait(30)
            raise ModelLoadError("the file is damaged")

        thread = ServerThread(load)
        port = thread.wait_listening()
        with Client(port) as client:
            client.send(head("/health", method="GET")).answer()
            gate.set()
            assert client.closed()
        thread.join()
        assert isinstance(thread.failure, ModelLoadError)
        assert not can_connect(port)

    def test_loading_can_be_given_up(self):
        given_up, made = [], threading.Event()

        def load():
            made.wait(30)  # the server may ask before its thread has a name here
            try:
                while True:
                    thread.server.check_running()
                    time.sleep(0.005)
            except StoppedError:
                given_up.append(True)
                raise

        thread = ServerThread(load)
        made.set()
        port = thread.wait_listening()
        get(port, "/health")
        thread.server.stop()
        thread.join()
        assert (thread.failure, given_up, thread.ready.is_set()) == (None, [True], True)
        assert not can_connect(port)

    def test_a_load_that_cannot_be_given_up_is_waited_for(self, engine):
        gate, entered = threading.Event(), threading.Event()

        def load():
            entered.set()
            gate.wait(30)
            return engine

        thread = ServerThread(load)
        assert entered.wait(30)
        thread.server.stop()
        gate.set()
        thread.join()
        assert thread.failure is None


class TestDraining:
    def test_running_work_finishes_and_new_work_is_refused(self, engine):
        with serving(engine, management_port=0) as server, Client(server.port) as running, Client(server.port) as idle:
            idle.send(post("/infer", INFER)).answer()
            engine.native.gate.clear()
            running.send(post("/infer", STREAM))
            wait_for(lambda: engine.stats().running, "the request's start")
            server.server.stop()
            wait_for(lambda: server.server.door.draining, "the drain")
            for path in ("/infer", "/v1/messages", "/v1/completions"):
                answer = ask(server, post(path, INFER))
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert error_of(path, answer) == "the server is shutting down and takes no new requests"
            assert idle.send(post("/infer", INFER)).answer().status == 503
            assert get(server.management_port, "/ready").json() == {"status": "draining"}
            assert get(server.management_port, "/health").status == 200
            engine.native.gate.set()
            answer = running.answer()
            assert len(answer.events) == 8
            assert json.loads(answer.events[-1])["generated_text"]
            assert running.closed()
            assert idle.closed()
            wait_for(lambda: not can_connect(server.port), "the end of listening")
            assert not can_connect(server.management_port)

    def test_what_has_not_finished_in_time_is_aborted_and_told_so(self, engine):
        with serving(engine, shutdown_timeout=0.1) as server, Client(server.port) as stream, Client(server.port) as text:
            engine.native.gate.clear()
            stream.send(post("/infer", STREAM))
            text.send(post("/infer", INFER))
            wait_for(lambda: engine.stats().running + engine.stats().waiting == 2, "the requests' start")
            server.server.stop()
            wait_for(lambda: server.server.door.draining, "the drain")
            time.sleep(0.2)
            engine.native.gate.set()
            assert stream_error("/infer", stream.answer()) == "the answer was ended: the server is shutting down"
            answer = text.answer()
            assert answer.status == 503
            assert error_of("/infer", answer) == "the answer was ended: the server is shutting down"

    def test_no_time_at_all(self):
        body = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 250}}  # half a second of steps
        with (
            make_engine(SlowModel(64, 16, VOCAB_SIZE)) as engine,
            serving(engine, shutdown_timeout=0) as server,
            Client(server.port) as client,
        ):
            client.send(post("/infer", body))
            wait_for(lambda: engine.stats().running, "the request's start")
            server.server.stop()
            stream_error("/infer", client.answer())

    def test_connections_that_say_nothing_do_not_hold_it_up(self, engine, monkeypatch):
        monkeypatch.setattr("trivium.doors.http.server._FLUSH_SECONDS", 0.2)
        start = time.monotonic()
        with serving(engine) as server:
            clients = [Client(server.port) for _ in range(4)]
            clients[1].send(b"POST /inf")
            clients[2].send(head("/infer", "Content-Length: 5"))
            clients[3].send(post("/infer", INFER)).answer()
            wait_for(lambda: server.server._listeners[0].num_connections == 4, "the connections")
            server.server.stop(0)
            for client in clients:
                assert client.closed()
                client.__exit__()
        assert time.monotonic() - start < 8

    def test_a_client_that_reads_nothing_does_not_hold_it_up(self, engine, monkeypatch):
        monkeypatch.setattr("trivium.doors.http.server._FLUSH_SECONDS", 0.2)
        body = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 250}}
        with serving(engine) as server:
            for sock in server.server._listeners[0]._sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            client = Client(server.port, receive_buffer=4096)
            client.send(post("/infer", body) * 9)
            assert client.readable(10)
            server.server.stop(0.2)
            wait_for(lambda: not can_connect(server.port), "the end of listening")
        client.__exit__()

    def test_the_first_stop_counts(self, engine):
        with serving(engine, shutdown_timeout=0.1) as server, Client(server.port) as client:
            engine.native.gate.clear()
            client.send(post("/infer", INFER))
            wait_for(lambda: engine.stats().running, "the request's start")
            server.server.stop()
            server.server.stop(1000)
            time.sleep(0.2)
            engine.native.gate.set()
            assert client.answer().status == 503

    def test_stop_before_and_after_the_run(self, engine):
        with serving(engine) as server:
            pass
        server.server.stop()

    def test_nothing_is_left(self, engine):
        before = set(threading.enumerate())  # some of these, of tests before, may end meanwhile
        interval = sys.getswitchinterval()
        with serving(engine, management_port=0) as server:
            assert sys.getswitchinterval() < interval
            with Client(server.port) as client:
                assert client.send(post("/infer", INFER)).answer().status == 200
        assert sys.getswitchinterval() == interval
        assert set(threading.enumerate()) <= before
        assert not can_connect(server.port)
        assert not can_connect(server.management_port)
        with serving(engine, port=server.port) as again:  # at once, whatever waits in the system's lists
            assert get(again.port, "/health").status == 200


def test_a_reader_far_behind_ends_its_request(monkeypatch, caplog):
    monkeypatch.setattr("trivium.doors.http.server.MAX_PENDING_DELTAS", 20)
    monkeypatch.setattr(SlowModel, "pause", 0.001)
    body = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 250}}
    with make_engine(SlowModel(64, 16, VOCAB_SIZE)) as engine, serving(engine, infer_full_text=True) as server:
        for sock in server.server._listeners[0]._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with Client(server.port, receive_buffer=4096) as client:
            client.send(post("/infer", body) * 9)
            wait_for(lambda: engine.stats().finished.get("abort"), "the abort")
            wait_for(lambda: is_idle(server), "the end")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_management_port_may_have_an_address_of_its_own(engine):
    with serving(engine, management_host="127.0.0.2", management_port=0) as server:
        with socket.create_connection(("127.0.0.2", server.management_port), timeout=5) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.2\r\nConnection: close\r\n\r\n")
            assert b" 200 OK" in connection.recv(65536)
        assert not can_connect(server.management_port)
    with pytest.raises(ConfigError, match="management_port must be given with management_host"):
        ServerConfig(management_host="127.0.0.2")
    assert ServerConfig(management_host="127.0.0.2", management_port=8000).management_port == 8000
    with pytest.raises(ConfigError, match="management_port must be another than port"):
        ServerConfig(management_port=8000)
