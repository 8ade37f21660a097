"""The unit `kws` with a spotter that takes certain bytes for its word."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from voice_parts import FakeDevice, Logs, on_bench, packed, until, wav

from trivium.doors.unit.voice import kws as module
from trivium.doors.unit.voice import listening
from trivium.doors.unit.voice.kws import KwsUnit
from trivium.doors.unit.voice.models import SpeechModels
from trivium.doors.unit.voice.spotter import PhraseError, Spotted

WAKE = b"WAKE" * 100
FIELDS = {"model": "pocketsphinx", "response_format": "kws.bool", "input": "kws.base64", "kws": "HELLO"}


class FakeSpotter:
    made = ()
    gate = None
    begun = 0

    def __init__(self, phrases, *, ease):
        if "xyzzy" in phrases:
            raise PhraseError("the dictionary has no 'xyzzy'")
        self.phrases, self.ease, self.heard, self.forgot = phrases, ease, b"", 0
        self.finished, self.half = 0, False
        FakeSpotter.made = (*FakeSpotter.made, self)

    def hear(self, sound):
        if sound.startswith(b"FAIL"):
            raise RuntimeError("the decoder is broken\nin some way")
        FakeSpotter.begun += 1
        if self.gate is not None:
            self.gate.wait(10)
        self.heard += sound
        self.half = sound.endswith(b"WA")
        return [Spotted(self.phrases[0], 1.234)] * sound.count(WAKE)

    def finish(self):
        self.finished += 1
        half, self.half = self.half, False
        return [Spotted(self.phrases[0], 2.0)] * half

    def forget(self):
        self.forgot += 1


@pytest.fixture(autouse=True)
def spotters(monkeypatch):
    monkeypatch.setattr(module, "Spotter", FakeSpotter)
    monkeypatch.setattr(FakeSpotter, "made", ())
    monkeypatch.setattr(FakeSpotter, "begun", 0)


def add_unit(bench, device=None, max_tasks=8):
    return bench.add(KwsUnit(bench.bus, max_tasks, SpeechModels({}), device or FakeDevice()))


def feed(bench, unit, task, sound, **fields):
    bench.send(unit, task, "inference", packed(sound), kind="kws.base64", **fields)


@on_bench
async def test_a_wake_word_is_told_to_the_owner_and_to_linked_tasks(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    assert task == "kws.1000"
    told = []
    bench.bus.subscribe(task, told.append)
    feed(bench, unit, task, WAKE, request_id="a")
    (reply,) = await bench.replies(1)
    assert (reply["object"], reply["data"], reply["request_id"], reply["work_id"]) == ("kws.bool", True, "a", task)
    assert reply["error"] == {"code": 0, "message": ""}
    assert [(message.object, message.data) for message in told] == [("kws.bool", True)]


@on_bench
async def test_without_enoutput_only_linked_tasks_are_told(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS, enoutput=False)
    told = []
    bench.bus.subscribe(task, told.append)
    feed(bench, unit, task, WAKE)
    await until(lambda: told)
    assert bench.client.take() == []


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("kws.json", '{"keyword":"hello","start_time":1.23}'),
        ("kws.json.stream", {"delta": '{"keyword":"hello","start_time":1.23}', "finish": True, "index": 0}),
        ("kws.bool.stream", True),
    ],
)
@on_bench
async def test_other_formats(bench, form, data):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": form})
    feed(bench, unit, task, WAKE)
    (reply,) = await bench.replies(1)
    assert (reply["object"], reply["data"]) == (form, data)


@on_bench
async def test_trigger_is_a_wake_without_an_ack(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    reply = await bench.ask(unit, task, "trigger", request_id="t")
    assert (reply["object"], reply["data"], reply["request_id"]) == ("kws.bool", True, "r")  # the setup's, as for any wake
    assert (await bench.ask(unit, "kws.7", "trigger"))["error"]["code"] == -6


@on_bench
async def test_pause_and_work(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    assert (await bench.ask(unit, task, "pause"))["error"]["code"] == 0
    (spotter,) = FakeSpotter.made
    await until(lambda: spotter.forgot)
    feed(bench, unit, task, WAKE)
    assert (await bench.ask(unit, task, "work"))["error"]["code"] == 0
    assert spotter.heard == b""
    feed(bench, unit, task, WAKE)
    assert (await bench.replies(1))[0]["data"] is True


@on_bench
async def test_sound_that_waits_at_a_pause_wakes_nobody(bench, monkeypatch):
    monkeypatch.setattr(FakeSpotter, "gate", threading.Event())
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, WAKE)
    await until(lambda: FakeSpotter.begun)
    feed(bench, unit, task, WAKE)
    feed(bench, unit, task, bytes(32000) + WAKE)
    bench.send(unit, task, "pause", request_id="p")
    bench.send(unit, task, "work", request_id="w")
    feed(bench, unit, task, WAKE, request_id="later")
    FakeSpotter.gate.set()
    assert [frame["request_id"] for frame in await bench.replies(3)] == ["p", "w", "later"]
    assert FakeSpotter.made[0].heard == WAKE * 2


@on_bench
async def test_a_word_at_the_end_of_the_sound_is_told(bench, monkeypatch):
    monkeypatch.setattr(listening, "_QUIET_SECONDS", 0.05)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, wav(bytes(100) + b"WA"), request_id="file")
    assert (await bench.replies(1))[0]["request_id"] == "file"
    feed(bench, unit, task, bytes(100) + b"WA", request_id="stream")
    assert (await bench.replies(1))[0]["request_id"] == "stream"


@on_bench
async def test_a_setup_needs_none_of_the_loops_usual_threads(bench):
    """Those submit the requests of all doors: what they do must not wait for speech, nor the other way round."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    busy = asyncio.get_running_loop().run_in_executor(None, gate.wait)
    try:
        await bench.set_up(add_unit(bench), **FIELDS)
    finally:
        gate.set()
        await busy


