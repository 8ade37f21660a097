"""The units `tts` and `melotts` with a voice that says the text's bytes."""

from __future__ import annotations

import asyncio
import base64
import gc
import time
import weakref

import pytest
from voice_parts import FakeDevice, Logs, on_bench, packed, until

from trivium.doors.unit.bus import ChainMessage
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.input import MAX_KEPT_BYTES, QUIET_SECONDS
from trivium.doors.unit.voice import speech_output
from trivium.doors.unit.voice import tts as module
from trivium.doors.unit.voice.models import SpeechModels
from trivium.doors.unit.voice.speaker import SpeechError
from trivium.doors.unit.voice.tts import MelottsUnit, TtsUnit

FIELDS = {"model": "espeak-ng", "response_format": "tts.base64.stream", "input": "tts.utf-8"}


class FakeSpeaker:
    def __init__(self):
        self.said = []
        self.gate = None
        self.cancelled = 0

    async def speak(self, text):
        self.said.append(text)
        if "broken" in text:
            raise SpeechError("the voice is broken")
        if "crash" in text:
            raise RuntimeError("the voice has crashed")
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return text.encode("utf-16-le")


@pytest.fixture(autouse=True)
def speaker(monkeypatch):
    speaker = FakeSpeaker()

    async def make(model, language, speed, threads):
        speaker.asked = (model.target, model.language, language, speed)
        return speaker

    monkeypatch.setattr(module, "make_speaker", make)
    return speaker


def add_unit(bench, kind=TtsUnit, device=None, **options):
    return bench.add(kind(bench.bus, UnitConfig(**options), SpeechModels({}), device or FakeDevice()))


def say(bench, unit, task, text, **fields):
    bench.send(unit, task, "inference", text, **{"kind": "tts.utf-8", **fields})


def chunk(text, index, finish=False):
    return {"delta": text, "index": index, "finish": finish}


async def answer(bench):
    """What one streamed answer says, and its frames: numbered, one last frame without sound, one id."""
    frames = []
    while not frames or not frames[-1]["data"]["finish"]:
        await until(lambda: bench.client.frames)
        frames.append(bench.client.replies[0])
        del bench.client.frames[0]
    assert [frame["data"]["index"] for frame in frames] == list(range(len(frames)))
    assert all(frame["data"]["delta"] for frame in frames[:-1])
    assert frames[-1]["data"]["delta"] == ""
    assert len({(frame["request_id"], frame["work_id"], frame["object"]) for frame in frames}) == 1
    return said(*[frame["data"]["delta"] for frame in frames]), frames


def said(*deltas):
    # The frames' base64 is also that of the whole when it is joined.
    sound = base64.b64decode("".join(deltas))
    assert sound == b"".join(map(base64.b64decode, deltas))
    return sound.decode("utf-16-le").replace("\0", "")


@on_bench
async def test_a_text_becomes_frames_of_sound(bench, speaker):
    unit = add_unit(bench, unit_sound_frame=96)
    task = await bench.set_up(unit, **FIELDS)
    assert task == "tts.1000"
    text = "Hello, my name is Trivium. " + "It is a pleasure to meet you here today on this fine morning"
    say(bench, unit, task, text, request_id="a")
    spoken, frames = await answer(bench)
    assert spoken == "Hello,my name is Trivium.It is a pleasure to meet you here today on this fine morning."
    assert speaker.said == [
        "Hello,",
        "my name is Trivium.",
        "It is a pleasure to meet you here today on this fine morning.",
    ]
    assert (frames[0]["request_id"], frames[0]["object"], frames[0]["work_id"]) == ("a", "tts.base64.stream", task)
    assert max(len(base64.b64decode(frame["data"]["delta"])) for frame in frames) == 96


@on_bench
async def test_plain_output_is_one_frame(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "tts.base64"})
    say(bench, unit, task, "Hello. You.", request_id="a")
    (reply,) = await bench.replies(1)
    assert said(reply["data"]) == "Hello.You."
    assert (reply["object"], reply["request_id"]) == ("tts.base64", "a")


@on_bench
async def test_a_plain_answer_has_its_limit(bench, monkeypatch):
    monkeypatch.setattr(speech_output, "_MAX_PLAIN", 30)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "tts.base64"})
    say(bench, unit, task, "One. Two. Three. Four. Five.")
    (reply,) = await bench.replies(1)
    assert reply["error"]["code"] == -11
    assert "ask for a stream" in reply["error"]["message"]
    assert reply["data"] == ""


