"""Tasks linked to tasks, and whose the output of a task is. No network: units get commands directly."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from engine_parts import make_engine
from fake_native import continuation
from unit_parts import FakeConnection, wait_until

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.engines import Engines
from trivium.doors.unit.llm import LlmUnit
from trivium.doors.unit.router import Router
from trivium.doors.unit.sys_unit import SysUnit
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit


class PlainTask(Task):
    """Keeps what it receives."""

    def __init__(self, *args):
        super().__init__(*args)
        self.received = []
        self.stopped = 0
        self.closed = False

    def infer(self, command):
        text = self.reader.read_text(command)
        if text is not None:
            self.unit.bus.publish(ChainMessage(self.work_id, command.request_id, self.setup.response_format, text))

    def receive(self, message):
        self.received.append(message)

    def stop(self):
        self.stopped += 1

    def close(self):
        super().close()
        self.closed = True

    def on_trigger(self, command):
        self.unit.bus.publish(ChainMessage(self.work_id, command.request_id, "kws.bool", True))


class PlainUnit(Unit):
    def __init__(self, bus, name, upstreams=(), max_tasks=8):
        super().__init__(bus, max_tasks)
        self.name = name
        self.upstreams = frozenset(upstreams)
        self.actions = Unit.actions | {"trigger": "on_trigger"}
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, work_id, setup, command):
        await self.gate.wait()
        if "fault" in setup.values:
            raise RuntimeError("cannot")
        return PlainTask(self, work_id, setup, command)


class House:
    """All units of one loop."""

    def __init__(self, engine, **options):
        self.bus = Bus()
        config = UnitConfig(**options)
        engines = Engines(Dispatcher(engine), config.models, config.unit_default_model)
        self.llm = LlmUnit(self.bus, config, engines)
        self.kws = PlainUnit(self.bus, "kws")
        self.asr = PlainUnit(self.bus, "asr", ["kws"])
        self.tts = PlainUnit(self.bus, "tts", ["llm", "kws"])
        self.units = {unit.name: unit for unit in (self.kws, self.asr, self.llm, self.tts)}
        self.router = Router(SysUnit(self.bus, self.units), self.units)
        self.engine = engine

    def send(self, connection, work_id, action, request_id="1", **fields):
        self.router.route(connection, {"request_id": request_id, "work_id": work_id, "action": action, **fields})

    async def ask(self, connection, *args, **fields):
        """The one reply to a command."""
        before = len(connection.frames)
        self.send(connection, *args, **fields)
        while len(connection.frames) == before:
            await asyncio.sleep(0.001)
        return connection.replies[before]

    async def set_up(self, connection, unit, **data):
        fields = {"model": "fake", "response_format": f"{unit}.utf-8.stream", "input": f"{unit}.utf-8", "enoutput": True}
        reply = await self.ask(connection, unit, "setup", data=fields | {"prompt": "", "temperature": 0} | data)
        assert reply["error"]["code"] == 0, reply
        return reply["work_id"]

    async def until(self, condition):
        for _ in range(10_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it has not happened in time")


@pytest.fixture
def in_house():
    """Run an async function with a house."""
    with make_engine() as engine:

        def run(story, **options):
            async def play():
                house = House(engine, **options)
                await story(house)
                for unit in house.units.values():
                    await unit.shutdown()

            asyncio.run(asyncio.wait_for(play(), 60))
            stats = engine.stats()
            wait_until(lambda: (engine.stats().running, engine.stats().used_blocks) == (0, 0))
            assert stats.total_blocks

        yield run
        engine.native.gate.set()


def letters(prompt, count):
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def finished(connection, request_id=None):
    return [
        reply
        for reply in connection.replies
        if isinstance(reply["data"], dict) and reply["data"].get("finish") and request_id in (None, reply["request_id"])
    ]


def said(connection):
    return "".join(reply["data"]["delta"] for reply in connection.replies if "delta" in reply["data"])


def test_a_voice_chain(in_house):
    async def story(house):
        client = FakeConnection()
        kws = await house.set_up(client, "kws", response_format="kws.bool", input="sys.pcm")
        asr = await house.set_up(client, "asr", input=["sys.pcm", kws])
        llm = await house.set_up(client, "llm", input=[asr, kws], max_token_len=9)
        tts = await house.set_up(client, "tts", input=[llm, kws])
        assert (kws, asr, llm, tts) == ("kws.1000", "asr.1001", "llm.1002", "tts.1003")
        client.take()
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8.stream", {"delta": "what", "finish": False, "index": 0}))
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8.stream", {"delta": "what is it.", "finish": True, "index": 1}))
        await house.until(lambda: finished(client))
        assert said(client) == letters("what is it.", 9)
        assert {(reply["request_id"], reply["work_id"]) for reply in client.take()} == {("1", llm)}  # of the setup
        heard = [message.data for message in house.tts.tasks[tts].received]
        assert "".join(data["delta"] for data in heard) == letters("what is it.", 9)
        assert [data["finish"] for data in heard] == [False] * 3 + [True]
        assert [data["index"] for data in heard] == list(range(4))
        assert house.tts.tasks[tts].received[0].work_id == llm
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8", "plain"))
        await house.until(lambda: finished(client))
        assert said(client) == letters("plain", 9)
        # Not linked any more: nothing is answered.
        assert (await house.ask(client, llm, "unlink", data=asr))["error"]["code"] == 0
        client.take()
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8", "plain"))
        await asyncio.sleep(0.05)
        assert client.take() == []
        assert (await house.ask(client, llm, "link", data=asr))["error"]["code"] == 0
        assert (await house.ask(client, llm, "taskinfo"))["data"]["inputs"] == [kws, asr]
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8", "again"))
        await house.until(lambda: finished(client))
        assert said(client) == letters("again", 9)

    in_house(story)


def test_a_wake_word_ends_the_running_answer_and_nothing_else(in_house):
    async def story(house):
        client = FakeConnection()
        kws = await house.set_up(client, "kws", input="sys.pcm")
        llm = await house.set_up(client, "llm", input=["llm.utf-8", kws], max_token_len=200)
        client.take()
        house.send(client, kws, "trigger")  # no effect while idle
        house.engine.native.gate.clear()
        house.send(client, llm, "inference", "a", object="llm.utf-8", data="hello")
        house.send(client, llm, "inference", "b", object="llm.utf-8", data="next")
        await house.until(lambda: house.engine.stats().running + house.engine.stats().waiting)
        house.send(client, kws, "trigger", "wake")
        assert len(finished(client, "a")) == 1
        house.engine.native.gate.set()
        await house.until(lambda: finished(client, "b"))
        assert len(finished(client)) == 2
        assert said(client) == letters("next", 200)

    in_house(story)


def test_links_end_with_the_task_on_either_side(in_house):
    async def story(house):
        client = FakeConnection()
        asr = await house.set_up(client, "asr")
        llm = await house.set_up(client, "llm", input=["llm", asr], max_token_len=3)
        assert house.bus.is_heard(asr)
        await house.ask(client, llm, "exit")
        assert not house.bus.is_heard(asr)
        llm = await house.set_up(client, "llm", input=["llm", asr], max_token_len=3)
        await house.ask(client, asr, "exit")
        assert (await house.ask(client, llm, "link", data=asr))["error"]["code"] == -20
        assert (await house.ask(client, llm, "unlink", data=asr))["error"]["code"] == 0

    in_house(story)


def test_linking_twice_answers_once(in_house):
    async def story(house):
        client = FakeConnection()
        asr = await house.set_up(client, "asr")
        llm = await house.set_up(client, "llm", input=[asr], max_token_len=3)
        assert (await house.ask(client, llm, "link", data=asr))["error"]["code"] == 0
        client.take()
        house.bus.publish(ChainMessage(asr, "x", "asr.utf-8", "once"))
        await house.until(lambda: finished(client))
        await asyncio.sleep(0.05)
        assert len(finished(client)) == 1

    in_house(story)


def test_a_missing_upstream_is_a_warning(in_house, caplog):
    async def story(house):
        client = FakeConnection()
        with caplog.at_level(logging.WARNING, "trivium.unit"):
            llm = await house.set_up(client, "llm", input=["llm.utf-8", "asr.1001", "kws.1000"])
        assert "asr.1001" in caplog.text
        assert len((await house.ask(client, llm, "taskinfo"))["data"]["warnings"]) == 2
        await house.ask(client, llm, "unlink", data="asr.1001")
        assert len((await house.ask(client, llm, "taskinfo"))["data"]["warnings"]) == 1

    in_house(story)


def test_too_many_heard_texts_are_an_error_frame(in_house):
    async def story(house):
        client = FakeConnection()
        asr = await house.set_up(client, "asr")
        await house.set_up(client, "llm", input=[asr], max_token_len=3)
        client.take()
        house.engine.native.gate.clear()
        for text in ("one", "two", "three"):
            house.bus.publish(ChainMessage(asr, "x", "asr.utf-8", text))
        (reply,) = client.take()
        assert (reply["error"]["code"], reply["data"]["finish"]) == (-13, True)
        house.engine.native.gate.set()
        await house.until(lambda: len(finished(client)) == 2)

    in_house(story, unit_queue=1)


def test_a_linked_task_that_fails_disturbs_nobody(in_house, caplog):
    async def story(house):
        client = FakeConnection()
        llm = await house.set_up(client, "llm", max_token_len=6)
        tts = await house.set_up(client, "tts", input=[llm])

        def fail(message):
            raise RuntimeError("no")

        house.bus.subscribe(llm, fail)
        house.send(client, llm, "inference", object="llm.utf-8", data="hello")
        await house.until(lambda: finished(client))
        assert said(client) == letters("hello", 6)
        assert len(house.tts.tasks[tts].received) == 3

    in_house(story)
    assert "failed on its output" in caplog.text


# Ownership


def test_output_goes_to_the_connection_that_commanded_last(in_house):
    async def story(house):
        first, second = FakeConnection("first"), FakeConnection("second")
        llm = await house.set_up(first, "llm", max_token_len=60)
        first.take()
        house.engine.native.gate.clear()
        house.send(first, llm, "inference", "a", object="llm.utf-8", data="hello")
        await house.ask(second, llm, "taskinfo", "t")
        house.engine.native.gate.set()
        await house.until(lambda: finished(second))
        assert first.replies == []
        assert {reply["request_id"] for reply in second.replies} == {"t", "a"}

    in_house(story)


def test_a_queued_question_leaves_the_running_answer_where_it_is(in_house):
    async def story(house):
        first, second = FakeConnection("first"), FakeConnection("second")
        llm = await house.set_up(first, "llm", max_token_len=30)
        first.take()
        house.engine.native.gate.clear()
        house.send(first, llm, "inference", "a", object="llm.utf-8", data="hello")
        house.send(second, llm, "inference", "b", object="llm.utf-8", data="next")
        house.engine.native.gate.set()
        await house.until(lambda: finished(second))
        assert {reply["request_id"] for reply in first.replies} == {"a"}
        assert {reply["request_id"] for reply in second.replies} == {"b"}
        assert (said(first), said(second)) == (letters("hello", 30), letters("next", 30))

    in_house(story)


def test_what_a_vanished_client_asked_goes_to_the_next_one(in_house):
    async def story(house):
        first, second = FakeConnection("first"), FakeConnection("second")
        llm = await house.set_up(first, "llm", max_token_len=30)
        house.engine.native.gate.clear()
        house.send(first, llm, "inference", "a", object="llm.utf-8", data="hello")
        first.closed = True
        house.send(second, llm, "inference", "b", object="llm.utf-8", data="next")
        house.engine.native.gate.set()
        await house.until(lambda: finished(second, "b"))
        assert [reply["request_id"] for reply in finished(second)] == ["a", "b"]

    in_house(story)


def test_frames_grow_while_a_line_is_busy_and_stay_below_a_kilobyte(in_house):
    async def story(house):
        client = FakeConnection()
        llm = await house.set_up(client, "llm", max_token_len=240)
        tts = await house.set_up(client, "tts", input=[llm])
        client.take()
        client.slow = True
        house.send(client, llm, "inference", object="llm.utf-8", data="hello")
        await house.until(lambda: finished(client))
        assert said(client) == letters("hello", 240)
        assert len(client.frames) == 2
        assert len(house.tts.tasks[tts].received) == 81  # linked tasks do not wait for the line

    in_house(story)


# Setups


def test_a_reset_during_a_setup_ends_it(in_house):
    async def story(house):
        client, other = FakeConnection(), FakeConnection()
        house.kws.gate.clear()
        house.send(client, "kws", "setup", "s", data={"model": "m", "response_format": "f", "enoutput": True})
        house.send(client, "kws", "taskinfo", "t")
        await asyncio.sleep(0)
        house.send(other, "sys", "reset")
        house.kws.gate.set()
        await house.until(lambda: len(client.frames) == 2)
        setup, info = client.replies
        assert (setup["error"]["code"], setup["work_id"]) == (-5, "kws")
        assert info["data"] == []

    in_house(story)


def test_setups_under_way_count_and_commands_of_others_do_not_wait(in_house):
    async def story(house):
        first, second = FakeConnection(), FakeConnection()
        house.kws.max_tasks = 1
        house.kws.gate.clear()
        data = {"model": "m", "response_format": "f", "enoutput": True}
        house.send(first, "kws", "setup", data=data)
        await asyncio.sleep(0)
        assert (await house.ask(second, "kws", "setup", data=data))["error"]["code"] == -21
        assert (await house.ask(second, "kws", "taskinfo"))["data"] == []
        assert (await house.ask(first, "sys", "ping"))["error"]["code"] == 0  # nor do those to other units
        for i in range(70):
            house.send(first, "kws", "taskinfo", str(i))
        refused = first.take()[1:]
        assert [(reply["request_id"], reply["error"]["code"]) for reply in refused] == [(str(i), -13) for i in range(64, 70)]
        house.kws.gate.set()
        await house.until(lambda: len(first.frames) == 65)
        assert first.replies[0]["work_id"] == "kws.1000"

    in_house(story)


def test_a_task_does_not_keep_what_its_setup_brought(in_house):
    async def story(house):
        client = FakeConnection()
        llm = await house.set_up(client, "llm", anything=[0] * 1000)
        assert house.llm.tasks[llm].setup.values == {}
        assert (await house.ask(client, llm, "taskinfo"))["data"]["model"] == "fake"

    in_house(story)


def test_a_fault_in_a_setup_is_an_error_reply(in_house, caplog):
    async def story(house):
        client = FakeConnection()
        data = {"model": "m", "response_format": "f", "enoutput": True, "fault": 1}
        assert (await house.ask(client, "kws", "setup", data=data))["error"]["code"] == -5
        assert (await house.ask(client, "kws", "taskinfo"))["data"] == []

    in_house(story)
    assert "cannot" in caplog.text


def test_a_fault_in_a_command_is_an_error_reply(in_house, caplog):
    async def story(house):
        client = FakeConnection()
        kws = await house.set_up(client, "kws")
        house.kws.tasks[kws].on_pause = None
        assert (await house.ask(client, kws, "pause"))["error"]["code"] == -10
        assert (await house.ask(client, kws, "work"))["error"]["code"] == 0

    in_house(story)
    assert "TypeError" in caplog.text


def test_whatever_is_sent_is_answered_and_nothing_breaks(in_house, caplog):
    """Random messages of the protocol's words, in two conversations at once."""
    dice = random.Random(1)
    odd = [None, True, 0, -1, 1.5, "", "None", "llm.1000", [], ["x"], {}, {"delta": "x"}, "{}", "x" * 300, {"a": {"b": []}}]
    chunk = {"delta": "hi", "index": 0, "finish": True}
    good = {
        "model": "fake",
        "response_format": "llm.utf-8.stream",
        "input": ["llm", "kws.1000"],
        "enoutput": True,
        "prompt": "",
    }
    work_ids = ["sys", "llm", "", "llm.1000", "llm.1001", "kws", "kws.1000", "tts.9", "vad", ".", "llm.", "x" * 300]
    actions = [
        "setup",
        "inference",
        "link",
        "unlink",
        "pause",
        "work",
        "exit",
        "taskinfo",
        "ping",
        "reset",
        "lsmode",
        "dance",
        "",
    ]

    def message():
        fields = {
            "request_id": "1",
            "work_id": dice.choice(work_ids),
            "action": dice.choice(actions),
            "object": dice.choice(["llm.utf-8.stream", "llm.utf-8", "llm.base64", "None", 5]),
            "data": dice.choice([good, good | {"max_token_len": 2}, chunk, "hello", "kws.1000", dice.choice(odd)]),
        }
        if dice.random() < 0.1:
            fields[dice.choice(list(fields))] = dice.choice(odd)
        return fields

    async def story(house):
        clients = [FakeConnection("a"), FakeConnection("b")]
        for _ in range(1500):
            house.router.route(dice.choice(clients), message())
            if dice.random() < 0.2:
                await asyncio.sleep(0.001)
        await house.until(lambda: not any(task.outputs for unit in house.units.values() for task in unit.tasks.values()))
        for client in clients:
            client.take()
            assert (await house.ask(client, "sys", "ping"))["error"]["code"] == 0

    in_house(story, unit_max_tasks=3)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_unit_may_know_more_actions(in_house):
    async def story(house):
        client = FakeConnection()
        reply = await house.ask(client, "kws.1", "trigger")
        assert reply["error"]["code"] == -6
        reply = await house.ask(client, "llm.1", "trigger")
        assert reply["error"]["code"] == -3

    in_house(story)


def test_messages_for_other_processes_are_frames():
    message = ChainMessage("llm.1000", "1", "llm.utf-8", "text")
    command = Command(FakeConnection(), "1", "llm.1000", "x")
    command.reply(object="llm.utf-8", data="text")
    assert message.frame()[20:] == command.connection.frames[0][20:]
