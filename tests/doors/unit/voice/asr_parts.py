"""Parts for tests of the unit asr: a recogniser that counts, and units with it."""

from __future__ import annotations

from voice_parts import FakeDevice, packed, silence, speech, until

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.asr import AsrUnit
from trivium.doors.unit.voice.models import SpeechModels

FIELDS = {"model": "whisper-tiny", "response_format": "asr.utf-8.stream", "input": "asr.base64"}
SENTENCE = speech(0.6) + silence(1.2)


class FakeRecogniser:
    def __init__(self, languages):
        self.languages = languages
        self.calls = []
        self.broken = False
        self.gate = None

    def transcribe(self, sound, language):
        self.calls.append((len(sound), language))
        if self.gate is not None:
            self.gate.wait(10)
        if self.broken:
            raise RuntimeError("the model is broken\nin some way")
        return f"Heard {len(self.calls)}"


class FakeRecognisers:
    def __init__(self, languages=("en",)):
        self.recogniser = FakeRecogniser(list(languages))
        self.users = 0

    async def acquire(self, model):
        if model.target == "/broken":
            raise UnitError(Code.MODEL, "'broken' cannot be loaded: it is no model")
        self.users += 1
        return self.recogniser

    def release(self, model):
        self.users -= 1

    def close(self):
        pass


def add_unit(bench, kind=AsrUnit, languages=("en",), configured=None, device=None):
    recognisers = FakeRecognisers(languages)
    unit = bench.add(kind(bench.bus, 8, SpeechModels(configured or {}), device or FakeDevice(), recognisers))
    return unit, recognisers.recogniser


def feed(bench, unit, task, sound, kind="asr.base64", **fields):
    bench.send(unit, task, "inference", packed(sound), kind=kind, **fields)


async def heard_out(unit, task):
    """All sound that has come so far has been heard."""
    done = []
    unit.tasks[task].worker.put(lambda: done.append(1))
    await until(lambda: done)


async def sentence(bench):
    """The frames of one sentence: numbered, one last frame, one id."""
    frames = []
    while not frames or not frames[-1]["data"]["finish"]:
        await until(lambda: bench.client.frames)
        frames += [*map(dict, bench.client.replies[:1])]
        del bench.client.frames[0]
    assert [frame["data"]["index"] for frame in frames] == list(range(len(frames)))
    assert len({(frame["request_id"], frame["work_id"], frame["object"]) for frame in frames}) == 1
    assert all(frame["error"]["code"] == 0 for frame in frames[:-1])
    return frames