@on_bench
async def test_all_forms_of_input(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    text = "Hällo. You"
    say(bench, unit, task, text)
    say(bench, unit, task, packed(text.encode()), kind="tts.utf-8.base64")
    for data in (chunk("Häl", 0), chunk("You", 2), chunk("lo. ", 1), chunk("", 3, True)):
        say(bench, unit, task, data, kind="tts.utf-8.stream")
    base = packed(text.encode())
    for data in (chunk(base[:5], 0), chunk(base[5:], 1, True)):
        say(bench, unit, task, data, kind="tts.base64.stream")
    assert [(await answer(bench))[0] for _ in range(4)] == ["Hällo.You."] * 4


@on_bench
async def test_chunks_are_spoken_as_they_come(bench, speaker):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    say(bench, unit, task, chunk("Hello. Wor", 0), kind="tts.utf-8.stream", request_id="a")
    await until(lambda: bench.client.frames)
    assert speaker.said == ["Hello."]
    say(bench, unit, task, chunk("ld.", 1, True), kind="tts.utf-8.stream", request_id="b")
    spoken, frames = await answer(bench)
    assert (spoken, frames[0]["request_id"]) == ("Hello.World.", "a")


@on_bench
async def test_a_client_that_vanishes_in_the_middle_of_a_text_is_forgotten(bench, monkeypatch):
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.05)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    other = type(bench.client)("other")
    chunk = {"delta": "Hello. And", "index": 0, "finish": False}
    bench.send(unit, task, "inference", chunk, kind="tts.utf-8.stream", connection=other)
    await until(lambda: not unit.tasks[task].outputs)
    await bench.ask(unit, task, "taskinfo")  # another owner
    other.closed = True
    unit.expire(time.monotonic())
    gone = weakref.ref(other)
    del other
    await until(lambda: gc.collect() >= 0 and gone() is None)


@on_bench
async def test_a_gap_in_the_chunks_ends_what_is_spoken(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    say(bench, unit, task, chunk("Hello. ", 0), kind="tts.utf-8.stream", request_id="a")
    say(bench, unit, task, chunk("You.", 2, True), kind="tts.utf-8.stream", request_id="a")
    frames = await bench.replies(1)
    assert frames[-1]["error"]["code"] == -25
    assert frames[-1]["data"]["finish"] is True
    say(bench, unit, task, chunk("Again.", 0, True), kind="tts.utf-8.stream", request_id="b")
    assert (await answer(bench))[0] == "Again."


@on_bench
async def test_a_stream_that_does_not_go_on_has_ended(bench, monkeypatch):
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.05)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    say(bench, unit, task, chunk("Hello. World", 0), kind="tts.utf-8.stream")
    assert (await answer(bench))[0] == "Hello.World."
    say(bench, unit, task, chunk("And more", 1, True), kind="tts.utf-8.stream")
    assert (await answer(bench))[0] == "And more."


def send_chunk(bench, unit, task, request_id, *args, **fields):
    say(bench, unit, task, chunk(*args), kind="tts.utf-8.stream", request_id=request_id, **fields)


@pytest.mark.parametrize("ended", ["paused", "given up", "going on"])
@on_bench
async def test_a_chunk_0_begins_another_text(bench, speaker, monkeypatch, ended):
    if ended == "given up":
        monkeypatch.setattr(module, "_QUIET_SECONDS", 0.05)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    send_chunk(bench, unit, task, "a", "Hello. Wor", 0)
    if ended != "going on":
        await until(lambda: speaker.said)
    if ended == "paused":
        bench.send(unit, task, "pause", request_id="p")
        replies = await bench.replies(2)
        assert [reply["request_id"] for reply in replies if reply["data"] == "None" or reply["data"]["finish"]] == ["a", "p"]
    send_chunk(bench, unit, task, "b", "Other.", 0, True)
    if ended != "paused":
        spoken, frames = await answer(bench)
        assert (spoken, frames[0]["request_id"]) == ("Hello.Wor.", "a")
    spoken, frames = await answer(bench)
    assert (spoken, frames[0]["request_id"]) == ("Other.", "b")
    await until(lambda: not unit.workers)
    assert not bench.client.frames
    assert unit.tasks[task].reader.num_kept == 0


