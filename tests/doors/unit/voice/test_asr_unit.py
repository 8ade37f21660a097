"""The units `asr` and `whisper` with a recogniser that counts, and a detector for which bytes that are not zero are speech."""

from __future__ import annotations

import threading

import pytest
from asr_parts import FIELDS, SENTENCE, add_unit, feed, heard_out, sentence
from voice_parts import FakeDevice, Logs, loud, on_bench, packed, silence, speech, until, wav

from trivium.doors.unit.bus import ChainMessage
from trivium.doors.unit.voice import asr as module
from trivium.doors.unit.voice import listening
from trivium.doors.unit.voice.asr import AsrUnit, WhisperUnit
from trivium.doors.unit.voice.hearing import Hearing
from trivium.doors.unit.voice.models import SpeechModels


@pytest.fixture(autouse=True)
def detector(monkeypatch):
    monkeypatch.setattr(module, "webrtc_detector", lambda: loud)


@on_bench
async def test_a_stream_tells_what_is_said_so_far_and_ends_with_a_full_stop(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    told = []
    bench.bus.subscribe(task, told.append)
    feed(bench, unit, task, speech(1.2), request_id="a")
    feed(bench, unit, task, silence(1.5), request_id="b")
    frames = await sentence(bench)
    assert [frame["data"]["delta"] for frame in frames] == ["Heard 1", "Heard 2", "Heard 2."]
    assert (frames[0]["object"], frames[0]["work_id"]) == ("asr.utf-8.stream", task)
    assert [message.data["delta"] for message in told] == ["Heard 1", "Heard 2", "Heard 2."]
    assert [message.data["finish"] for message in told] == [False, False, True]
    assert not unit.tasks[task].outputs


@on_bench
async def test_what_is_said_so_far_fits_a_frame_or_is_left_out(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    texts = ["好" * 50, "好" * 200, "好" * 250]
    recogniser.transcribe = lambda sound, language: texts.pop(0)
    feed(bench, unit, task, speech(1.8) + silence(1.5), request_id="a")
    frames = await sentence(bench)  # numbered as if there had been no other
    assert [len(frame["data"]["delta"]) for frame in frames] == [50, 251]


@on_bench
async def test_plain_output_is_one_text(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    told = []
    bench.bus.subscribe(task, told.append)
    feed(bench, unit, task, speech(1.2) + silence(1.5) + SENTENCE, request_id="a")
    frames = await bench.replies(2)
    assert [(frame["data"], frame["object"], frame["request_id"]) for frame in frames] == [
        ("Heard 1.", "asr.utf-8", "a"),
        ("Heard 2.", "asr.utf-8", "a"),
    ]
    assert [message.data for message in told] == ["Heard 1.", "Heard 2."]


@on_bench
async def test_without_enoutput_only_linked_tasks_are_told(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS, enoutput=False)
    told = []
    bench.bus.subscribe(task, told.append)
    feed(bench, unit, task, SENTENCE)
    await until(lambda: told and told[-1].data["finish"])
    assert bench.client.take() == []


@on_bench
async def test_asleep_until_a_wake_word(bench):
    unit, _ = add_unit(bench)
    bench.source("kws.7")
    task = await bench.set_up(unit, **FIELDS | {"input": ["asr.base64", "kws.7"], "awake_delay": 0})
    feed(bench, unit, task, SENTENCE)
    for _ in range(2):
        bench.bus.publish(ChainMessage("kws.7", "w", "kws.bool", True))
        feed(bench, unit, task, SENTENCE * 2)
        assert (await sentence(bench))[-1]["data"]["delta"].endswith(".")
    await heard_out(unit, task)
    assert bench.client.take() == []


@on_bench
async def test_a_second_wake_word_ends_the_sentence_with_nothing(bench):
    unit, _ = add_unit(bench)
    bench.source("kws.7")
    task = await bench.set_up(unit, **FIELDS | {"input": ["asr.base64", "kws.7"]})
    wake = ChainMessage("kws.7", "w", "kws.bool", True)
    bench.bus.publish(wake)
    feed(bench, unit, task, speech(1.2))
    await until(lambda: bench.client.frames)
    bench.bus.publish(wake)
    assert [frame["data"]["delta"] for frame in await sentence(bench)] == ["Heard 1", ""]
    feed(bench, unit, task, SENTENCE)
    assert (await sentence(bench))[-1]["data"]["delta"] == "Heard 2."


@on_bench
async def test_a_wake_word_that_is_missing_at_setup(bench):
    logs = Logs()
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"input": ["asr.base64", "kws.7"], "response_format": "asr.utf-8"})
    assert logs.has("there is no task kws.7 to link to")
    assert (await bench.ask(unit, task, "taskinfo"))["data"]["warnings"]
    feed(bench, unit, task, SENTENCE * 2)  # it hears as if there were none
    assert [frame["data"] for frame in await bench.replies(2)] == ["Heard 1.", "Heard 2."]
    bench.source("kws.7")
    assert (await bench.ask(unit, task, "link", "kws.7"))["error"]["code"] == 0
    feed(bench, unit, task, SENTENCE * 2)  # from the end of the next sentence on it sleeps
    assert [frame["data"] for frame in await bench.replies(1)] == ["Heard 3."]
    bench.bus.publish(ChainMessage("kws.7", "w", "kws.bool", True))
    feed(bench, unit, task, silence(0.06) + SENTENCE)
    assert [frame["data"] for frame in await bench.replies(1)] == ["Heard 4."]


@on_bench
async def test_with_one_wake_word_of_two_missing_it_sleeps(bench):
    unit, recogniser = add_unit(bench)
    bench.source("kws.8")
    task = await bench.set_up(unit, **FIELDS | {"input": ["asr.base64", "kws.7", "kws.8"], "response_format": "asr.utf-8"})
    feed(bench, unit, task, SENTENCE)
    await heard_out(unit, task)
    assert recogniser.calls == []
    await bench.ask(unit, task, "unlink", "kws.8")
    feed(bench, unit, task, SENTENCE)
    assert (await bench.replies(1))[0]["data"] == "Heard 1."


@on_bench
async def test_linked_and_unlinked_later(bench):
    unit, _ = add_unit(bench)
    bench.source("kws.7")
    bench.source("llm.8")
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    assert (await bench.ask(unit, task, "link", "kws.7"))["error"]["code"] == 0
    feed(bench, unit, task, SENTENCE * 2)  # it sleeps only after the first
    assert (await bench.replies(1))[0]["data"] == "Heard 1."
    assert (await bench.ask(unit, task, "unlink", "kws.7"))["error"]["code"] == 0
    feed(bench, unit, task, SENTENCE)
    assert (await bench.replies(1))[0]["data"] == "Heard 2."
    for name in ("kws.99", "llm.8", "whisper.1", "x", 5):
        assert (await bench.ask(unit, task, "link", name))["error"]["code"] == -20


@on_bench
async def test_pause_work_and_exit_in_a_sentence(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, speech(1.2))
    await until(lambda: bench.client.frames)
    bench.send(unit, task, "pause", request_id="p")
    await until(lambda: len(bench.client.frames) == 3)
    ack, last = sorted(bench.client.take()[1:], key=lambda frame: frame["object"])
    assert (ack["request_id"], ack["data"]) == ("p", "None")
    assert last["data"] == {"delta": "", "finish": True, "index": 1}
    feed(bench, unit, task, SENTENCE)
    await bench.ask(unit, task, "work")
    feed(bench, unit, task, SENTENCE)
    assert (await sentence(bench))[-1]["data"]["delta"] == "Heard 2."
    feed(bench, unit, task, speech(1.2))
    await until(lambda: bench.client.frames)
    bench.client.frames.clear()
    bench.send(unit, task, "exit", request_id="e")
    last, ack = await bench.replies(2)
    assert last["data"]["finish"] is True
    assert ack["request_id"] == "e"
    assert unit.recognisers.users == 0
    await until(lambda: not unit.workers)


@on_bench
async def test_a_recording_always_has_an_answer(bench):
    unit, _ = add_unit(bench)
    stream = await bench.set_up(unit, **FIELDS)
    plain = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    feed(bench, unit, stream, wav(speech(0.6)), "asr.wav.base64")
    assert (await sentence(bench))[-1]["data"]["delta"] == "Heard 1."
    feed(bench, unit, stream, wav(silence(0.6)), "asr.wav.base64")
    assert [frame["data"] for frame in await sentence(bench)] == [{"delta": "", "finish": True, "index": 0}]
    feed(bench, unit, plain, wav(silence(0.6)))
    assert (await bench.replies(1))[0]["data"] == ""


@on_bench
async def test_sound_that_stops_coming_is_silence(bench, monkeypatch):
    monkeypatch.setattr(listening, "_QUIET_SECONDS", 0.05)
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    feed(bench, unit, task, speech(0.6))
    assert (await bench.replies(1))[0]["data"] == "Heard 1."


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("asr.base64", "%%%", -23),
        ("asr.utf-8", 5, -2),
        ("asr.base64", "", -24),
        ("asr.base64", packed(b"abc"), -11),
        ("asr.wav.base64", packed(b"ab"), -11),
        ("asr.base64.stream", "x", -25),
    ],
)
@pytest.mark.parametrize("form", ["asr.utf-8", "asr.utf-8.stream"])
@on_bench
async def test_sound_that_cannot_be_read_ends_with_one_frame(bench, kind, data, code, form):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": form})
    reply = await bench.ask(unit, task, "inference", data, kind=kind, request_id="bad")
    assert (reply["error"]["code"], reply["request_id"], reply["work_id"], reply["object"]) == (code, "bad", task, form)
    assert reply["data"] == ({"delta": "", "finish": True, "index": 0} if "stream" in form else "")