@on_bench
async def test_all_forms_of_sound(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    bench.send(unit, task, "inference", packed(WAKE), kind="kws.pcm")  # as RAW leaves it
    bench.send(unit, task, "inference", packed(wav(WAKE)), kind="kws.wav.base64")
    text = packed(WAKE)
    for index, delta in enumerate((text[:50], text[50:])):
        chunk = {"delta": delta, "index": index, "finish": index == 1}
        bench.send(unit, task, "inference", chunk, kind="kws.base64.stream")
    assert [reply["data"] for reply in await bench.replies(3)] == [True] * 3


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("kws.base64", "%%%", -23),
        ("kws.base64", 5, -2),
        ("kws.base64", "", -24),
        ("kws.base64", packed(b"abc"), -11),
        ("kws.wav.base64", packed(b"ab"), -11),
        ("kws.base64.stream", "x", -25),
    ],
)
@on_bench
async def test_sound_that_cannot_be_read(bench, kind, data, code):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    reply = await bench.ask(unit, task, "inference", data, kind=kind, request_id="bad")
    assert (reply["error"]["code"], reply["request_id"], reply["work_id"]) == (code, "bad", task)


@on_bench
async def test_a_task_that_listens_to_the_microphone_only_takes_no_sound_of_users(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"input": "sys.pcm"})
    feed(bench, unit, task, WAKE)
    assert (await bench.replies(1))[0]["error"]["code"] == -4


@on_bench
async def test_a_fault_is_one_error_frame_and_harms_nothing_else(bench):
    unit = add_unit(bench)
    first, second = [await bench.set_up(unit, **FIELDS) for _ in range(2)]
    feed(bench, unit, first, b"FAIL", request_id="bad")
    (reply,) = await bench.replies(1)
    assert (reply["work_id"], reply["request_id"]) == (first, "bad")
    assert reply["error"] == {"code": -11, "message": "Model run failed. the decoder is broken"}
    for task in (first, second):
        feed(bench, unit, task, WAKE)
        assert (await bench.replies(1))[0]["data"] is True