@pytest.mark.parametrize("how", ["pause", "broken", "wake word", "too many texts", "a gap"])
@on_bench
async def test_the_rest_of_a_text_that_was_ended_is_dropped(bench, speaker, how):
    unit = add_unit(bench, unit_queue=0)
    bench.source("kws.8")
    task = await bench.set_up(unit, **FIELDS | {"input": ["tts.utf-8", "kws.8"]})
    speaker.gate = asyncio.Event()
    if how == "too many texts":
        say(bench, unit, task, "One.", request_id="one")
    send_chunk(bench, unit, task, "a", "It is broken. And" if how == "broken" else "One. And", 0)
    await until(lambda: speaker.said)
    if how == "pause":
        bench.send(unit, task, "pause", request_id="p")
    elif how == "wake word":
        bench.bus.publish(ChainMessage("kws.8", "w", "kws.bool", True))
    elif how == "a gap":
        send_chunk(bench, unit, task, "a", "again", -1)
    await until(lambda: bench.client.frames)
    last = bench.client.take()[0]
    assert (last["request_id"], last["data"]["finish"]) == ("a", True)
    speaker.gate.set()
    send_chunk(bench, unit, task, "a", " more.", 1)
    await until(lambda: not unit.workers)
    send_chunk(bench, unit, task, "a", " And more.", 2, True)
    await until(lambda: not unit.workers)
    send_chunk(bench, unit, task, "b", "Next.", 0, True)
    if how == "too many texts":
        assert (await answer(bench))[1][0]["request_id"] == "one"
    spoken, frames = await answer(bench)
    assert (spoken, frames[0]["request_id"]) == ("Next.", "b")
    assert not bench.client.frames


@on_bench
async def test_chunks_that_wait_in_vain_are_refused_once(bench):
    unit = add_unit(bench)
    bench.source("kws.8")
    task = await bench.set_up(unit, **FIELDS | {"input": ["tts.utf-8", "kws.8"]})
    reader = unit.tasks[task].reader
    other = type(bench.client)("gone")
    send_chunk(bench, unit, task, "late", "World.", 1)
    send_chunk(bench, unit, task, "gone", "World.", 1, connection=other)
    other.closed = True
    now = time.monotonic()
    unit.expire(now)
    assert not bench.client.frames
    unit.expire(now + QUIET_SECONDS + 1)
    (reply,) = bench.client.take()
    assert (reply["request_id"], reply["error"]["code"], reply["data"]["finish"]) == ("late", -25, True)
    send_chunk(bench, unit, task, "late", "Hello.", 0)  # begins another
    send_chunk(bench, unit, task, "late", "", 1, True)
    assert (await answer(bench))[0] == "Hello."
    send_chunk(bench, unit, task, "woken", "World.", 1)
    bench.bus.publish(ChainMessage("kws.8", "w", "kws.bool", True))
    assert [reply["request_id"] for reply in bench.client.take()] == ["woken"]
    unit.expire(now + 3 * QUIET_SECONDS)
    assert not bench.client.frames
    assert reader.num_kept == 0


