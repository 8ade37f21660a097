"""Units in other processes that join over ZeroMQ."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq
from engine_parts import make_engine
from fake_native import continuation
from unit_parts import serving_unit, wait_until

from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.remote import peer, registry, remote_task
from trivium.doors.unit.remote.address import BusAddress, SocketNames
from trivium.doors.unit.remote.messages import pack
from trivium.errors import ConfigError

SPEECH = ["kws", "asr", "whisper", "tts", "melotts"]  # for other processes to be
UNIT = Path(__file__).with_name("joining_unit.py")


@pytest.fixture
def folder():
    """A folder whose path is short enough for sockets."""
    path = tempfile.mkdtemp(prefix="bus")
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["folder", "tcp"])
def bus(request):
    if request.param == "folder":
        return request.getfixturevalue("folder")
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"


@pytest.fixture
def door(bus):
    with make_engine() as engine, serving_unit(engine, unit_bus=bus, unit_without=SPEECH) as door:
        yield door


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
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def remote(door):
    return door.server._router.remote


def remote_tasks(door):
    return door.call(lambda: sorted(remote(door)._registry.tasks))


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
        packed = self.ask("register_unit", name)
        number, urls = packed[1 : 1 + packed[0]], packed[1 + packed[0] :]
        return int(number), urls[1 : 1 + urls[0]].decode(), urls[1 + urls[0] :].decode()

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


@pytest.fixture
def caller(door):
    with Caller(remote(door).url) as caller:
        yield caller


# Units in processes of their own


def test_a_unit_is_set_up_asked_and_ends(bus, door):
    with unit(bus, "echo"), door.client() as client:
        work_id = client.set_up("echo", response_format="echo.utf-8.stream")
        assert work_id == "echo.1000"
        client.infer(work_id, "hello {world}")
        assert client.answer()[0] == "hello {world}"
        client.send("p", work_id, "inference", object="echo.utf-8", data="plain \\ text")
        assert client.answer()[0] == "plain \\ text"
        assert client.ask("t", "echo", "taskinfo")["data"] == [work_id]
        assert client.set_up("llm") == "llm.1001"
        assert client.ask("x", work_id, "exit")["error"]["code"] == 0
        assert client.ask("y", work_id, "exit")["error"]["code"] == -6
        client.infer(work_id, "anyone?")
        assert client.receive()["error"]["code"] == -4
        wait_until(lambda: remote_tasks(door) == [])


def test_units_are_linked_in_both_directions(bus, door):
    with unit(bus, "asr"), unit(bus, "tts"), door.client() as client, door.client() as speaker:
        hears = client.set_up("asr", response_format="asr.utf-8.stream", enoutput=False)
        llm = client.set_up("llm", temperature=0, input=["llm.utf-8", hears], max_token_len=9)
        says = speaker.set_up("tts", response_format="tts.utf-8", input=[llm])
        client.infer(hears, "what is heard", request_id="h")
        frames = [client.receive() for _ in range(2 + 4)]
        heard = [frame for frame in frames if frame["work_id"] == hears]
        answered = "".join(frame["data"]["delta"] for frame in frames if frame["work_id"] == llm)
        assert [frame["data"]["delta"] for frame in heard] == ["what is heard", ""]
        assert answered == letters("what is heard", 9)
        spoken = speaker.receive()
        assert (spoken["work_id"], spoken["object"], spoken["data"]) == (says, "tts.utf-8", answered)

        # A link that is made later, one that ends, and what linked tasks hear of a user's inference.
        other = client.set_up("llm", temperature=0, max_token_len=3, enoutput=False)
        assert client.ask("k", other, "link", object="work_id", data=hears)["error"]["code"] == 0
        assert speaker.ask("k", says, "link", object="work_id", data=other)["error"]["code"] == 0
        assert client.ask("u", llm, "unlink", object="work_id", data=hears)["error"]["code"] == 0
        client.infer(hears, "again")
        assert speaker.receive()["data"] == letters("again", 3)
        client.answer()
        client.infer(llm, "typed", request_id="typed")
        assert client.answer()[0] == letters("typed", 9)
        assert speaker.receive()["data"] == letters("typed", 9)


def test_a_wake_of_another_process_ends_the_answer(bus, door):
    with unit(bus, "kws"), door.client() as client, door.client() as other:
        wakes = other.set_up("kws", response_format="kws.bool")
        llm = client.set_up("llm", temperature=0, input=["llm.utf-8", wakes], max_token_len=200)
        door.engine.native.gate.clear()
        client.infer(llm, "a long story")
        wait_until(lambda: door.engine.stats().running == 1)
        other.send("w", wakes, "inference", object="kws.utf-8", data="wake up")
        assert other.receive()["object"] == "kws.bool"
        text, _ = client.answer()
        door.engine.native.gate.set()
        assert len(text) < 200
        client.infer(llm, "x")
        assert len(client.answer()[0]) == 200


def test_a_unit_that_is_killed_in_mid_answer(bus, door):
    with unit(bus, "echo") as process, door.client() as client, door.client() as other:
        work_id = client.set_up("echo", response_format="echo.utf-8.stream")
        llm = client.set_up("llm", temperature=0, input=["llm.utf-8", work_id], max_token_len=6)
        client.infer(work_id, "hang", request_id="mid")
        frame = client.receive()
        assert (frame["data"], frame["request_id"]) == ({"delta": "hang", "finish": False, "index": 0}, "mid")
        other.send("s", work_id, "silent")
        door.call(lambda: None)
        wait_until(lambda: not door.call(lambda: remote(door)._peers["echo"]._calls))
        process.kill()
        last = client.receive()
        assert last["data"] == {"delta": "", "finish": True, "index": 1}
        assert (last["error"]["code"], last["request_id"], last["work_id"]) == (-11, "mid", work_id)
        assert other.receive()["error"]["code"] == -9
        wait_until(lambda: remote_tasks(door) == [])
        client.infer(work_id, "anyone?")
        assert client.receive()["error"]["code"] == -4
        assert client.ask("x", work_id, "exit")["error"]["code"] == -9
        assert client.ask("k", llm, "link", object="work_id", data=work_id)["error"]["code"] == -20
        client.infer(llm, "still here")
        assert client.answer()[0] == letters("still here", 6)
        if not bus.startswith("tcp:"):
            wait_until(lambda: not list(Path(bus, "llm").glob("*.echo.*")))
        client.assert_silent()

    with unit(bus, "echo"), door.client() as client:
        assert client.set_up("echo", response_format="echo.utf-8") == "echo.1002"


def test_a_unit_that_does_not_answer(bus, door, monkeypatch):
    monkeypatch.setattr(peer, "ACCEPT_SECONDS", 0.3)
    with unit(bus, "echo"), door.client() as client, door.client() as other:
        client.send("s", "echo", "stall")
        client.send("t", "echo", "taskinfo")
        assert other.ask()["error"]["code"] == 0
        replies = [client.receive() for _ in range(2)]
        assert [(reply["request_id"], reply["error"]["code"]) for reply in replies] == [("s", -9), ("t", -9)]
        for _ in range(peer._MAX_CALLS):
            client.send("many", "echo", "taskinfo")
        assert client.ask("more", "echo", "taskinfo")["error"]["code"] == -10
        assert other.ask()["error"]["code"] == 0


def test_an_action_that_the_unit_has_not(bus, door):
    with unit(bus, "echo"), door.client() as client:
        reply = client.ask("a", "echo", "sing")
        assert (reply["error"]["code"], reply["request_id"], reply["work_id"]) == (-3, "a", "echo")


def test_units_that_are_not_there(bus, door):
    with door.client() as client:
        for name in ("echo", "echo.1000", "../../echo", "e" * 200, "e.c.h.o", "\x00", "é"):
            assert client.ask("a", name, "setup")["error"]["code"] == -9
            assert client.ask("a", name, "inference", object="x", data="y")["error"]["code"] == -4


def test_noise_and_a_flood(bus, door):
    with unit(bus, "asr"), door.client() as client, door.client() as other:
        work_id = client.set_up("asr", response_format="asr.utf-8")
        llm = other.set_up("llm", temperature=0)
        client.send("n", work_id, "inference", object="asr.utf-8", data="flood")
        assert client.receive()["data"] == "flood"
        assert other.ask("k", llm, "link", data=work_id)["error"]["code"] == 0
        client.send("n", work_id, "inference", object="asr.utf-8", data="flood")
        assert client.ask()["error"]["code"] == 0
        assert other.answer()[0] == letters("flood", 127)
        assert client.receive()["data"] == "flood"
        client.send("n", work_id, "inference", object="asr.utf-8", data="noise")
        assert client.receive()["data"] == "noise"
        assert other.answer()[0] == letters("noise", 127)


def test_clients_have_lines_of_their_own(bus, door):
    with unit(bus, "echo"), door.client() as client:
        work_id = client.set_up("echo", response_format="echo.utf-8")
        with door.client() as other:
            other.send("o", work_id, "inference", object="echo.utf-8", data="other")
            assert other.receive()["data"] == "other"
            assert door.call(lambda: len(remote(door)._lines)) == 3
        client.assert_silent()
        wait_until(lambda: door.call(lambda: len(remote(door)._lines)) == 2)
        client.send("c", work_id, "inference", object="echo.utf-8", data="mine")
        assert client.receive()["data"] == "mine"


def test_a_reset_ends_the_tasks_of_units(bus, door):
    with unit(bus, "echo"), door.client() as client:
        assert client.set_up("echo", response_format="echo.utf-8") == "echo.1000"
        assert client.set_up("llm") == "llm.1001"
        assert client.ask("r", "sys", "reset")["error"]["message"] == "llm server restarting ..."
        assert remote_tasks(door) == []
        assert client.set_up("echo", response_format="echo.utf-8") == "echo.1000"
        assert client.ask("t", "echo", "taskinfo")["data"] == ["echo.1000"]
        client.send("c", "echo.1000", "inference", object="echo.utf-8", data="anew")
        assert client.receive()["data"] == "anew"


def test_the_door_ends_before_the_units(bus):
    with make_engine() as engine, ExitStack() as later:
        with serving_unit(engine, unit_bus=bus) as door:
            later.enter_context(unit(bus, "echo"))
            client = later.enter_context(door.client())
            client.set_up("echo", response_format="echo.utf-8")
            client.send("s", "echo", "silent")
            wait_until(lambda: not door.call(lambda: remote(door)._peers["echo"]._calls))
        assert client.receive()["error"]["code"] == -9
        assert bus.startswith("tcp:") or [path.name for path in Path(bus).iterdir()] == ["rpc.echo"]


# What units ask of the door


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
    assert [caller.set(f"k{i}", "v") for i in range(4)] == [b"Success", b"Success", b"False", b"False"]
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
        gone = client.receive()
        assert (gone["request_id"], gone["error"]["code"]) == ("b", -11)


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


# The bus itself


def test_a_unit_of_another_process_in_place_of_ours(folder):
    with make_engine() as engine, serving_unit(engine, unit_bus=folder, unit_without=["llm"]) as door:
        assert "llm" not in door.server.units
        with unit(folder, "llm"), door.client() as client:
            work_id = client.set_up("llm")
            client.infer(work_id, "hello")
            assert client.answer()[0] == "hello"


def test_two_servers_do_not_share_a_folder(folder):
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door:
        with pytest.raises(ConfigError, match="another server"), serving_unit(engine, unit_bus=folder):
            pass
        with Caller(remote(door).url) as caller:
            assert caller.ask("sql_select", "x") == b""
    assert list(Path(folder).iterdir()) == []


def test_what_a_killed_server_left(folder):
    with zmq.Context() as context, context.socket(zmq.REP) as left:
        left.bind(f"ipc://{folder}/rpc.sys")
    assert Path(folder, "rpc.sys").exists()
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door, Caller(remote(door).url) as caller:
        assert caller.ask("sql_select", "x") == b""
        assert Path(folder, "rpc.sys").stat().st_mode & 0o777 == 0o600
        assert Path(folder, "llm").stat().st_mode & 0o777 == 0o700


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, make_engine() as engine:
        bus = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot join"), serving_unit(engine, unit_bus=bus):
            pass


def test_a_folder_that_cannot_be_made(tmp_path, folder):
    Path(folder, "file").write_text("")
    with (
        make_engine() as engine,
        pytest.raises(ConfigError, match="cannot join"),
        serving_unit(engine, unit_bus=f"{folder}/file"),
    ):
        pass


def test_without_pyzmq(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "trivium.doors.unit.remote.remote_units", None)
    with make_engine() as engine, pytest.raises(ConfigError, match=r"trivium\[bus\]"), serving_unit(engine, unit_bus=folder):
        pass


def test_pyzmq_is_not_imported_without_a_bus():
    code = "import sys, trivium.doors.unit.server; print('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 60,
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://0.0.0.0:5",
        "tcp://[::]:5",
        "tcp://host:5",
        "udp://1.2.3.4:5",
        "ipc:///tmp",
        "tcp://1.2.3.4:99999",
        "tcp://1.2.3.4:5/x",
    ],
)
def test_options_that_are_no_address(text):
    with pytest.raises(ConfigError, match="unit_bus must be"):
        UnitConfig(unit_bus=text)


def test_addresses():
    assert UnitConfig().bus_address is None
    folder = UnitConfig(unit_bus="/tmp").bus_address
    assert (folder.sys_url, folder.unit_url("asr"), folder.is_local) == ("ipc:///tmp/rpc.sys", "ipc:///tmp/rpc.asr", True)
    network = UnitConfig(unit_bus="tcp://10.1.2.3:5000").bus_address
    assert (network.sys_url, network.unit_url("asr"), network.is_local) == ("tcp://10.1.2.3:5000", None, False)
    local = UnitConfig(unit_bus="tcp://[::1]:5000").bus_address
    assert (local.sys_url, local.is_local) == ("tcp://[::1]:5000", True)


def test_names_are_those_of_the_original():
    names = SocketNames(BusAddress.of_option("/tmp"))
    assert names.inference("asr") == "ipc:///tmp/llm/5010.sock.asr.inference_url"
    assert names.output("asr") == "ipc:///tmp/llm/5011.sock.asr.output_url"
    assert names.reply() == "ipc:///tmp/llm/8001.sock"


def test_pairs():
    assert pack("1000", pack("out", b"in")) == b"\x041000\x03outin"
    with pytest.raises(ValueError, match="longer than 127"):
        pack("x" * 128, b"")


def test_units_that_the_server_never_has():
    with pytest.raises(ConfigError, match="unit_without must be llm or kws"):
        UnitConfig(unit_without=["asr", "ars"])


def test_a_folder_that_others_may_use_is_refused(folder):
    inner = Path(folder) / "llm"
    inner.mkdir()
    inner.chmod(0o777)
    with make_engine() as engine:
        with (
            pytest.raises(ConfigError, match="must be this user's, and closed to others"),
            serving_unit(engine, unit_bus=folder, unit_without=SPEECH),
        ):
            pass
        inner.chmod(0o700)
        with serving_unit(engine, unit_bus=folder, unit_without=SPEECH):
            pass


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("ipc://{folder}/rpc.asr", True),
        ("ipc://{folder}/llm/5010.sock", True),
        ("ipc://{folder}/llm/../../etc/passwd", False),
        ("ipc://{folder}/../x", False),
        ("ipc://{folder}/llm/", False),
        ("ipc://{folder}/other/x", False),
        ("ipc://elsewhere/x", False),
    ],
)
def test_units_name_sockets_of_the_folder_alone(folder, url, may):
    assert BusAddress.of_option(folder).may_be(url.format(folder=folder)) is may