@on_bench
async def test_a_task_that_has_ended_frees_its_model(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    spotter = weakref.ref(FakeSpotter.made[0])
    FakeSpotter.made = ()
    gc.disable()
    try:
        await bench.ask(unit, task, "exit")
        await until(lambda: not unit.workers)
        assert spotter() is None
    finally:
        gc.enable()


# Setup


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kws": None}, "kws must be a string or an array of strings"),
        ({"kws": 5}, "kws must be"),
        ({"kws": []}, "kws must be"),
        ({"kws": ["A", 5]}, "kws must be"),
        ({"kws": ["A"] * 33}, "at most 32"),
        ({"kws": "A" * 101}, "at most 100"),
        ({"kws": "你好你好"}, "'你好你好' is not English"),
        ({"kws": ["HELLO", "你好 HELLO"]}, "is not English"),
        ({"kws": "..."}, "must have letters"),
        ({"kws": "xyzzy"}, "the dictionary has no 'xyzzy'"),
        ({"model": "other"}, "There is no kws model 'other'"),
        ({"model": "sherpa-onnx-kws-zipformer-wenetspeech-3.3M-2024-01-01"}, "'zh'; pocketsphinx knows English"),
        ({"enwake_audio": 1}, "enwake_audio"),
        ({"wake_wav_file": 1}, "wake_wav_file"),
        ({"keywords_threshold": 1.5}, "keywords_threshold"),
    ],
)
@on_bench
async def test_a_setup_that_is_wrong_is_told_and_logged(bench, fields, words):
    unit = add_unit(bench)
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS, **fields}, request_id="s")
    assert (reply["work_id"], reply["error"]["code"]) == ("kws", -5)
    assert words in reply["error"]["message"]
    assert not unit.workers


@on_bench
async def test_fields_of_the_original(bench):
    unit = add_unit(bench)
    model = "sherpa-onnx-kws-zipformer-gigaspeech-3.3M-2024-01-01"
    fields = {"model": model, "kws": ["HEY, Computer!", "hello"], "enwake_audio": False, "enkws": True}
    task = await bench.set_up(unit, **FIELDS | fields | {"wake_wav_file": "/x.wav", "keywords_threshold": 0.05})
    (spotter,) = FakeSpotter.made
    assert spotter.phrases == ["hey computer", "hello"]
    assert spotter.ease == pytest.approx(0.2)
    info = await bench.ask(unit, task, "taskinfo")
    assert info["object"] == "kws.taskinfo"
    assert info["data"]["model"] == model


@on_bench
async def test_no_more_tasks_than_the_option_says(bench):
    unit = add_unit(bench, max_tasks=2)
    tasks = [await bench.set_up(unit, **FIELDS) for _ in range(2)]
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS})
    assert (reply["error"]["code"], reply["work_id"]) == (-21, "kws")
    await bench.ask(unit, tasks[0], "exit")
    await bench.set_up(unit, **FIELDS)


def test_descriptors(tmp_path):
    (tmp_path / "tokens.txt").touch()
    unit = KwsUnit(None, 1, SpeechModels({"mine": str(tmp_path)}), None)
    model, mine = unit.descriptors()
    assert (model["mode"], model["type"], model["output_type"]) == ("pocketsphinx", "kws", ["kws.bool"])
    assert model["capabilities"] == ["Keyword_spotting", "English"]
    assert (mine["mode"], mine["capabilities"]) == ("mine", ["Keyword_spotting"])