@on_bench
async def test_the_first_of_two_texts_that_have_not_begun_is_refused(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    send_chunk(bench, unit, task, "a", "", 0)
    send_chunk(bench, unit, task, "b", "Hello.", 0, True)
    assert [bench.client.replies[0][key] for key in ("request_id", "error")] == [
        "a",
        {"code": -25, "message": "Stream data index error."},
    ]
    del bench.client.frames[0]
    assert (await answer(bench))[0] == "Hello."


@on_bench
async def test_chunks_that_wait_are_bounded_for_all_clients_together(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    others = [type(bench.client)(str(i)) for i in range(6)]
    for other in others:
        send_chunk(bench, unit, task, "x", "x" * (4 * 2**20 - 1), 1, connection=other)
        assert unit.tasks[task].reader.num_kept <= MAX_KEPT_BYTES
    codes = [[reply["error"]["code"] for reply in other.replies] for other in others]
    assert codes == [[]] * 3 + [[-13]] * 3


@pytest.mark.parametrize("kind", ["tts.utf-8", "tts.utf-8.stream"])
@on_bench
async def test_a_text_that_is_too_long_is_not_even_cut(bench, monkeypatch, kind):
    lengths = []
    add = module.Sentences.add
    monkeypatch.setattr(module.Sentences, "add", lambda self, text: lengths.append(len(text)) or add(self, text))
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    text = "a. " * 2**20
    say(bench, unit, task, chunk(text, 0, True) if "stream" in kind else text, kind=kind, request_id="long")
    (reply,) = await bench.replies(1)
    assert (reply["request_id"], reply["error"]["code"], reply["data"]["finish"]) == ("long", -13, True)
    assert not lengths


@on_bench
async def test_empty_texts_are_ignored(bench):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    for text in ("", "None"):
        say(bench, unit, task, text)
    say(bench, unit, task, "...", request_id="dots")  # nothing in it can be spoken, but it is a text
    assert (await answer(bench))[1][0]["request_id"] == "dots"
    say(bench, unit, task, chunk("", 0, True), kind="tts.utf-8.stream", request_id="end")
    assert (await answer(bench))[1][0]["request_id"] == "end"


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("tts.utf-8", 5, -2),
        ("tts.base64", "%%%", -23),
        ("tts.utf-8.stream", "hi", -25),
        ("tts.utf-8.stream", chunk("hi", 1, True), -25),
        ("tts.base64.stream", "hi", -25),
    ],
)
@pytest.mark.parametrize("form", ["tts.base64", "tts.base64.stream"])
@on_bench
async def test_an_inference_that_is_wrong_ends_with_one_frame(bench, kind, data, code, form):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": form})
    say(bench, unit, task, data, kind=kind, request_id="bad")
    (reply,) = await bench.replies(1)
    assert (reply["error"]["code"], reply["request_id"], reply["work_id"]) == (code, "bad", task)
    assert reply["data"] == ({"delta": "", "finish": True, "index": 0} if "stream" in form else "")


@pytest.mark.parametrize(("word", "message"), [("broken", "the voice is broken"), ("crash", "Model run failed.")])
@on_bench
async def test_a_fault_ends_its_text_only(bench, word, message):
    unit = add_unit(bench)
    task, other = [await bench.set_up(unit, **FIELDS) for _ in range(2)]
    say(bench, unit, task, f"Hello. This is {word}. More.", request_id="bad")
    _, frames = await answer(bench)
    assert frames[-1]["error"]["code"] == -11
    assert message in frames[-1]["error"]["message"]
    for which in (task, other):
        say(bench, unit, which, "Hello.")
        assert (await answer(bench))[0] == "Hello."


@on_bench
async def test_texts_wait_in_order_and_too_many_are_refused(bench, speaker):
    unit = add_unit(bench, unit_queue=2)
    task = await bench.set_up(unit, **FIELDS)
    speaker.gate = asyncio.Event()
    for name in "abcd":
        say(bench, unit, task, f"Text {name}.", request_id=name)
        await asyncio.sleep(0.01)
    (refused,) = await bench.replies(1)
    assert (refused["error"]["code"], refused["request_id"], refused["data"]["finish"]) == (-13, "d", True)
    speaker.gate.set()
    assert [(await answer(bench))[0] for _ in range(3)] == ["Text a.", "Text b.", "Text c."]


# Links


@on_bench
async def test_a_linked_answer_is_spoken_as_it_comes(bench, speaker):
    unit = add_unit(bench)
    bench.source("llm.7")
    task = await bench.set_up(unit, **FIELDS | {"input": ["tts.utf-8", "llm.7"]})

    def publish(text, index, finish=False):
        bench.bus.publish(ChainMessage("llm.7", "x", "llm.utf-8.stream", chunk(text, index, finish)))

    publish("The sky is", 0)
    publish(" blue. The", 1)
    await until(lambda: speaker.said == ["The sky is blue."])
    publish(" sea", 2)
    publish("", 3, True)
    publish("Next.", 0)
    publish("", 1, True)
    spoken, frames = await answer(bench)
    assert (spoken, frames[0]["request_id"]) == ("The sky is blue.The sea.", "r")
    assert (await answer(bench))[0] == "Next."
    bench.bus.publish(ChainMessage("llm.7", "x", "llm.utf-8", "Whole. Text"))
    assert (await answer(bench))[0] == "Whole.Text."
    bench.bus.publish(ChainMessage("llm.7", "x", "llm.utf-8", "None"))
    assert not unit.tasks[task].outputs


