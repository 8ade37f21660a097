"""Units in other processes that join over ZeroMQ."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bus_parts import letters, remote, remote_tasks, unit
from engine_parts import make_engine
from unit_parts import serving_unit, wait_until

from trivium.doors.unit.remote import peer


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
