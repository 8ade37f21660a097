"""Commands that wait for a setup to end, and what a unit gives up in time. No network."""

from __future__ import annotations

import asyncio
import time

from unit_parts import FakeConnection

from trivium.doors.unit import unit as unit_module
from trivium.doors.unit import waiting
from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.framer import Fault
from trivium.doors.unit.input import QUIET_SECONDS
from trivium.doors.unit.receiver import Receiver
from trivium.doors.unit.router import Router
from trivium.doors.unit.sys_unit import SysUnit
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit
from trivium.doors.unit.waiting import WaitingCommands

SETUP = {"model": "m", "response_format": "echo.utf-8", "input": "echo", "enoutput": True}


class EchoTask(Task):
    """Answers with what it reads."""

    def infer(self, command):
        text = self.reader.read_text(command)
        if text is not None:
            command.reply(data=text)

    def receive(self, message):
        raise AssertionError("it is linked to nothing")

    def stop(self):
        pass


class EchoUnit(Unit):
    """Setups end when the gate is open."""

    name = "echo"

    def __init__(self):
        super().__init__(Bus(), 8)
        self.gate = asyncio.Event()
        self.created = []

    async def create(self, work_id, setup, command):
        await self.gate.wait()
        self.created.append(command.request_id)
        return EchoTask(self, work_id, setup, command)


class Desk:
    """A unit with its router, and one client."""

    def __init__(self):
        self.unit = EchoUnit()
        self.client = FakeConnection()
        units = {"echo": self.unit}
        self.router = Router(SysUnit(self.unit.bus, units), units)

    def send(self, request_id, action, work_id="echo", connection=None, **fields):
        message = {"request_id": request_id, "work_id": work_id, "action": action, **fields}
        self.router.route(connection or self.client, message)

    async def replies(self, number):
        for _ in range(10_000):
            if len(self.client.frames) >= number:
                return self.client.take()
            await asyncio.sleep(0.001)
        raise AssertionError(f"{number} replies have not come")

    async def set_up(self):
        self.unit.gate.set()
        self.send("s", "setup", data=SETUP)
        (reply,) = await self.replies(1)
        assert reply["error"]["code"] == 0
        return reply["work_id"]


def at_desk(test):
    """Run an async test with a desk, its first argument."""

    def run():
        async def play():
            desk = Desk()
            await test(desk)
            await desk.unit.shutdown()
            assert not desk.unit.tasks
            assert not desk.unit._waiting
            assert not desk.unit._setups

        asyncio.run(asyncio.wait_for(play(), 60))

    run.__name__ = test.__name__
    return run


def codes(replies):
    return [(reply["request_id"], reply["work_id"], reply["error"]["code"]) for reply in replies]


@at_desk
async def test_the_bytes_that_wait_for_a_setup_have_a_limit(desk):
    desk.send("s", "setup", data=SETUP)
    large = SETUP | {"more": "x" * (3 * 2**20)}
    for i in range(4):
        desk.send(str(i), "setup", data=large)
    desk.send("small", "taskinfo")  # there is room for it
    desk.send("large", "link", "echo.1000", data="x" * (3 * 2**20))
    refused = desk.client.take()
    assert codes(refused) == [("2", "echo", -13), ("3", "echo", -13), ("large", "echo.1000", -13)]
    assert refused[0]["error"]["message"] == "Already working. Too many commands wait for a setup to end."
    assert desk.unit._waiting[desk.client].num_bytes < waiting.MAX_BYTES
    desk.unit.gate.set()
    assert codes(await desk.replies(4)) == [
        ("s", "echo.1000", 0),
        ("0", "echo.1001", 0),
        ("1", "echo.1002", 0),
        ("small", "echo", 0),
    ]


@at_desk
async def test_the_bytes_of_all_that_wait_have_a_limit(desk):
    others = [FakeConnection(str(i)) for i in range(20)]
    for other in others:
        desk.send("s", "setup", connection=other, data=SETUP)
        for i in range(2):
            desk.send(str(i), "taskinfo", connection=other, data="x" * (3 * 2**20))
    num_kept = sum(kept.num_bytes for kept in desk.unit._waiting.values())
    assert 60 * 2**20 < num_kept <= unit_module._MAX_WAITING_BYTES
    assert codes(others[19].take()) == [("0", "echo", -13), ("1", "echo", -13)]
    desk.unit.gate.set()
    while desk.unit._waiting:
        await asyncio.sleep(0.001)
    assert all(len(other.frames) == 3 for other in others[:10])
    desk.send("now", "taskinfo")
    assert codes(await desk.replies(1)) == [("now", "echo", 0)]


@at_desk
async def test_what_waits_is_done_in_order_and_unchanged(desk):
    desk.send("a", "setup", data=SETUP)
    for i in range(30):
        desk.send(f"b{i}", "setup" if i % 10 == 0 else "unlink", "echo" if i % 10 == 0 else "echo.1000", data=SETUP)
    desk.send("c", "link", "echo.1000", data="llm.1")
    assert not desk.client.frames
    desk.unit.gate.set()
    replies = await desk.replies(32)
    assert [reply["request_id"] for reply in replies] == ["a", *(f"b{i}" for i in range(30)), "c"]
    assert [reply["work_id"] for reply in replies[:12:11]] == ["echo.1000", "echo.1002"]
    assert replies[-1]["error"]["code"] == -20
    assert desk.unit.created == ["a", "b0", "b10", "b20"]