@pytest.mark.parametrize("form", ["asr.utf-8", "asr.utf-8.stream"])
@on_bench
async def test_a_fault_of_the_model_ends_its_sentence_only(bench, form):
    unit, recogniser = add_unit(bench)
    tasks = [await bench.set_up(unit, **FIELDS | {"response_format": form, "enoutput": False}) for _ in range(2)]
    recogniser.broken = True
    feed(bench, unit, tasks[0], SENTENCE, request_id="bad")
    (reply,) = await bench.replies(1)
    assert reply["error"] == {"code": -11, "message": "Model run failed. the model is broken"}
    assert (reply["work_id"], reply["request_id"]) == (tasks[0], "bad")
    recogniser.broken = False
    told = []
    for task in tasks:
        bench.bus.subscribe(task, told.append)
        feed(bench, unit, task, SENTENCE)
    await until(lambda: sum(m.data["finish"] if "stream" in form else 1 for m in told) == 2)
    assert bench.client.take() == []
    assert not any(unit.tasks[task].outputs for task in tasks)


@on_bench
async def test_a_fault_in_the_middle_of_a_sentence(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, speech(1.2))
    await until(lambda: bench.client.frames)
    recogniser.broken = True
    feed(bench, unit, task, silence(0.6))
    frames = await sentence(bench)
    assert [frame["error"]["code"] for frame in frames] == [0, -11]
    assert frames[-1]["data"] == {"delta": "", "finish": True, "index": 1}


