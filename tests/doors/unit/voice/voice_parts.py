"""Parts for tests of the voice units: sound, speech that a fake understands, and units without a network."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import logging
import struct

import numpy as np
from unit_parts import FakeConnection

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.voice.sound_device import NoDeviceError

FRAME = 960  # bytes of 30 ms
SPEECH = b"\x10\x27" * 480  # what `loud` takes for speech
SILENCE = bytes(FRAME)


def loud(frame):
    """A detector of speech for tests."""
    return frame[:2] != b"\0\0"


def speech(seconds):
    return SPEECH * round(seconds / 0.03)


def silence(seconds):
    return SILENCE * round(seconds / 0.03)


def tone(seconds, rate=16000, pitch=440.0):
    return (10000 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)).astype("<i2").tobytes()


def wav(samples, rate=16000, channels=1, bits=16, form=1, size=None, extra=b""):
    """A WAV file; `size` is what its header says of the samples."""
    size = len(samples) if size is None else size
    header = struct.pack("<HHIIHH", form, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits) + extra
    chunks = struct.pack("<4sI", b"fmt ", len(header)) + header + struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    return b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE" + chunks + struct.pack("<4sI", b"data", size) + samples


def packed(sound):
    return base64.b64encode(sound).decode()


class Bench:
    """Units with a bus, and a client, on one loop."""

    def __init__(self):
        self.bus = Bus()
        self.client = FakeConnection("client")
        self.units = []

    def add(self, unit):
        self.units.append(unit)
        return unit

    def send(self, unit, work_id, action, data="None", request_id="r", kind="None", connection=None):
        command = Command(connection or self.client, request_id, work_id, action, kind, data)
        if action == "inference":
            unit.infer(command)
        else:
            unit.handle(command)

    async def ask(self, unit, work_id, action, data="None", **fields):
        """Send a command and wait for its reply."""
        self.client.frames.clear()
        self.send(unit, work_id, action, data, **fields)
        (reply,) = await self.replies(1)
        return reply

    async def replies(self, number):
        """The next replies, when so many are there."""
        await until(lambda: len(self.client.frames) >= number)
        return self.client.take()

    async def set_up(self, unit, **data):
        """The work_id of a new task."""
        reply = await self.ask(unit, unit.name, "setup", {"enoutput": True, **data})
        assert reply["error"]["code"] == 0, reply
        return reply["work_id"]

    def source(self, work_id):
        """Have something there to be linked to."""
        self.bus.open(work_id)

    async def close(self):
        for unit in self.units:
            await unit.shutdown()
            assert not unit.tasks


async def until(condition, seconds=10.0):
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it has not happened in time")


def on_bench(test):
    """Run an async test with a bench, its first argument; all units end well."""

    @functools.wraps(test)
    def run(**fixtures):
        async def main():
            bench = Bench()
            try:
                await asyncio.wait_for(test(bench, **fixtures), 30)
            finally:
                await bench.close()

        asyncio.run(main())

    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return run


class FakeDevice:
    """A microphone that tests speak into, and a loudspeaker that keeps what it plays."""

    def __init__(self):
        self.listeners = []
        self.played = []
        self.broken = False

    def listen(self, hear):
        if self.broken:
            raise NoDeviceError("there is no microphone: none")
        self.listeners.append(hear)
        return lambda: self.listeners.remove(hear)

    def check_speaker(self):
        if self.broken:
            raise NoDeviceError("there is no loudspeaker: none")

    def close(self):
        pass

    async def play(self, sound, stopped):
        if self.broken:
            raise NoDeviceError("it cannot be played: none")
        self.played.append(sound)


class Logs(logging.Handler):
    """What the unit door logs."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logger = logging.getLogger("trivium.unit")
        logger.addHandler(self)
        asyncio.current_task().add_done_callback(lambda _: logger.removeHandler(self))

    def emit(self, record):
        self.lines.append(record.getMessage())

    def has(self, text):
        return any(text in line for line in self.lines)
