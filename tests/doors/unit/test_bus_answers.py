"""Every inference of a task in another process ends exactly once, whatever its unit does."""

from __future__ import annotations

import pytest
from bus_parts import Caller, SpokenTask, SpokenUnit, remote, remote_tasks
from engine_parts import make_engine
from unit_parts import serving_unit, wait_until

from trivium.doors.unit.remote import answers, peer, remote_task


@pytest.fixture
def door(folder, monkeypatch):
    monkeypatch.setattr(remote_task, "END_SECONDS", 0.2)
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door:
        yield door


@pytest.fixture
def echo(folder, door):
    with Caller(remote(door).url) as caller:
        yield SpokenUnit(caller, folder)


def ends(client, count):
    """So many last frames: id, index and code of each."""
    frames = [client.receive() for _ in range(count)]
    assert all(frame["data"] == {"delta": "", "finish": True, "index": frame["data"]["index"]} for frame in frames)
    assert all(frame["object"] == "echo.utf-8.stream" for frame in frames)
    return [(frame["request_id"], frame["data"]["index"], frame["error"]["code"]) for frame in frames]


def pieces(client, count):
    frames = [client.receive() for _ in range(count)]
    return [(frame["request_id"], frame["data"]["delta"], frame["data"]["finish"]) for frame in frames]


