"""What units ask of the door over the bus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq
from bus_parts import Caller, letters, remote, remote_tasks
from engine_parts import make_engine
from unit_parts import serving_unit, wait_until

from trivium.doors.unit.remote import registry, remote_task


def test_what_the_door_can_be_asked(caller, bus):
    assert json.loads(caller.ask("list_action", "None"))["actions"] == [
        "list_action",
        "register_unit",
        "release_unit",
        "sql_select",
        "sql_set",
        "sql_unset",
    ]
    assert caller.ask("dance", "") == b"dance NotAction"
    assert caller.ask("dance") == b"dance NotAction"
    assert caller.ask(b"\xff", b"\xff") == b"False"
    assert caller.ask("sql_select", "nothing") == b""
    assert caller.set("config_volume", "50 %") == b"Success"
    assert caller.ask("sql_select", "config_volume") == b"50 %"
    assert caller.ask("sql_unset", "config_volume") == b"Success"
    assert caller.ask("sql_select", "config_volume") == b""
    assert caller.ask("sql_select", "serial_zmq_url").startswith(b"tcp://" if bus.startswith("tcp:") else b"ipc://")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"key":"a"}', '{"key":"a","val":1}', '{"key":"","val":"b"}', '{"key":7,"val":"b"}', "\udcff"),
        json.dumps({"key": "k" * 300, "val": ""}),
        json.dumps({"key": "k", "val": "v" * 5000}),
    ],
)
def test_values_that_are_none(caller, text):
    assert caller.ask("sql_set", text.encode("utf-8", "surrogateescape")) == b"False"


def test_not_too_many_values(caller, monkeypatch):
    monkeypatch.setattr(registry, "_MAX_VALUES", 3)
    assert [caller.set(f"k{i}", "v") for i in range(4)] == [b"Success", b"Success", b"Success", b"False"]
    assert caller.set("k1", "w") == b"Success"


def test_names_that_units_may_not_have(caller, door):
    for name in ("llm", "sys", "", "a/b", "..", "a.b", "x" * 25, "é", "\n"):
        assert caller.ask("register_unit", name) == b"False"
    for name in ("llm", "sys", "a/b"):
        assert caller.set(f"rpc.{name}", "tcp://127.0.0.1:9") == b"False"
    with door.client() as client:
        assert client.set_up("llm") == "llm.1000"
        assert caller.set("llm.1000.out_port", "tcp://127.0.0.1:9") == b"False"
        assert caller.ask("release_unit", "llm.1000") == b"Success"
        assert client.ask("t", "llm", "taskinfo")["data"] == ["llm.1000"]


def test_urls_that_units_may_not_have(caller, bus):
    number, _, _ = caller.register("echo")
    for url in (
        "",
        "x",
        "ipc://",
        "ipc:///etc/passwd",
        "tcp://",
        "tcp://a.host:1",
        "tcp://0.0.0.0:1",
        "tcp://127.0.0.1",
        "tcp://[::1]:x",
    ):
        assert caller.set("rpc.echo", url) == b"False"
        assert caller.set(f"echo.{number}.out_port", url) == b"False"
    assert caller.set("echo.1.out_port", "tcp://127.0.0.1:9") == b"False"
    assert caller.set("rpc.echo", "tcp://127.0.0.1:9") == b"Success"


def test_not_too_many_tasks(caller, monkeypatch):
    monkeypatch.setattr(registry, "_MAX_TASKS", 2)
    assert caller.register("echo")[0] == 1000
    assert caller.register("echo")[0] == 1001
    assert caller.ask("register_unit", "echo") == b"False"
    assert caller.ask("release_unit", "echo.1000") == b"Success"
    assert caller.register("echo")[0] == 1002


def test_the_output_of_our_tasks(caller, door):
    with door.client() as client:
        llm = client.set_up("llm", temperature=0, max_token_len=4)
        url = caller.ask("sql_select", f"{llm}.out_port").decode()
        assert caller.ask("sql_select", f"{llm}.out_port").decode() == url
        listeners = [caller.listen(url) for _ in range(2)]
        wait_until(lambda: door.call(lambda: door.server.bus.is_heard(llm)))
        client.infer(llm, "hello", request_id="h")
        _, frames = client.answer()
        for listener in listeners:
            told = [json.loads(listener.recv()) for _ in frames]
            assert [frame | {"created": 0} for frame in told] == [frame | {"created": 0} for frame in frames]
            listener.close()
        wait_until(lambda: not door.call(lambda: door.server.bus.is_heard(llm)))
        assert client.ask("x", llm, "exit")["error"]["code"] == 0
        assert caller.ask("sql_select", f"{llm}.out_port") == b""
        if url.startswith("ipc://"):
            wait_until(lambda: not Path(url.removeprefix("ipc://")).exists())


def test_a_source_without_calls(caller, door, bus):
    """A unit need not take calls: what it registers can be linked to."""
    number, url, _ = caller.register("asr")
    if bus.startswith("tcp:"):
        assert url == "tcp://*:*"
        output = caller.socket(zmq.XPUB)
        output.bind("tcp://127.0.0.1:*")
        assert caller.ask("sql_select", f"asr.{number}.out_port") == b""
        url = output.get_string(zmq.LAST_ENDPOINT)
        assert caller.set(f"asr.{number}.out_port", url) == b"Success"
        assert output.recv() == b"\1"
    else:
        output = caller.publish(url)
    assert caller.ask("sql_select", f"asr.{number}.out_port").decode() == url
    with door.client() as client:
        llm = client.set_up("llm", temperature=0, input=["llm.utf-8", f"asr.{number}"], max_token_len=5)
        for frame in (
            {"object": "None", "data": "None"},
            {"object": "asr.utf-8", "data": "an error", "error": {"code": -11, "message": "no"}},
            {"object": "asr.utf-8.stream", "data": {"delta": "not", "finish": False, "index": 0}},
            {"object": "asr.utf-8", "data": 7},
            {"object": "asr.utf-8.stream", "data": {"delta": "all of it", "finish": True, "index": 1}},
        ):
            output.send(json.dumps(frame).encode())
        assert client.answer()[0] == letters("all of it", 5)
        client.assert_silent()
        output.close(0)
        wait_until(lambda: remote_tasks(door) == [])
        assert client.ask("k", llm, "link", data=f"asr.{number}")["error"]["code"] == -20


def test_inferences_wait_for_a_task_to_listen(caller, door, monkeypatch):
    monkeypatch.setattr(remote_task, "_LISTEN_SECONDS", 0.3)
    monkeypatch.setattr(remote_task, "_MAX_HELD", 3)
    number, _, inference_url = caller.register("echo")
    with door.client() as client:
        for i in range(4):
            client.send(f"{i}", f"echo.{number}", "inference", object="echo.utf-8", data=f"text {i}")
        assert [client.receive()["error"]["code"] for _ in range(4)] == [-13, -4, -4, -4]
        client.send("a", f"echo.{number}", "inference", object="echo.utf-8", data="{early} é")
        client.ask()
        listener = caller.listen(inference_url)
        told = listener.recv()
        assert told.startswith(b'{"zmq_com":"')
        fields = (
            '"request_id":"a","work_id":"echo.1000","action":"inference","object":"echo.utf-8","data":"\\u007bearly\\u007d é"}'
        )
        assert told.endswith(fields.encode())
        client.send("b", f"echo.{number}", "inference", object="echo.utf-8", data="at once")
        assert json.loads(listener.recv())["data"] == "at once"
        assert caller.ask("release_unit", f"echo.{number}") == b"Success"
        assert [(reply["request_id"], reply["error"]["code"]) for reply in (client.receive(), client.receive())] == [
            ("a", -11),
            ("b", -11),
        ]


def test_a_task_that_does_not_keep_up(caller, door):
    number, _, inference_url = caller.register("echo")
    caller.listen(inference_url, at_most=1)
    with door.client() as client, door.client() as other:
        text = "x" * 2**18
        for i in range(100):
            client.send(f"{i}", f"echo.{number}", "inference", object="echo.utf-8", data=text)
        assert client.receive()["error"]["code"] == -13
        assert other.ask()["error"]["code"] == 0


def test_a_task_without_an_output(caller, door, monkeypatch, caplog):
    monkeypatch.setattr(remote_task, "JOIN_SECONDS", 0.2)
    number, _, _ = caller.register("echo")
    assert remote_tasks(door) == [f"echo.{number}"]
    wait_until(lambda: remote_tasks(door) == [])
    assert "no output" in caplog.text


def test_a_unit_without_an_output_is_not_set_up(folder, monkeypatch):
    """What it says of its task waits for the output, and then is an error."""
    monkeypatch.setattr(remote_task, "JOIN_SECONDS", 0.3)
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door, Caller(remote(door).url) as caller:
        rpc = caller.socket(zmq.REP)
        rpc.bind(f"ipc://{folder}/rpc.echo")
        with door.client() as client:
            client.send("s", "echo", "setup", data={})
            action, payload = rpc.recv_multipart()
            assert action == b"setup"
            reply_url, command = payload[1 : 1 + payload[0]].decode(), payload[1 + payload[0] :]
            assert command == b'{"request_id":"s","work_id":"echo","action":"setup","data":{}}'
            number, _, _ = caller.register("echo")
            line = caller.socket(zmq.PUSH)
            line.connect(reply_url)
            line.send(json.dumps({"request_id": "s", "work_id": f"echo.{number}"}).encode())
            rpc.send(b"None")
            reply = client.receive()
            assert (reply["error"]["code"], reply["work_id"], reply["request_id"]) == (-5, "echo", "s")