@on_bench
async def test_sound_that_waits_is_bounded(bench, monkeypatch):
    monkeypatch.setattr(listening, "_MAX_WAITING", 100_000)
    unit, recogniser = add_unit(bench)
    recogniser.gate = threading.Event()
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, SENTENCE)
    await until(lambda: recogniser.calls)
    feed(bench, unit, task, SENTENCE)
    feed(bench, unit, task, SENTENCE, request_id="late")
    (reply,) = await bench.replies(1)
    assert (reply["error"]["code"], reply["request_id"]) == (-13, "late")
    recogniser.gate.set()
    for _ in range(2):
        await sentence(bench)


@on_bench
async def test_the_answer_follows_the_task_to_its_new_owner(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, speech(1.2))
    await until(lambda: bench.client.frames)
    other = type(bench.client)("other")
    bench.send(unit, task, "taskinfo", connection=other)
    feed(bench, unit, task, silence(1.5), connection=other)
    await until(lambda: any('finish":true' in frame.decode() for frame in other.frames))
    assert bench.client.replies[-1]["data"]["finish"] is False


@on_bench
async def test_the_microphone(bench):
    device = FakeDevice()
    unit, _ = add_unit(bench, device=device)
    await bench.set_up(unit, **FIELDS | {"input": "sys.pcm"})
    await until(lambda: device.listeners)
    for _ in range(20):
        device.listeners[0](SENTENCE[:3200])
    for _ in range(20):
        device.listeners[0](silence(0.1))
    assert (await sentence(bench))[-1]["data"]["delta"].endswith(".")