@pytest.mark.parametrize(("installed", "code"), [(True, -5), (False, -9)])
@on_bench
async def test_a_model_of_the_configuration_that_is_not_there(bench, monkeypatch, installed, code):
    monkeypatch.setattr(module, "is_sherpa_installed", lambda: installed)
    name = "sherpa-onnx-kws-zipformer-wenetspeech-3.3M-2024-01-01"
    unit = bench.add(KwsUnit(bench.bus, 8, SpeechModels({name: "/not/there"}), FakeDevice()))
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS, "model": name})
    assert reply["error"]["code"] == code
    assert ("there is no such folder" in reply["error"]["message"]) == installed


# The microphone


@on_bench
async def test_the_microphone(bench):
    device = FakeDevice()
    unit = add_unit(bench, device)
    task = await bench.set_up(unit, **FIELDS | {"input": ["sys.pcm"]})
    await until(lambda: device.listeners)
    device.listeners[0](WAKE)
    assert (await bench.replies(1))[0]["data"] is True
    await until(lambda: device.played)  # a chime tells that the word was heard
    await bench.ask(unit, task, "pause")
    device.listeners[0](WAKE)
    await bench.ask(unit, task, "work")
    device.listeners[0](WAKE)
    assert len(await bench.replies(1)) == 1
    await bench.ask(unit, task, "unlink", "sys.pcm")
    await until(lambda: not device.listeners)
    await bench.ask(unit, task, "link", "sys.pcm")
    await until(lambda: device.listeners)
    await bench.ask(unit, task, "exit")
    await until(lambda: not device.listeners)


@on_bench
async def test_without_a_microphone_the_task_gets_no_sound(bench):
    logs = Logs()
    device = FakeDevice()
    device.broken = True
    unit = add_unit(bench, device)
    task = await bench.set_up(unit, **FIELDS | {"input": ["sys.pcm", "kws.base64"]})
    await until(lambda: logs.has("kws.1000 gets no sound from sys.pcm: there is no microphone"))
    info = await bench.ask(unit, task, "taskinfo")
    assert "sys.pcm did not exist" in info["data"]["warnings"][0]
    feed(bench, unit, task, WAKE)
    assert (await bench.replies(1))[0]["data"] is True
    await until(lambda: logs.has("no sound tells that a wake word was heard"))
    device.broken = False
    await bench.ask(unit, task, "work")
    await until(lambda: device.listeners)
    assert "warnings" not in (await bench.ask(unit, task, "taskinfo"))["data"]


@on_bench
async def test_a_fault_on_the_microphone_turns_it_off_until_work(bench):
    device = FakeDevice()
    unit = add_unit(bench, device)
    task = await bench.set_up(unit, **FIELDS | {"input": "sys.pcm"})
    await until(lambda: device.listeners)
    device.listeners[0](b"FAIL")
    assert (await bench.replies(1))[0]["error"]["code"] == -11
    await until(lambda: not device.listeners)
    await bench.ask(unit, task, "work")
    await until(lambda: device.listeners)


@on_bench
async def test_links(bench):
    logs = Logs()
    unit = add_unit(bench)
    bench.source("llm.7")
    task = await bench.set_up(unit, **FIELDS)
    for name in ("llm.7", "kws.1000", "tts", 5, None):
        assert (await bench.ask(unit, task, "link", name))["error"]["code"] == -22
    for name in ("sys.pcm", "sys.cap.0_0", "buttons_thread"):
        assert (await bench.ask(unit, task, "link", name))["error"]["code"] == 0
    assert logs.has("there are no buttons here")
    info = await bench.ask(unit, task, "taskinfo")
    assert info["data"]["inputs"] == ["kws.base64", "sys.pcm", "sys.cap.0_0", "buttons_thread"]
    for action in ("link", "unlink", "pause", "work", "exit", "taskinfo"):
        assert (await bench.ask(unit, "kws.7", action))["error"]["code"] == -6


@on_bench
async def test_inputs_that_bring_nothing_are_logged(bench):
    logs = Logs()
    await bench.set_up(add_unit(bench), **FIELDS | {"input": ["buttons_thread", "kws.base64"]})
    assert logs.has("nothing comes from the input 'buttons_thread'")
