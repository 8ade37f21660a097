"""`trivium unit` against a real unit door."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
import wave

import pytest
from cli_parts import run
from engine_parts import make_engine
from fake_native import continuation
from test_unit_links import PlainTask, PlainUnit
from unit_parts import serving_unit, wait_until

from trivium.cli.unit.client import UnitClient
from trivium.cli.unit.talk import Talk


class SpeechUnit(PlainUnit):
    """Takes all sound, is listed, and keeps the fields of the latest setup."""

    async def create(self, work_id, setup, command):
        self.values = setup.values
        return await super().create(work_id, setup, command)

    def descriptors(self):
        return [{"mode": f"{self.name}-model", "type": self.name}]


@pytest.fixture(scope="module")
def engine():
    with make_engine() as engine:
        yield engine


@pytest.fixture
def door(engine):
    with serving_unit(engine) as door:
        yield door


@pytest.fixture
def unit(door):
    """Runs a command of `trivium unit` with the door's port."""
    return lambda *args, **options: run("unit", *args, "--port", door.port, **options)


def letters(prompt, count):
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def frames(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_the_server_can_be_asked(unit, door):
    assert unit("ping").stdout.startswith(f"127.0.0.1:{door.port} answers in ")
    assert unit("version").stdout == "v1.6\n"
    assert "llm      fake\n" in unit("lsmode").stdout
    assert set(json.loads(unit("cmminfo").stdout)) == {"total", "used", "remain"}
    assert "cpu_loadavg" in json.loads(unit("hwinfo").stdout)
    assert unit("reset").stdout == "llm server restarting ...\n"
    assert unit("reboot").stdout == "rebooting ...\n"


def test_the_whole_reply(unit):
    (reply,) = frames(unit("version", "--json"))
    assert (reply["object"], reply["data"], reply["work_id"]) == ("sys.utf-8", "v1.6", "sys")


@pytest.fixture
def listener():
    """A port that nobody serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unused_port = taken.getsockname()[1]
    result = run("unit", "ping", "--port", unused_port)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"trivium: error: nobody answers at 127.0.0.1:{unused_port}: Connection refused\n"


def test_a_host_that_can_be_no_name():
    result = run("unit", "ping", "--host", "a..b")
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: nobody answers at a..b:10001: ")


@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "0.01"])
@pytest.mark.parametrize("command", [("ping", "--timeout"), ("watch", "--timeout"), ("feed", __file__, "--timeout")])
def test_times_that_cannot_be_waited(command, value):
    result = run("unit", *command, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{command[-1]}': " in result.stderr
    assert "is not in the range" in result.stderr


def test_a_server_that_does_not_reply(listener):
    result = run("unit", "ping", "--port", listener.getsockname()[1], "--timeout", "0.2")
    assert result.exit_code == 1
    assert result.stderr == "trivium: error: the server has not answered for 0.2 s\n"


def test_a_server_that_hangs_up(listener):
    def hang_up():
        with listener.accept()[0] as connection:
            connection.recv(1000)

    thread = threading.Thread(target=hang_up)
    thread.start()
    result = run("unit", "ping", "--port", listener.getsockname()[1])
    thread.join()
    assert (result.exit_code, result.stderr) == (1, "trivium: error: the server has hung up\n")


def test_send(unit):
    result = unit("send", '{"action":"ping"}', '{"request_id":"a","work_id":"llm","action":"taskinfo"}')
    first, second = frames(result)
    assert (result.exit_code, first["request_id"], second["request_id"], second["data"]) == (0, "1", "a", [])


def test_send_an_inference(unit, door):
    with door.client() as client:
        work_id = client.set_up(max_token_len=7, temperature=0)
        chunks = [("he", 0, False), ("llo", 1, True)]
        messages = [
            {"work_id": work_id, "action": "inference", "object": "llm.utf-8.stream", "request_id": "i"}
            | {"data": {"delta": delta, "index": index, "finish": finish}}
            for delta, index, finish in chunks
        ]
        told = frames(unit("send", *map(json.dumps, messages)))
    assert "".join(frame["data"]["delta"] for frame in told) == letters("hello", 7)
    assert told[-1]["data"]["finish"] is True


def test_send_what_is_refused(unit):
    result = unit("send", '{"action":"dance"}', '{"action":"ping"}')
    assert result.exit_code == 1
    assert [frame["error"]["code"] for frame in frames(result)] == [-3]
    assert result.stderr == "trivium: error: sys dance: action match false (-3)\n"
    assert unit("send", '{"work_id":7,"action":"ping"}').exit_code == 1
    assert unit("send", "{}").stderr.endswith("json format error (-2)\n")


def test_send_without_waiting(unit):
    result = unit("send", "--no-reply", '{"action":"ping"}')
    assert (result.exit_code, result.output) == (0, "")
    assert unit("ping").exit_code == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "ping"])
def test_send_what_is_no_message(unit, text):
    result = unit("send", text)
    assert result.exit_code == 2
    assert "MESSAGE 1" in result.stderr


def test_talk(unit, door):
    result = unit(
        "talk", "--max-tokens", 5, "--temperature", 0, stdin="one\n\n/help\n/nonsense\ntwo\n/reset\none\n/exit\nthree\n"
    )
    assert result.exit_code == 0
    answers = [line for line in result.stdout.splitlines() if not line.startswith(("/", "Ctrl"))]
    first = letters("one", 5)
    assert answers == [first, letters(f"one\n{first}\ntwo", 5), first]
    assert result.stderr == "there is no command /nonsense; /help lists them\n"
    assert door.num_tasks == 0


def test_talk_in_no_encoding(unit, door):
    result = unit("talk", stdin=b"\xff\n")
    assert result.exit_code == 2
    assert "stdin must be UTF-8" in result.stderr
    assert door.num_tasks == 0


def test_talk_with_a_model_that_is_not_there(unit):
    result = unit("talk", "-m", "nonsense", stdin="one\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: llm setup: Model loading failed. ")


def test_an_answer_that_fails(unit):
    result = unit("talk", stdin=f"{'x' * 1000}\nshort\n")
    assert result.exit_code == 0
    assert "error: llm.1000: Model run failed." in result.stderr


def test_stopping_an_answer(door, monkeypatch, capsys):
    with UnitClient("127.0.0.1", door.port, 20.0) as client:
        setup = {"model": "fake", "response_format": "llm.utf-8.stream", "input": "llm.utf-8", "enoutput": True, "prompt": ""}
        talk = Talk(client, client.set_up("llm", setup | {"max_token_len": 200, "temperature": 0}))
        write = sys.stdout.write
        pieces = []

        def interrupt(text):
            write(text)
            pieces.append(text)
            if len(pieces) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "write", interrupt)
            assert talk.take("a story")
        assert "stopped" in capsys.readouterr().err
        assert talk.take("another")
        assert capsys.readouterr().out == letters("another", 200) + "\n"


def test_tasks(unit, door):
    assert unit("tasks").output == ""
    with door.client() as client:
        client.set_up("llm")
        assert unit("tasks").stdout == "llm.1000      fake  llm.utf-8.stream  llm.utf-8\n"


def test_watch(unit, door):
    results = []
    with door.client() as client:
        work_id = client.set_up(max_token_len=6, temperature=0)
        watcher = threading.Thread(target=lambda: results.append(unit("watch", "--seconds", 1)))
        watcher.start()
        task = door.server.units["llm"].tasks[work_id]
        own = task.owner
        wait_until(lambda: task.owner is not own)
        client.ask()
        door.call(lambda: task._ask("hello", "watched", task.owner))
        watcher.join(20)
        client.assert_silent()
    (result,) = results
    assert result.exit_code == 0
    assert result.stderr == "watching llm.1000\n"
    assert "".join(frame["data"]["delta"] for frame in frames(result)) == letters("hello", 6)


def test_watch_what_is_not_there(unit):
    result = unit("watch")
    assert (result.exit_code, result.stderr) == (0, "watching nothing: there are no tasks\n")
    result = unit("watch", "llm.7")
    assert (result.exit_code, result.stderr) == (1, "trivium: error: llm.7 taskinfo: Unit Does Not Exist (-6)\n")


@pytest.fixture
def recording(tmp_path):
    """0.35 s of 8 kHz stereo."""
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\1\0" * 5600)
    return path


@pytest.fixture
def voices(door):
    """Units for speech, in place of real ones."""
    units = door.server.units
    units["kws"] = SpeechUnit(door.server.bus, "kws")
    units["asr"] = SpeechUnit(door.server.bus, "asr", ["kws"])
    return units


def test_feed(unit, voices, recording, monkeypatch):
    taken = []
    monkeypatch.setattr(PlainTask, "infer", lambda task, command: taken.append((task, command)))
    result = unit("feed", recording, "--wake", "hey there", "--answer", "--fast", "--wait", 0.3)
    assert (result.exit_code, result.output) == (0, "")
    kws, asr = (list(dict.fromkeys(task for task, _ in taken if task.unit.name == name)) for name in ("kws", "asr"))
    assert voices["kws"].values["kws"] == "HEY THERE"
    assert asr[0].inputs == ["asr.base64", kws[0].work_id]
    for (task,) in (kws, asr):
        sound = b"".join(base64.b64decode(command.data) for one, command in taken if one is task)
        assert len(sound) == 0.35 * 32000
        assert len({command.object for one, command in taken if one is task}) == 1
    assert not any(one.tasks for one in voices.values())


def test_feed_prints_what_comes_back(unit, voices, recording):
    """These units say what they hear."""

    def say(task, command):
        command.reply(object="asr.utf-8", data="a piece")

    original, PlainTask.infer = PlainTask.infer, say
    try:
        result = unit("feed", recording, "--wait", 0.3)
    finally:
        PlainTask.infer = original
    assert result.exit_code == 0
    assert [frame["data"] for frame in frames(result)] == ["a piece"] * 4


def test_feed_without_speech(unit, door, recording):
    door.server.units.pop("asr", None)
    result = unit("feed", recording)
    assert (result.exit_code, result.stderr) == (1, "trivium: error: the server has no model for asr\n")


def test_feed_what_is_no_sound(unit, tmp_path):
    (tmp_path / "x.wav").write_bytes(b"RIFF nonsense")
    result = unit("feed", tmp_path / "x.wav")
    assert result.exit_code == 1
    assert "x.wav" in result.stderr