@on_bench
async def test_a_wake_word_empties_it(bench, speaker):
    unit = add_unit(bench)
    for name in ("llm.7", "kws.8"):
        bench.source(name)
    task = await bench.set_up(unit, **FIELDS | {"input": ["tts.utf-8", "llm.7", "kws.8"]})
    speaker.gate = asyncio.Event()

    def publish(text, index, finish=False):
        bench.bus.publish(ChainMessage("llm.7", "x", "llm.utf-8.stream", chunk(text, index, finish)))

    def stopped(message):  # as an llm does that the wake word stops, too
        publish("rest of it.", 2)
        publish("", 3, True)

    bench.bus.subscribe("kws.8", stopped)
    publish("One. Two. ", 0)
    publish("Three. ", 1)
    say(bench, unit, task, "A user's text.", request_id="u")
    await until(lambda: speaker.said == ["One."])
    bench.bus.publish(ChainMessage("kws.8", "w", "kws.bool", True))
    assert speaker.said == ["One."]
    assert [frame["data"] for frame in await bench.replies(2)] == [chunk("", 0, True)] * 2
    await until(lambda: speaker.cancelled == 1)
    publish("late ", 4)  # of what was interrupted
    publish("", 5, True)
    speaker.gate.set()
    publish("New. ", 0)
    publish("", 1, True)
    assert (await answer(bench))[0] == "New."
    assert speaker.said == ["One.", "New."]


@on_bench
async def test_too_much_text_from_a_linked_task(bench, speaker, monkeypatch):
    monkeypatch.setattr(module, "_MAX_PIECES", 3)
    unit = add_unit(bench, unit_queue=0)
    bench.source("llm.7")
    await bench.set_up(unit, **FIELDS | {"input": "llm.7"})
    speaker.gate = asyncio.Event()
    bench.bus.publish(ChainMessage("llm.7", "x", "o.stream", chunk("a. b. c. d. e. f.", 0)))
    (reply,) = await bench.replies(1)
    assert (reply["error"]["code"], reply["data"]["finish"]) == (-13, True)
    bench.bus.publish(ChainMessage("llm.7", "x", "o.stream", chunk("", 1, True)))
    await until(lambda: not unit.workers)
    bench.bus.publish(ChainMessage("llm.7", "x", "o", "one"))
    await until(lambda: speaker.said)
    bench.bus.publish(ChainMessage("llm.7", "x", "o", "two"))
    assert (await bench.replies(1))[0]["error"]["code"] == -13


# Actions


@on_bench
async def test_pause_ends_the_running_text_and_work_is_not_there(bench, speaker):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    speaker.gate = asyncio.Event()
    say(bench, unit, task, "One. Two.", request_id="a")
    say(bench, unit, task, "Three.", request_id="b")
    await until(lambda: speaker.said)
    bench.send(unit, task, "pause", request_id="p")
    last, ack = await bench.replies(2)
    assert (last["request_id"], last["data"]["finish"]) == ("a", True)
    assert (ack["request_id"], ack["error"]["code"]) == ("p", 0)
    speaker.gate.set()
    spoken, frames = await answer(bench)
    assert (spoken, frames[0]["request_id"]) == ("Three.", "b")
    reply = await bench.ask(unit, task, "work")
    assert reply["error"] == {"code": -18, "message": "not have unit action!"}
    assert (await bench.ask(unit, "tts.9", "work"))["error"]["code"] == -6


@on_bench
async def test_exit_ends_all_texts(bench, speaker):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    speaker.gate = asyncio.Event()
    for name in "ab":
        say(bench, unit, task, "One. Two.", request_id=name)
    say(bench, unit, task, chunk("Three.", 0), kind="tts.utf-8.stream", request_id="c")
    await until(lambda: speaker.said)
    bench.send(unit, task, "exit", request_id="e")
    replies = await bench.replies(4)
    assert [(reply["request_id"], reply["data"] == "None") for reply in replies] == [
        ("a", False),
        ("b", False),
        ("c", False),
        ("e", True),
    ]
    await until(lambda: not unit.workers)


