"""Clients that behave badly, and many of them."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from engine_parts import make_engine
from fake_native import continuation
from unit_parts import Client, blocks, serving_unit, wait_until

from trivium.doors.unit import framer, tcp
from trivium.doors.unit import input as unit_input
from trivium.errors import ConfigError


@pytest.fixture(scope="module")
def engine():
    with make_engine() as engine:
        yield engine


@pytest.fixture
def door(engine):
    with serving_unit(engine) as door:
        yield door


def letters(prompt, count):
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def test_a_frame_is_a_packet(door):
    with door.client() as client:
        wait_until(lambda: door.server.num_connections == 1)
        (connection,) = door.call(lambda: list(door.server._tcp.connections))
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.ask()
    wait_until(lambda: door.server.num_connections == 0)


def test_an_object_that_never_ends(door, caplog, monkeypatch):
    monkeypatch.setattr(framer, "RESET_SECONDS", 0.1)
    with door.client() as client, door.client() as other, caplog.at_level(logging.WARNING, "trivium.unit"):
        for start in (b'{"request_id":"', b'{"a":', b"{" * 30, b'{"a":[' + b'{"a":"b"},' * 50):
            client.send_bytes(start + b" " * (10 * 2**20))
            assert client.receive()["error"]["code"] == -2
            assert other.ask()["error"]["code"] == 0
            pending = door.call(lambda: door.server._tcp._num_pending)
            assert pending <= framer.MAX_MESSAGE_BYTES
            client.send_bytes(b'"}' + b"}" * 70)
            while client.receive()["error"]["code"] != -1:
                pass
            client.ask("good")
            client.buffer = b""


def test_nothing_in_an_object_that_is_too_large_is_done(door):
    with door.client() as client:
        task = client.set_up()
        evil = {"request_id": "evil", "work_id": "sys", "action": "reset"}
        large = {"data": ["x" * (4 * 2**20), evil, "}" + json.dumps(evil), evil]}
        client.send_bytes(json.dumps(large).encode())
        client.send("next", "llm", "taskinfo")
        assert client.receive()["error"]["code"] == -2
        reply = client.receive()
        assert (reply["request_id"], reply["data"]) == ("next", [task])
        client.ask("e", task, "exit")


def test_streamed_input_that_does_not_go_on_is_given_up(door, monkeypatch):
    with door.client() as client:
        task = client.set_up(temperature=0)
        monkeypatch.setattr(unit_input, "QUIET_SECONDS", 0.1)
        client.send("late", task, "inference", object="llm.stream", data={"delta": "hello", "index": 0, "finish": False})
        reply = client.receive()
        assert (reply["request_id"], reply["work_id"], reply["error"]["code"]) == ("late", task, -25)
        assert reply["data"] == {"delta": "", "finish": True, "index": 0}
        client.infer(task, "hello", "next")
        assert client.answer()[0] == letters("hello", 127)
        client.ask("e", task, "exit")


def test_a_client_that_is_not_read_from_is_not_taken_for_silent(door, monkeypatch):
    monkeypatch.setattr(framer, "QUIET_SECONDS", 0.0)
    with door.client() as client:
        client.ask()
        (connection,) = door.call(lambda: list(door.server._tcp.connections))
        door.call(connection.pause_writing)
        door.call(lambda: connection.receiver.feed(b'{"request_id":"1","work_id":'))
        door.call(lambda: door.server._tcp.expire(time.monotonic()))
        door.call(lambda: connection.receiver.feed(b'"sys","action":"ping"}'))
        door.call(connection.resume_writing)
        assert client.receive()["error"]["code"] == 0


def test_unfinished_messages_of_all_clients_have_a_limit(door, monkeypatch):
    monkeypatch.setattr(tcp, "MAX_PENDING_BYTES", 2**20)
    with door.client() as good:
        clients = [door.client() for _ in range(20)]
        for client in clients:
            with contextlib.suppress(OSError):  # cut off before it was done
                client.send_bytes(b'{"a":"' + b"x" * 200_000)
        wait_until(lambda: door.call(lambda: door.server._tcp._num_pending) <= 2**20 and door.server.num_connections < 21)
        assert good.ask()["error"]["code"] == 0
        for client in clients:
            client.close()
        wait_until(lambda: door.server.num_connections == 1)
        assert door.call(lambda: door.server._tcp._num_pending) == 0


def test_who_has_sent_most_of_unfinished_messages_is_cut_off(door, monkeypatch):
    monkeypatch.setattr(tcp, "MAX_PENDING_BYTES", 2**20)
    with door.client() as hog, door.client() as good:
        hog.send_bytes(b'{"a":"' + b"x" * 900_000)
        wait_until(lambda: door.call(lambda: door.server._tcp._num_pending) >= 900_000)
        good.send_bytes(b'{"a":"' + b"x" * 200_000)
        wait_until(lambda: door.server.num_connections == 1)
        good.send_bytes(b'","request_id":"1","work_id":"sys","action":"ping"}')
        assert good.receive()["error"]["code"] == 0
        assert door.call(lambda: door.server._tcp._num_pending) == 0


def test_a_client_whose_message_shrinks_is_not_cut_off(door, monkeypatch):
    with door.client() as first, door.client() as second:
        for client in (first, second):
            client.send_bytes(b'{"a":"' + b"x" * 200_000)
        wait_until(lambda: door.call(lambda: door.server._tcp._num_pending) >= 400_000)
        monkeypatch.setattr(tcp, "MAX_PENDING_BYTES", 100_000)
        for client in (first, second):
            client.send_bytes(b'","request_id":"1","work_id":"sys","action":"ping"}')
            assert client.receive()["error"]["code"] == 0
        assert first.ask()["error"]["code"] == second.ask()["error"]["code"] == 0


def test_the_bytes_of_who_is_cut_off_count_no_more(monkeypatch):
    monkeypatch.setattr(tcp, "MAX_PENDING_BYTES", 1000)
    listener = tcp.TcpListener(None)
    connections = [tcp.TcpConnection(listener) for _ in range(3)]
    listener.connections.update(connections)
    for connection, size in zip(connections, (600, 300, 200), strict=True):
        connection.receiver = SimpleNamespace(num_pending=size)
        listener.count_pending(connection)
    assert [connection.closed for connection in connections] == [True, False, False]
    assert listener._num_pending == 500
    for connection in connections:
        connection.connection_lost(None)
    assert listener._num_pending == 0


def test_an_object_that_is_too_long_is_refused(door):
    with door.client() as client:
        task = client.set_up()
        chunk = {"delta": "x", "index": 0, "finish": False}
        client.send("a", task, "inference", object="llm.stream" + "x" * 247, data=chunk)
        assert client.receive()["error"] == {"code": -2, "message": "json format error"}
        client.send("a", task, "inference", object="llm.stream" + "x" * 246, data=chunk)
        assert client.ask("e", task, "exit")["request_id"] == "e"


def test_unfinished_messages_are_given_up_in_time(door, monkeypatch):
    monkeypatch.setattr(framer, "QUIET_SECONDS", 0.5)
    with door.client() as client:
        client.send_bytes(b'{"request_id":')
        assert client.receive()["error"]["code"] == -2
        assert client.ask()["error"]["code"] == 0


@pytest.fixture
def many_files():
    """Both ends of 500 connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_five_hundred_connections(door):
    clients = [Client(door.port) for _ in range(500)]
    for i, client in enumerate(clients):
        client.send(str(i))
    assert [client.receive()["request_id"] for client in clients] == [str(i) for i in range(500)]
    task = clients[0].set_up(temperature=0)
    clients[499].infer(task, "hello")
    assert clients[499].answer()[0] == letters("hello", 127)
    for client in clients:
        client.close()
    wait_until(lambda: door.server.num_connections == 0)


