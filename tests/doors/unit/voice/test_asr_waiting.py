"""Sound that waits for the unit `asr`: its bounds, files and pieces, pauses and exits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asr_parts import FIELDS, SENTENCE, add_unit, feed, heard_out, sentence
from voice_parts import loud, on_bench, packed, silence, speech, until, wav

from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.voice import asr as module
from trivium.doors.unit.voice import listening
from trivium.doors.unit.voice.models import SpeechModel
from trivium.doors.unit.voice.recogniser import Recognisers


@pytest.fixture(autouse=True)
def detector(monkeypatch):
    monkeypatch.setattr(module, "webrtc_detector", lambda: loud)


@on_bench
async def test_files_that_wait_keep_their_own_ids_and_clients(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"input": "asr.wav.base64"})
    recogniser.gate = threading.Event()
    for request_id in ("one", "two"):
        feed(bench, unit, task, wav(SENTENCE), kind="asr.wav.base64", request_id=request_id)
    recogniser.gate.set()
    assert [(await sentence(bench))[0]["request_id"] for _ in range(2)] == ["one", "two"]
    assert not unit.tasks[task].outputs


@pytest.mark.parametrize("kind", ["asr.base64", "asr.wav.base64"])
@on_bench
async def test_sound_that_waits_does_not_keep_its_message(bench, monkeypatch, kind):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    kept, put = [], unit.tasks[task].worker.put
    monkeypatch.setattr(unit.tasks[task].worker, "put", lambda job, size=0: kept.extend(job.args) or put(job, size))
    sound = packed(wav(SENTENCE) if "wav" in kind else SENTENCE) + " " * 2**20  # which count for nothing
    bench.send(unit, task, "inference", sound, kind=kind, request_id="a")
    assert [(one.request_id, one.data) for one in kept if isinstance(one, Command)] == [("a", "None")]
    assert (await sentence(bench))[0]["request_id"] == "a"


@on_bench
async def test_files_that_wait_at_the_exit_or_come_in_a_pause_get_a_last_frame(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"input": "asr.wav.base64"})
    bench.send(unit, task, "pause", request_id="p")
    await bench.replies(1)
    feed(bench, unit, task, wav(SENTENCE), kind="asr.wav.base64", request_id="paused")
    assert [frame["request_id"] for frame in await sentence(bench)] == ["paused"]
    bench.send(unit, task, "work", request_id="w")
    await bench.replies(1)
    recogniser.gate = threading.Event()
    for request_id in ("one", "two"):
        feed(bench, unit, task, wav(SENTENCE), kind="asr.wav.base64", request_id=request_id)
    assert len(unit.tasks[task].outputs) == 2
    bench.send(unit, task, "exit", request_id="e")
    ends = [(await sentence(bench))[-1]["request_id"] for _ in range(2)]
    assert sorted(ends) == ["one", "two"]
    recogniser.gate.set()


@on_bench
async def test_sound_that_waits_at_a_pause_is_not_told(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"input": "asr.base64"})
    told = []
    bench.bus.subscribe(task, told.append)
    recogniser.gate = threading.Event()
    feed(bench, unit, task, SENTENCE, request_id="running")
    await until(lambda: recogniser.calls)
    feed(bench, unit, task, SENTENCE, request_id="waiting")
    feed(bench, unit, task, wav(SENTENCE), request_id="file")
    bench.send(unit, task, "pause", request_id="p")
    last, ack = await bench.replies(2)
    assert (last["request_id"], last["data"]) == ("file", {"delta": "", "finish": True, "index": 0})
    assert ack["request_id"] == "p"
    recogniser.gate.set()
    await heard_out(unit, task)
    await bench.ask(unit, task, "work")
    feed(bench, unit, task, SENTENCE, request_id="later")
    frames = await sentence(bench)
    assert (frames[-1]["request_id"], frames[-1]["data"]["delta"]) == ("later", "Heard 2.")
    assert bench.client.take() == []
    assert {message.request_id for message in told} == {"later"}
    assert not unit.tasks[task].outputs


@on_bench
async def test_a_pause_and_an_exit_in_a_recording_end_it(bench):
    unit, recogniser = add_unit(bench)
    for action in ("pause", "exit"):
        recogniser.calls.clear()
        recogniser.gate = threading.Event()
        task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
        feed(bench, unit, task, wav(SENTENCE * 20), request_id="file")
        await until(lambda: recogniser.calls)
        worker = unit.tasks[task].worker
        bench.send(unit, task, action, request_id="a")
        frames = await bench.replies(2)
        assert [(frame["request_id"], frame["data"]) for frame in frames] == [("file", ""), ("a", "None")]
        recogniser.gate.set()
        worker.stop()
        await until(lambda worker=worker: worker not in unit.workers)
        assert len(recogniser.calls) == 1


@on_bench
async def test_paused_again_before_the_thread_has_come_to_it(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    recogniser.gate = threading.Event()
    feed(bench, unit, task, SENTENCE, request_id="one")
    await until(lambda: recogniser.calls)
    for request_id in ("two", "three"):
        bench.send(unit, task, "pause")
        bench.send(unit, task, "work")
        feed(bench, unit, task, SENTENCE, request_id=request_id)
    await bench.replies(4)
    recogniser.gate.set()
    (frame,) = await bench.replies(1)
    assert (frame["request_id"], frame["data"]) == ("three", "Heard 2.")


@on_bench
async def test_work_in_the_middle_of_a_sentence_changes_nothing(bench):
    unit, _ = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    feed(bench, unit, task, speech(0.6))
    await bench.ask(unit, task, "work")
    feed(bench, unit, task, silence(1.2))
    assert (await bench.replies(1))[0]["data"] == "Heard 1."


@on_bench
async def test_a_file_ends_what_was_being_said(bench):
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS)
    feed(bench, unit, task, speech(1.2), request_id="stream")
    feed(bench, unit, task, wav(speech(0.6)), request_id="file")
    first, second = await sentence(bench), await sentence(bench)
    assert [frame["data"]["delta"] for frame in first] == ["Heard 1", "Heard 2."]
    assert (second[-1]["request_id"], second[-1]["data"]["delta"]) == ("file", "Heard 3.")
    feed(bench, unit, task, speech(0.6), request_id="stream")
    await heard_out(unit, task)
    recogniser.broken = True  # a fault in that is not one of the file, which is heard all the same
    feed(bench, unit, task, wav(silence(0.6)), request_id="file")
    ends = [(await sentence(bench))[-1] for _ in range(2)]
    assert [end["error"]["code"] for end in ends] == [-11, 0]
    assert ends[1]["request_id"] == "file"
    assert not unit.tasks[task].outputs


@pytest.mark.parametrize(("rate", "bits"), [(4000, 8), (4000, 16), (16000, 16)])
@on_bench
async def test_sound_is_bounded_in_seconds_whatever_its_rate(bench, monkeypatch, rate, bits):
    monkeypatch.setattr(listening, "_MAX_WAITING", 10 * 32000)
    unit, recogniser = add_unit(bench)
    task = await bench.set_up(unit, **FIELDS | {"response_format": "asr.utf-8"})
    feed(bench, unit, task, wav(bytes(11 * rate * bits // 8), rate, bits=bits), request_id="long")
    (refused,) = await bench.replies(1)
    assert (refused["error"]["code"], refused["request_id"]) == (-13, "long")
    assert "At most 10 s of sound may wait, and 11.0 s more have come." in refused["error"]["message"]
    recogniser.gate = threading.Event()
    feed(bench, unit, task, SENTENCE)
    await until(lambda: recogniser.calls)
    for seconds, code in ((6, None), (6, -13), (3, None)):
        feed(bench, unit, task, wav(bytes(seconds * rate * bits // 8), rate, bits=bits), request_id="more")
        codes = [frame["error"]["code"] for frame in bench.client.take()]
        assert codes == ([] if code is None else [code])
    recogniser.gate.set()
    await bench.replies(3)


@on_bench
async def test_setups_need_none_of_the_loops_usual_threads(bench):
    """Those submit the requests of all doors: what they do must not wait for speech, nor the other way round."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    busy = asyncio.get_running_loop().run_in_executor(None, gate.wait)
    try:
        recognisers = Recognisers()
        with pytest.raises(UnitError, match="'mine' cannot be loaded"):
            await recognisers.acquire(SpeechModel("mine", "/"))
        recognisers.close()
    finally:
        gate.set()
        await busy