def test_all_inferences_end_with_the_task(echo, door):
    with door.client() as client, door.client() as other:
        task = echo.set_up(client)
        for request_id in ("a", "b", "b"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        other.infer(task.work_id, "x", "c")
        task.asked()
        task.part(url, "a", 0, "some")
        assert pieces(client, 1) == [("a", "some", False)]
        task.die()
        assert ends(client, 3) == [("a", 1, -11), ("b", 0, -11), ("b", 0, -11)]
        assert ends(other, 1) == [("c", 0, -11)]
        client.assert_silent()
        other.assert_silent()


def test_a_pause_without_a_last_frame(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        for request_id in ("a", "b"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        task.part(url, "a", 0, "some")
        assert pieces(client, 1) == [("a", "some", False)]
        echo.act(client, "pause", task.work_id, "p")
        assert client.receive()["request_id"] == "p"
        assert ends(client, 1) == [("a", 1, 0)]
        # What it says of that too late is dropped; the next one goes on.
        task.part(url, "a", 1, "late")
        task.part(url, "a", 2, finish=True)
        task.part(url, "b", 0, "next")
        task.part(url, "b", 1, finish=True)
        assert pieces(client, 2) == [("b", "next", False), ("b", "", True)]
        client.assert_silent()


def test_a_pause_whose_last_frame_comes(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        task.part(url, "a", 0, "some")
        echo.act(client, "pause", task.work_id, "p")
        task.part(url, "a", 1, finish=True)
        assert [client.receive()["request_id"] for _ in range(3)] == ["a", "p", "a"]
        client.assert_silent(0.4)
        client.infer(task.work_id, "x", "a")
        task.part(task.asked(), "a", 0, "anew")
        assert pieces(client, 1) == [("a", "anew", False)]


def test_a_pause_and_then_the_end(echo, door):
    """The acknowledgement of a pause is no end of an answer."""
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        task.part(task.asked(), "a", 0, "some")
        echo.act(client, "pause", task.work_id, "p")
        assert [client.receive()["request_id"] for _ in range(2)] == ["a", "p"]
        task.die()
        assert ends(client, 1) == [("a", 1, -11)]
        client.assert_silent(0.4)


def test_an_exit_that_ends_nothing(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        echo.act(client, "exit", task.work_id, "e")
        assert client.receive()["request_id"] == "e"
        assert ends(client, 1) == [("a", 0, -11)]
        assert remote_tasks(door) == []
        task.part(url, "a", 0, "late")
        task.part(url, "a", 1, finish=True)
        client.infer(task.work_id, "x", "b")
        assert client.receive()["error"]["code"] == -4
        client.assert_silent()


@pytest.mark.parametrize("soon", [True, False])
def test_last_words_after_the_release(echo, door, monkeypatch, soon):
    monkeypatch.setattr(answers, "LAST_WORDS_SECONDS", 60.0 if soon else 0.0)
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        client.send("e", task.work_id, "exit")
        echo.take()
        echo.caller.ask("release_unit", task.work_id)
        if not soon:
            assert ends(client, 1) == [("a", 0, -11)]
        task.part(url, "a", 0, "last", finish=True)
        if soon:
            assert pieces(client, 1) == [("a", "last", True)]
        echo.say(url, "e", task.work_id)
        reply = client.receive()
        assert (reply["request_id"], reply["error"]["code"]) == ("e", 0)
        client.assert_silent()


def test_what_was_said_before_the_end_comes(echo, door, monkeypatch):
    monkeypatch.setattr(answers, "LAST_WORDS_SECONDS", 60.0)
    with door.client() as client:
        task = echo.set_up(client)
        for request_id in ("a", "b"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        task.part(url, "a", 0, "text")
        task.part(url, "a", 1, finish=True)
        task.die()
        assert pieces(client, 2) == [("a", "text", False), ("a", "", True)]
        wait_until(lambda: remote_tasks(door) == [])
        client.send("r", "sys", "reset")
        assert client.receive()["request_id"] == "r"
        client.assert_silent()
        assert f"echo.{echo.caller.register('echo')[0]}" == task.work_id
        assert ends(client, 1) == [("b", 0, -11)]


def test_a_unit_that_is_replaced(echo, door, folder):
    with door.client() as client, Caller(remote(door).url) as caller:
        task = echo.set_up(client)
        for request_id in ("a", "b"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        client.send("s", "echo", "sing")
        echo.take()
        task.die()
        echo.rpc.close(0)
        frames = [client.receive() for _ in range(3)]
        assert sorted((frame["request_id"], frame["error"]["code"]) for frame in frames) == [("a", -11), ("b", -11), ("s", -9)]
        successor = SpokenUnit(caller, folder)
        other = successor.set_up(client)
        successor.say(url, "a", task.work_id, "too late", "echo.utf-8")
        client.infer(other.work_id, "x", "a")
        url = other.asked()
        other.part(url, "a", 0, "mine", finish=True)
        assert pieces(client, 1) == [("a", "mine", True)]
        client.assert_silent()


def test_ids_that_nobody_asked_with(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        task.part(url, "setup", 0, "of itself")
        assert pieces(client, 1) == [("setup", "of itself", False)]
        task.part(url, "a", 0, "some")
        task.part(url, "unknown", 1, "more")
        task.part(url, "unknown", 2, finish=True)
        assert pieces(client, 3) == [("a", "some", False), ("a", "more", False), ("a", "", True)]
        task.die()
        assert ends(client, 1) == [("setup", 1, -11)]
        client.assert_silent()


def test_the_rest_of_an_answer_under_the_next_id(echo, door):
    """The original goes over to an inference that comes in, and to its client, before it has finished the one before."""
    with door.client() as client, door.client() as other:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        task.part(task.asked(), "a", 0, "one")
        assert pieces(client, 1) == [("a", "one", False)]
        other.infer(task.work_id, "x", "b")
        url = task.asked()
        task.part(url, "b", 1, "more")
        task.part(url, "b", 2, finish=True)
        task.part(url, "b", 0, "two")
        task.part(url, "b", 1, finish=True)
        assert pieces(client, 2) == [("a", "more", False), ("a", "", True)]
        assert pieces(other, 2) == [("b", "two", False), ("b", "", True)]


def test_answers_beside_each_other(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        for request_id in ("a", "b"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        for request_id, index in (("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 2)):
            task.part(url, request_id, index, f"{request_id}{index}")
        task.part(url, "b", 2, finish=True)
        task.part(url, "a", 3, finish=True)
        assert [frame[:2] for frame in pieces(client, 7)] == [
            ("b", "b0"),
            ("a", "a0"),
            ("b", "b1"),
            ("a", "a1"),
            ("a", "a2"),
            ("b", ""),
            ("a", ""),
        ]


def test_an_answer_moves_to_who_commanded_last(echo, door):
    with door.client() as client, door.client() as other:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        task.part(task.asked(), "a", 0, "one")
        assert pieces(client, 1) == [("a", "one", False)]
        other.send("w", task.work_id, "work")
        _, url, _ = echo.take()
        echo.say(url, "w", task.work_id)
        task.part(url, "a", 1, finish=True)
        assert [other.receive()["request_id"] for _ in range(2)] == ["w", "a"]
        task.die()
        wait_until(lambda: remote_tasks(door) == [])
        client.assert_silent()
        other.assert_silent()


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_that_comes_twice(echo, door, streams, caplog):
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        for _ in range(2):
            if streams:
                task.part(url, "a", 0, "text")
                task.part(url, "a", 1, finish=True)
            else:
                echo.say(url, "a", task.work_id, "text", "echo.utf-8")
        task.part(url, "b", 0, "of itself", finish=True)
        assert [client.receive()["request_id"] for _ in range(3 if streams else 2)] == [*("a" * (1 + streams)), "b"]
        assert caplog.text.count("has answered 'a' already") == 1
        client.infer(task.work_id, "x", "a")
        task.part(task.asked(), "a", 0, "again", finish=True)
        assert pieces(client, 1) == [("a", "again", True)]


def test_a_linked_task_answers_under_the_last_id(echo, door):
    """What it hears from other tasks it answers under the id of the last inference, as the original does."""
    with door.client() as client:
        task = echo.set_up(client, input=["echo.utf-8", "asr.7"])
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        for _ in range(2):
            task.part(url, "a", 0, "text")
            task.part(url, "a", 1, finish=True)
        task.part(url, "a", 1, finish=True)
        assert pieces(client, 4) == [("a", "text", False), ("a", "", True)] * 2
        client.assert_silent()


def test_an_error_ends_a_stream_with_a_last_frame(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        for request_id, index in (("a", 0), ("b", 1)):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
            if index:
                task.part(url, request_id, 0, "some")
                assert pieces(client, 1) == [(request_id, "some", False)]
            echo.say(url, request_id, task.work_id, code=-11)
            assert ends(client, 1) == [(request_id, index, -11)]
        client.infer(task.work_id, "x", "c")
        task.part(task.asked(), "c", 0, finish=True, code=-11)
        assert ends(client, 1) == [("c", 0, -11)]
        task.die()
        client.assert_silent()


def test_plain_answers(echo, door):
    with door.client() as client:
        task = echo.set_up(client, response_format="echo.utf-8")
        for request_id in ("a", "b", "c"):
            client.infer(task.work_id, "x", request_id)
            url = task.asked()
        echo.say(url, "a", task.work_id, "text", "echo.utf-8")
        echo.say(url, "b", task.work_id, code=-11)
        frames = [client.receive() for _ in range(2)]
        task.die()
        frames.append(client.receive())
        assert [(frame["request_id"], frame["data"], frame["error"]["code"]) for frame in frames] == [
            ("a", "text", 0),
            ("b", "None", -11),
            ("c", "", -11),
        ]
        client.assert_silent()


def test_an_answer_without_an_object(echo, door):
    """What a unit leaves out is filled in."""
    with door.client() as client:
        task = echo.set_up(client, response_format="echo.utf-8")
        client.infer(task.work_id, "x", "a")
        echo.say(task.asked(), "a", task.work_id, "text")
        assert client.receive()["data"] == "text"
        task.die()
        client.assert_silent()


def test_what_is_not_answered_piece_by_piece(echo, door):
    """Chunks of a text before its last, and sound, which many inferences bring."""
    with door.client() as client:
        task = echo.set_up(client)
        for index in range(3):
            chunk = {"delta": "x", "index": index, "finish": index == 2}
            client.send("t", task.work_id, "inference", object="echo.utf-8.stream", data=chunk)
            client.send("s", task.work_id, "inference", object="echo.base64", data="AAAA")
        for _ in range(6):
            task.asked()
        task.die()
        assert sorted(ends(client, 2)) == [("s", 0, -11), ("t", 0, -11)]
        client.assert_silent()


def test_users_who_hear_nothing(echo, door):
    """What is said to linked tasks alone ends an answer, too."""
    with door.client() as client:
        task = echo.set_up(client, enoutput=False)
        for request_id in ("a", "b"):
            client.infer(task.work_id, "x", request_id)
            task.asked()
        task.output.send(b'{"request_id":"a","object":"echo.utf-8.stream","data":{"delta":"x","finish":false,"index":0}}')
        task.output.send(b'{"request_id":"a","object":"echo.utf-8.stream","data":{"delta":"","finish":true,"index":1}}')
        wait_until(lambda: door.call(lambda: len(remote(door)._registry.tasks[task.work_id].answers._open)) == 1)
        task.die()
        assert ends(client, 1) == [("b", 0, -11)]
        client.assert_silent()


def test_a_unit_that_never_answers(echo, door, monkeypatch):
    monkeypatch.setattr(answers, "_MAX_OPEN", 2)
    with door.client() as client:
        task = echo.set_up(client)
        for request_id in ("a", "b", "c"):
            client.infer(task.work_id, "x", request_id)
            task.asked()
        task.die()
        assert ends(client, 2) == [("b", 0, -11), ("c", 0, -11)]
        client.assert_silent()


def test_commands_that_are_never_answered_keep_little(echo, door):
    def kept():
        return door.call(lambda: [(command.action, command.data) for command in remote(door)._peers["echo"]._unanswered])

    with door.client() as client:
        with door.client() as other:
            task = echo.set_up(client)
            for action in ("trigger", "setup"):
                other.send("t", "echo", action, data={"response_format": "x"})
                echo.take()
            assert kept() == [("trigger", "None"), ("setup", {"response_format": "x"})]
        wait_until(lambda: not kept())  # which are those of a client that has gone
        client.infer(task.work_id, "x", "a")
        assert task.asked()


def test_the_end_waits_for_answers_that_have_begun(echo, door):
    def answering():
        return door.call(door.server._answering)

    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        assert not answering()
        task.part(url, "a", 0, "some")
        client.receive()
        assert answering()
        task.part(url, "a", 1, finish=True)
        client.receive()
        assert not answering()
        client.infer(task.work_id, "x", "b")
        task.part(task.asked(), "b", 0, "some")
        client.receive()
        assert answering()
    wait_until(lambda: not answering())  # for nobody


def test_a_task_that_is_reset(echo, door):
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "a")
        url = task.asked()
        client.send("r", "sys", "reset")
        assert client.receive()["request_id"] == "r"
        assert ends(client, 1) == [("a", 0, -11)]
        assert echo.take()[0] == "exit"
        task.part(url, "a", 0, finish=True)
        client.assert_silent()


def test_too_many_inferences_end_like_others(echo, door, monkeypatch):
    monkeypatch.setattr(remote_task, "_MAX_HELD", 0)
    with door.client() as client:
        task = echo.set_up(client)
        task.inferences.close(0)
        wait_until(lambda: not door.call(lambda: remote(door)._registry.tasks[task.work_id]._inference.is_heard))
        client.infer(task.work_id, "x", "a")
        assert ends(client, 1) == [("a", 0, -13)]


# Actions


def test_one_id_for_everything(echo, door):
    """Some clients use the same request_id always."""
    with door.client() as client:
        task = echo.set_up(client)
        client.infer(task.work_id, "x", "1")
        url = task.asked()
        for action in ("taskinfo", "pause", "sing"):
            client.send("1", task.work_id, action)
            echo.take()
        task.part(url, "1", 0, "some")
        echo.say(url, "1", task.work_id, {"model": ""}, "echo.taskinfo")
        echo.say(url, "1", task.work_id)
        assert [client.receive()["object"] for _ in range(3)] == ["echo.utf-8.stream", "echo.taskinfo", "None"]
        echo.rpc.close(0)
        assert client.receive()["error"]["code"] == -9
        task.die()
        frames = [client.receive()]
        assert [frame["data"] for frame in frames] == [{"delta": "", "finish": True, "index": 1}]
        client.assert_silent()


def test_an_action_that_was_given_up(echo, door, monkeypatch):
    """A setup that succeeds too late is undone: its client has been told that it failed."""
    monkeypatch.setattr(peer, "ACCEPT_SECONDS", 0.2)
    with door.client() as client:
        client.send("s", "echo", "setup", data={})
        assert client.receive()["error"]["code"] == -9
        _, url, _ = echo.take()
        task = SpokenTask(echo)
        echo.say(url, "s", task.work_id)
        action, _, command = echo.take()
        assert (action, command["work_id"]) == ("exit", task.work_id)
        assert remote_tasks(door) == []
        client.assert_silent()


def test_a_unit_that_errs_in_its_name(echo, door):
    """The original answers some setups as if it were another unit."""
    with door.client() as client:
        client.send("s", "echo", "setup", data="no object")
        _, url, _ = echo.take()
        echo.say(url, "s", "kws", code=-2)
        assert client.receive()["error"]["code"] == -2
        echo.rpc.close(0)
        wait_until(lambda: not door.call(lambda: remote(door)._peers))
        client.assert_silent()


def test_what_is_said_before_the_output_is_heard_keeps_its_order(echo, door, monkeypatch):
    monkeypatch.setattr(remote_task, "_MAX_UNTOLD", 2)
    with door.client() as client:
        client.send("s", "echo", "setup", data={})
        _, url, _ = echo.take()
        number, _, _ = echo.caller.register("echo")
        for i in range(4):
            echo.say(url, "t", f"echo.{number}", {"delta": "x", "finish": i == 3, "index": i}, "echo.utf-8.stream")
        assert [client.receive()["data"]["index"] for _ in range(4)] == list(range(4))


def test_an_acknowledgement_that_comes_twice(echo, door):
    with door.client() as client:
        client.send("s", "echo", "setup", data={})
        _, url, _ = echo.take()
        number, output_url, _ = echo.caller.register("echo")
        for _ in range(2):
            echo.say(url, "s", f"echo.{number}")
        assert client.ask()["request_id"] == "1"
        echo.caller.publish(output_url)
        reply = client.receive()
        assert (reply["request_id"], reply["work_id"], reply["error"]["code"]) == ("s", f"echo.{number}", 0)
        assert remote_tasks(door) == [f"echo.{number}"]
        client.assert_silent()