def test_too_many_connections_are_turned_away(door, monkeypatch):
    monkeypatch.setattr(tcp, "MAX_CONNECTIONS", 2)
    with door.client() as first, door.client() as second:
        assert first.ask()["error"]["code"] == second.ask()["error"]["code"] == 0
        with door.client() as third:
            assert gone(third)
        assert first.ask()["error"]["code"] == 0


def gone(client):
    """Whether the server has ended the connection."""
    try:
        return client.socket.recv(100) == b""
    except ConnectionError:
        return True


def stops_taking(client, data):
    """Send until the server reads no more."""
    with contextlib.suppress(TimeoutError):
        while True:
            client.send_bytes(data)
    return True


def test_a_client_that_never_reads_is_not_read_from_and_holds_nobody_up(door):
    with door.client(timeout=0.3) as lazy, door.client() as other:
        ask = b'{"request_id":"1","work_id":"sys","action":"lsmode"}' * 1000
        assert stops_taking(lazy, ask)
        assert other.ask()["error"]["code"] == 0
        (unsent,) = door.call(
            lambda: [size for c in door.server._tcp.connections if (size := c._transport.get_write_buffer_size())]
        )
        assert unsent < tcp.MAX_UNSENT_BYTES
        lazy.socket.settimeout(30)
        assert lazy.receive()["object"] == "sys.lsmode"  # once it reads, it is served again


def test_a_client_that_lets_answers_pile_up_is_cut_off(door, monkeypatch, caplog):
    monkeypatch.setattr(tcp, "MAX_UNSENT_BYTES", 200_000)
    with door.client() as lazy, door.client() as other, caplog.at_level(logging.WARNING, "trivium.unit"):
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        task = lazy.set_up(temperature=0, response_format="llm.utf-8")
        (connection,) = door.call(lambda: [c for c in door.server._tcp.connections if c.name.endswith(f":{port_of(lazy)}")])
        door.call(lambda: [connection.send(b"x" * 1000 + b"\n") for _ in range(20_000)])
        assert connection.closed
        assert "does not read" in caplog.text
        assert other.ask()["error"]["code"] == 0
        other.infer(task, "hello")  # the task has outlived its client
        assert other.receive()["data"] == letters("hello", 127)