@on_bench
async def test_a_slow_client_holds_up_its_own_answer_only(bench):
    unit = add_unit(bench, unit_sound_frame=96)
    slow, task = [await bench.set_up(unit, **FIELDS) for _ in range(2)]
    other = type(bench.client)("slow")
    other.slow = True
    say(bench, unit, slow, "A long text. " * 50, connection=other)
    say(bench, unit, task, "Hello.")
    assert (await answer(bench))[0] == "Hello."
    assert len(other.frames) <= 1
    other.slow = False
    await until(lambda: b'"finish":true' in b"".join(other.frames))


@on_bench
async def test_a_plain_answer_waits_for_the_client_to_take_the_one_before(bench, speaker):
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "tts.base64"})
    bench.client.slow = True
    say(bench, unit, task, "Hello.")
    await until(lambda: speaker.said)
    await asyncio.sleep(0.05)
    assert not bench.client.frames
    bench.client.slow = False
    assert said((await bench.replies(1))[0]["data"]) == "Hello."


@on_bench
async def test_a_client_that_never_reads_and_one_that_has_gone(bench, monkeypatch):
    monkeypatch.setattr(speech_output, "_STUCK_SECONDS", 0.05)
    unit = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    other = type(bench.client)("stuck")
    other.slow = True
    say(bench, unit, task, "Hello.", connection=other)
    await until(lambda: other.frames)
    assert other.replies[-1]["error"]["code"] == -11
    other.closed = True
    say(bench, unit, task, "Hello.", connection=other)
    await until(lambda: not unit.tasks[task].outputs)
    say(bench, unit, task, "Hello.")
    assert (await answer(bench))[0] == "Hello."


# The loudspeaker


@on_bench
async def test_the_loudspeaker(bench):
    device = FakeDevice()
    unit = add_unit(bench, device=device)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "sys.pcm", "enoutput": False})
    say(bench, unit, task, "Hello. You.")
    await until(lambda: len(device.played) == 2)
    assert b"".join(device.played).decode("utf-16-le") == "Hello.You."
    await until(lambda: not unit.tasks[task].outputs)
    assert bench.client.take() == []
    device.broken = True
    say(bench, unit, task, "Hello.", request_id="bad")
    (reply,) = await bench.replies(1)
    assert (reply["error"]["code"], reply["request_id"]) == (-11, "bad")


@on_bench
async def test_without_a_loudspeaker_the_log_says_so(bench):
    logs = Logs()
    device = FakeDevice()
    device.broken = True
    unit = add_unit(bench, device=device)
    await bench.set_up(unit, **FIELDS | {"response_format": "sys.pcm"})
    assert logs.has("tts.1000 cannot play on this machine: there is no loudspeaker")


# Setup


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, ("espeak-ng", None, None, 1.0)),
        ({"language": "de", "spk_speed": 1.5}, ("espeak-ng", None, "de", 1.5)),
        ({"model": "melotts-zh-cn", "spacker_speed": 0.5}, ("espeak-ng", "zh", None, 0.5)),
    ],
)
@on_bench
async def test_the_voice(bench, speaker, fields, asked):
    await bench.set_up(add_unit(bench), **FIELDS | fields)
    assert speaker.asked == asked


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "nothing"}, "There is no tts model"),
        ({"spk_speed": 9}, "spk_speed must be a number from 0.25 to 4, got 9"),
        ({"spacker_speed": "1"}, "spacker_speed"),
        ({"language": 5}, "language"),
    ],
)
@on_bench
async def test_a_setup_that_is_wrong(bench, fields, words):
    reply = await bench.ask(add_unit(bench), "tts", "setup", {"enoutput": True, **FIELDS, **fields})
    assert (reply["work_id"], reply["error"]["code"]) == ("tts", -5)
    assert words in reply["error"]["message"]


@on_bench
async def test_melotts_is_another_name(bench):
    unit = add_unit(bench, MelottsUnit)
    task = await bench.set_up(unit, **FIELDS | {"model": "melotts-en-default"})
    assert task == "melotts.1000"
    say(bench, unit, task, "Hello.")
    assert (await answer(bench))[0] == "Hello."
    assert unit.descriptors() == []


def test_descriptors():
    (model,) = TtsUnit(None, UnitConfig(), SpeechModels({}), None).descriptors()
    assert (model["mode"], model["type"]) == ("espeak-ng", "tts")