@at_desk
async def test_a_reset_ends_the_setups_that_wait_too(desk):
    desk.send("a", "setup", data=SETUP)
    desk.send("b", "setup", data=SETUP)
    desk.send("c", "taskinfo")
    await asyncio.sleep(0)
    desk.send("r", "reset", "sys")
    desk.send("d", "setup", data=SETUP)  # after the reset
    desk.unit.gate.set()
    replies = await desk.replies(5)
    assert codes(replies) == [("r", "sys", 0), ("a", "echo", -5), ("b", "echo", -5), ("c", "echo", 0), ("d", "echo.1000", 0)]
    assert replies[3]["data"] == []
    assert desk.unit.created == ["a", "d"]


@at_desk
async def test_a_reset_right_behind_a_setup_ends_it(desk):
    desk.unit.gate.set()
    desk.send("a", "setup", data=SETUP)
    desk.send("r", "reset", "sys")
    desk.send("b", "setup", data=SETUP)
    assert codes(await desk.replies(3)) == [("r", "sys", 0), ("a", "echo", -5), ("b", "echo.1000", 0)]
    assert desk.unit.created == ["b"]


@at_desk
async def test_the_end_refuses_the_setups_that_wait(desk):
    desk.send("a", "setup", data=SETUP)
    desk.send("b", "setup", data=SETUP)
    await asyncio.sleep(0)
    end = asyncio.ensure_future(desk.unit.shutdown())
    await asyncio.sleep(0)
    desk.unit.gate.set()
    await end
    assert codes(desk.client.take()) == [("a", "echo", -5), ("b", "echo", -5)]


@at_desk
async def test_data_that_cannot_be_kept_is_an_error(desk):
    deep = []
    for _ in range(300):
        deep = [deep]
    desk.send("a", "setup", data=SETUP)
    desk.send("b", "setup", data=deep)
    assert codes(desk.client.take()) == [("b", "echo", -2)]
    desk.unit.gate.set()
    assert codes(await desk.replies(1)) == [("a", "echo.1000", 0)]


def test_commands_are_kept_as_text():
    kept = WaitingCommands(FakeConnection())
    command = Command(FakeConnection(), "1", "echo", "setup", "echo.setup", {"a": [[], {"é": None}], "b": 1.5})
    assert kept.add(command, 3, 1000)
    assert not kept.add(command, 3, 10)
    resets, taken = kept.take()
    assert resets == 3
    assert (taken.request_id, taken.work_id, taken.action, taken.object) == ("1", "echo", "setup", "echo.setup")
    assert taken.data == command.data
    assert kept.take() is None
    assert kept.num_bytes == 0


# What is given up in time


@at_desk
async def test_streamed_input_that_does_not_go_on_is_refused(desk):
    task = await desk.set_up()

    def chunk(request_id, index, finish=False):
        data = {"delta": request_id, "index": index, "finish": finish}
        desk.send(request_id, "inference", task, object="echo.utf-8.stream", data=data)

    chunk("late", 0)
    now = time.monotonic()
    desk.unit.expire(now)
    assert not desk.client.frames
    desk.unit.expire(now + QUIET_SECONDS + 1)
    (reply,) = desk.client.take()
    assert codes([reply]) == [("late", task, -25)]
    assert reply["error"]["message"] == "Stream data index error. Nothing more has come for 60 s."
    chunk("late", 1, finish=True)
    assert not desk.client.frames  # it has had its error
    chunk("good", 0, finish=True)
    assert desk.client.take()[0]["data"] == "good"


def test_a_client_that_is_not_read_from_is_not_silent():
    told = []

    class Listener:
        def route(self, connection, received):
            told.append(received)

    receiver = Receiver(FakeConnection(), Listener())
    receiver.feed(b'{"request_id":"1","data":[')
    receiver.pause(True)
    receiver.expire(time.monotonic() + 1000)
    assert receiver.num_pending
    receiver.pause(False)
    receiver.expire(time.monotonic() + 20)
    receiver.feed(b"{}]}")
    assert told == [{"request_id": "1", "data": [{}]}]
    receiver.feed(b"{")
    receiver.expire(time.monotonic() + 31)
    assert told[1:] == [Fault.JSON]


# Data


@at_desk
async def test_an_inference_without_data_asks_nothing(desk):
    task = await desk.set_up()
    desk.send("none", "inference", task, object="echo.utf-8")
    desk.send("null", "inference", task, object="echo.utf-8", data=None)
    assert codes(desk.client.take()) == [("none", task, -2), ("null", task, -2)]
    desk.send("text", "inference", task, object="echo.utf-8", data="None")
    assert desk.client.take()[0]["data"] == "None"


@at_desk
async def test_bytes_are_base64_for_whatever_is_no_inference(desk):
    task = await desk.set_up()
    desk.send("i", "inference", task, object="echo.base64", data=b"hello")
    desk.send("j", "inference", task, object="echo.utf-8", data=b"hello")
    assert [reply["data"] for reply in desk.client.take()] == ["hello", "aGVsbG8="]
    for work_id, action in (("echo", "setup"), (task, "link"), (task, "unlink"), ("sys", "uartsetup"), ("kws.1", "inference")):
        desk.send("x", action, work_id, data=b"hello")
    assert [reply["error"]["code"] for reply in await desk.replies(5)] == [-3, -4, -2, -20, 0]  # two wait for the setup