def port_of(client):
    return client.socket.getsockname()[1]


def test_tasks_outlive_their_clients_and_answer_the_next_one(door, engine):
    with door.client() as client:
        task = client.set_up(temperature=0)
        engine.native.gate.clear()
        client.infer(task, "hello", "lost")
        wait_until(lambda: engine.stats().running + engine.stats().waiting)
    wait_until(lambda: door.server.num_connections == 0)
    engine.native.gate.set()
    wait_until(lambda: blocks(engine) == (0, 0, 0))
    assert door.num_tasks == 1
    with door.client() as client:
        client.infer(task, "hello", "found")
        text, frames = client.answer()
        assert (text, frames[0]["request_id"]) == (letters("hello", 127), "found")


def test_disconnects_at_every_point_of_a_conversation(door, engine):
    fields = {
        "model": "fake",
        "response_format": "llm.utf-8.stream",
        "input": "llm",
        "enoutput": True,
        "prompt": "",
        "temperature": 0,
    }
    setup = {"request_id": "s", "work_id": "llm", "action": "setup", "object": "llm.setup", "data": fields}
    for cut in (1, 30, len(json.dumps(setup)) - 1):
        with door.client() as client:
            client.send_bytes(json.dumps(setup).encode()[:cut])
    with door.client() as client:
        client.send_bytes(json.dumps(setup).encode())  # gone before the reply
    wait_until(lambda: door.num_tasks == 1)
    with door.client() as client:
        (task,) = client.ask("t", "llm", "taskinfo")["data"]
        client.infer(task, "hello")  # gone before the first frame
    for count in range(1, 4):
        with door.client() as client:
            client.infer(task, "hello", str(count))
            for _ in range(count):
                client.line()  # gone between frames
    with door.client() as client:
        client.infer(task, "hello", "last")
        client.send("e", task, "exit")
    wait_until(lambda: door.num_tasks == 0)
    wait_until(lambda: blocks(engine) == (0, 0, 0))
    with door.client() as client:
        assert client.ask()["error"]["code"] == 0


def test_replies_keep_their_order_behind_an_answer(door):
    with door.client() as client:
        task = client.set_up(temperature=0, max_token_len=4)
        client.infer(task, "hello", "i")
        client.answer()
        pings = [str(i) for i in range(200)]
        client.send_bytes(b"".join(b'{"request_id":"%s","work_id":"sys","action":"ping"}' % ping.encode() for ping in pings))
        assert [client.receive()["request_id"] for _ in pings] == pings


def test_a_client_may_hang_up_right_after_its_command(door):
    with door.client() as client:
        client.send("p")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive()["request_id"] == "p"


def test_a_port_that_is_taken_is_a_clear_error(door, engine):
    with (
        pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, unit_port {door.port}"),
        serving_unit(engine, unit_port=door.port),
    ):
        pass


def test_many_inferences_leave_nothing_behind(door, engine):
    with door.client() as client:
        task = client.set_up(temperature=0, max_token_len=4)
        unit = door.server.units["llm"]
        for i in range(300):
            client.infer(task, "hello", str(i))
            assert client.answer()[0] == letters("hello", 4)
        state = unit.tasks[task]
        wait_until(lambda: state._worker is None)
        assert not state.outputs
        assert not state._waiting
        assert not state.reader._streams
        client.ask("e", task, "exit")
    wait_until(lambda: door.server.num_connections == 0)
    assert not unit._waiting
    assert not unit._setups


def test_the_end_lets_answers_finish_and_refuses_new_work(engine):
    with serving_unit(engine) as door:
        client = door.client()
        task = client.set_up(temperature=0)
        engine.native.gate.clear()
        client.infer(task, "hello")
        wait_until(lambda: engine.stats().running + engine.stats().waiting)
        door.loop.call_soon_threadsafe(engine.native.gate.set)
    assert client.answer()[0] == letters("hello", 127)
    assert gone(client)
    client.close()


def test_the_end_does_not_wait_for_ever(engine):
    with serving_unit(engine, stop_timeout=0.0) as door:
        client = door.client()
        task = client.set_up(temperature=0)
        engine.native.gate.clear()
        client.infer(task, "hello")
        wait_until(lambda: engine.stats().running + engine.stats().waiting)
        threading.Timer(0.2, engine.native.gate.set).start()
    frames = client.answer()[1]
    assert frames[-1]["data"]["finish"]
    client.close()


def test_an_inference_while_it_ends_gets_a_last_frame():
    with make_engine() as engine, serving_unit(engine) as door, door.client() as client:
        task = client.set_up(model="fake")
        door.server._router.draining = True
        reply = client.ask("late", task, "inference", object="llm.utf-8", data="hello")
        assert (reply["request_id"], reply["work_id"], reply["error"]["code"]) == ("late", task, -10)
        assert reply["data"] == {"delta": "", "finish": True, "index": 0}
        door.server._router.draining = False