# Setup


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "whisper-base"}, "There is no asr model 'whisper-base'; there are whisper-tiny, broken."),
        ({"model": "broken"}, "it is no model"),
        ({"language": "zh"}, "language must be one that whisper-tiny knows (en), got 'zh'"),
        ({"language": 5}, "language"),
        ({"model": "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23"}, "knows (en), got 'zh'"),
        ({"rule1": 0}, "rule1 must be a number from 0.1 to 60, got 0"),
        ({"rule2": "1"}, "rule2"),
        ({"rule3": 121}, "rule3"),
        ({"endpoint_config.rule1.min_trailing_silence": -1}, "endpoint_config.rule1.min_trailing_silence"),
        ({"awake_delay": -1}, "awake_delay"),
        ({"silence_timeout": 5}, "silence_timeout"),
    ],
)
@on_bench
async def test_a_setup_that_is_wrong(bench, fields, words):
    unit, _ = add_unit(bench, configured={"broken": "/broken"})
    reply = await bench.ask(unit, "asr", "setup", {"enoutput": True, **FIELDS, **fields})
    assert (reply["work_id"], reply["error"]["code"]) == ("asr", -5)
    assert words in reply["error"]["message"]
    assert unit.recognisers.users == 0


@pytest.mark.parametrize(
    ("fields", "languages", "language"),
    [
        ({}, ["en"], "en"),
        ({"language": "en_US"}, ["en"], "en"),
        ({"model": "sherpa-ncnn-streaming-zipformer-20M-2023-02-17"}, ["en"], "en"),
        ({}, ["en", "zh", "de"], None),
        ({"language": "DE"}, ["en", "zh", "de"], "de"),
        ({"model": "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23"}, ["en", "zh"], "zh"),
        ({"model": "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23", "language": "en"}, ["en", "zh"], "en"),
    ],
)
@on_bench
async def test_the_language(bench, fields, languages, language):
    unit, recogniser = add_unit(bench, languages=languages)
    task = await bench.set_up(unit, **FIELDS | fields)
    feed(bench, unit, task, SENTENCE)
    await sentence(bench)
    assert recogniser.calls[0][1] == language


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({}, (2.4, 1.2, 30)),
        ({"rule1": 1, "rule2": 0.5, "rule3": 10}, (1, 0.5, 10)),
        ({"silence_timeout": 700}, (0.7, 0.7, 30)),
        ({"silence_timeout": 700, "rule2": 0.5}, (0.7, 0.5, 30)),
        (
            {
                "endpoint_config.rule1.min_trailing_silence": 3,
                "endpoint_config.rule2.min_trailing_silence": 2,
                "endpoint_config.rule3.min_trailing_silence": 30.1,
            },
            (3, 2, 30.1),
        ),
        ({"endpoint_config.rule3.min_utterance_length": 12}, (2.4, 1.2, 12)),
        ({"endpoint_config.rule2.min_trailing_silence": 2, "rule2": 1}, (2.4, 1, 30)),
    ],
)
@on_bench
async def test_when_sentences_end(bench, monkeypatch, fields, rules):
    seen = []
    monkeypatch.setattr(module, "Hearing", lambda *args, **kwargs: seen.append(args[3]) or Hearing(*args, **kwargs))
    unit, _ = add_unit(bench)
    await bench.set_up(unit, **FIELDS | fields)
    assert (seen[0].unspoken, seen[0].spoken, seen[0].longest) == rules


@on_bench
async def test_whisper_is_another_name(bench):
    unit, _ = add_unit(bench, WhisperUnit)
    fields = {"response_format": "asr.utf-8", "input": ["whisper.base64", "kws.7"], "language": "en"}
    task = await bench.set_up(unit, **FIELDS | fields)
    assert task == "whisper.1000"
    await bench.ask(unit, task, "work")
    feed(bench, unit, task, SENTENCE, "whisper.base64")
    assert (await bench.replies(1))[0]["data"] == "Heard 1."
    assert (await bench.ask(unit, "whisper", "taskinfo"))["object"] == "whisper.tasklist"
    assert unit.descriptors() == []


def test_descriptors():
    unit = AsrUnit(None, 1, SpeechModels({"mine": "/folder"}), None, None)
    assert [(model["mode"], model["type"]) for model in unit.descriptors()] == [("whisper-tiny", "asr"), ("mine", "asr")]
