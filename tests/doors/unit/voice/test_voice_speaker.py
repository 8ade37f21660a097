"""Programs and packages that speak, replaced by small ones."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import numpy as np
import pytest
from voice_parts import tone, until, wav

from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.voice import speaker as module
from trivium.doors.unit.voice.models import SpeechModel
from trivium.doors.unit.voice.speaker import Espeak, SpeakerThreads, SpeechError, make_speaker


def in_loop(test):
    @wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    return run


@pytest.fixture
def program(tmp_path):
    """Makes an espeak-ng of a shell script; `sound` is what it may write."""
    (tmp_path / "sound").write_bytes(wav(tone(0.1, 22050), 22050, size=0x7FFFF000))

    def make(script):
        path = tmp_path / "espeak-ng"
        path.write_text(f"#!/bin/sh\ncd '{tmp_path}'\necho \"$$ $@\" >> calls\n{script}\n")
        path.chmod(0o755)
        return str(path)

    make.folder = tmp_path
    return make


def espeak(path, speed=1.0):
    return Espeak(path, "en-us", speed, SpeakerThreads())


@in_loop
async def test_text_goes_in_and_sound_comes_out(program):
    voice = espeak(program("cat > text; cat sound"), speed=2.0)
    sound = await voice.speak("-v $(rm) Hä\ud800?")
    assert len(sound) == 3200
    assert (program.folder / "text").read_text() == "-v $(rm) Hä??"
    assert (program.folder / "calls").read_text().split()[1:] == ["-v", "en-us", "-s", "330", "-b", "1", "--stdin", "--stdout"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no such voice' >&2; exit 1", "ended with 1: no such voice"),
        ("kill -9 $$", "ended with -9"),
        ("echo nonsense", "wrote no sound"),
        ("true", "wrote no sound"),
    ],
)
@in_loop
async def test_a_program_that_fails(program, script, message):
    with pytest.raises(SpeechError, match=message):
        await espeak(program(script)).speak("a")


@in_loop
async def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(SpeechError, match="cannot be started"):
        await espeak(str(tmp_path / "nothing")).speak("a")


@in_loop
async def test_a_program_that_hangs_is_killed(program, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.1)
    with pytest.raises(SpeechError, match=r"took more than 0\.1 s"):
        await espeak(program("exec sleep 100")).speak("a")
    assert not is_running(program)


@in_loop
async def test_cancelling_kills_the_program(program):
    voice = espeak(program("exec sleep 100"))
    speaking = asyncio.create_task(voice.speak("a"))
    await until((program.folder / "calls").exists)
    await cancelled(speaking)
    assert not is_running(program)


@in_loop
async def test_cancelling_while_much_sound_comes(program):
    """What the program wrote before it was killed is more than the loop keeps of it: nobody reads it any more."""
    voice = espeak(program("exec cat /dev/zero"))
    speaking = asyncio.create_task(voice.speak("a"))
    await until((program.folder / "calls").exists)
    await asyncio.sleep(0.02)
    await cancelled(speaking)
    assert not is_running(program)


@in_loop
async def test_two_at_once(program):
    voice = espeak(program("exec sleep 100"))
    speaking = [asyncio.create_task(voice.speak("a")) for _ in range(4)]
    await until(lambda: (program.folder / "calls").exists() and num_calls(program) == 2)
    await asyncio.sleep(0.05)
    assert num_calls(program) == 2
    for job in speaking:
        job.cancel()
    await asyncio.wait(speaking)


async def cancelled(speaking):
    """Cancel it, and see that this is what it ends with, at once."""
    speaking.cancel()
    await asyncio.wait([speaking], timeout=10)
    assert speaking.cancelled()


def num_calls(program):
    return len((program.folder / "calls").read_text().splitlines())


def is_running(program):
    import os

    pid = int((program.folder / "calls").read_text().split()[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Voices for setups


def make(target="espeak-ng", language=None, of_model=None, speed=1.0):
    return make_speaker(SpeechModel("name", target, of_model), language, speed, SpeakerThreads())


@pytest.mark.parametrize(
    ("language", "of_model", "voice"),
    [
        (None, None, "en-us"),
        ("en", None, "en-us"),
        ("en_GB", None, "en-gb"),
        (None, "zh", "cmn"),
        ("de", "zh", "de"),
        ("en-gb-x-rp", None, "en-gb-x-rp"),
    ],
)
@in_loop
async def test_the_voice_of_a_language(program, monkeypatch, language, of_model, voice):
    path = program("cat sound")
    monkeypatch.setattr(module.shutil, "which", lambda name: path)
    assert len(await (await make(language=language, of_model=of_model)).speak("a")) == 3200
    assert (program.folder / "calls").read_text().split()[1:3] == ["-v", voice]


@pytest.mark.parametrize("language", ["", "../x", "-x", "english", "en us", "EN-", "x" * 50, "a/b"])
@in_loop
async def test_what_is_no_language(program, monkeypatch, language):
    path = program("cat sound")
    monkeypatch.setattr(module.shutil, "which", lambda name: path)
    if not language:
        await make(language=language)
        return
    with pytest.raises(UnitError, match="language must be like"):
        await make(language=language)


@in_loop
async def test_a_voice_that_the_program_does_not_have(program, monkeypatch):
    path = program("echo 'The specified espeak-ng voice does not exist.' >&2; exit 1")
    monkeypatch.setattr(module.shutil, "which", lambda name: path)
    with pytest.raises(UnitError, match="voice does not exist"):
        await make(language="qq")


@in_loop
async def test_without_the_program(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(UnitError, match="espeak-ng is not installed"):
        await make()


# piper


class FakeVoice:
    @classmethod
    def load(cls, path):
        if "broken" in path:
            raise ValueError("it is no voice")
        return cls()

    def synthesize(self, text, options):
        if text == "crash":
            raise RuntimeError("crashed")
        levels = np.full(2205, 0.5 / options.length_scale)
        return [types.SimpleNamespace(audio_float_array=levels, sample_rate=22050)] * 2


@pytest.fixture
def piper(monkeypatch):
    package = types.ModuleType("piper")
    package.PiperVoice = FakeVoice
    package.SynthesisConfig = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "piper", package)


@in_loop
async def test_a_voice_of_piper(piper):
    voice = await make("/voices/joe.onnx", speed=0.5)
    sound = np.frombuffer(await voice.speak("hello"), "<i2")
    assert len(sound) == 3200
    assert abs(int(sound[800]) - 8192) < 100
    with pytest.raises(SpeechError, match="piper failed: crashed"):
        await voice.speak("crash")


@in_loop
async def test_voices_need_none_of_the_loops_usual_threads(program, piper, monkeypatch):
    """Those submit the requests of all doors: what they do must not wait for speech, nor the other way round."""
    path = program("cat sound")
    monkeypatch.setattr(module.shutil, "which", lambda name: path)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    busy = asyncio.get_running_loop().run_in_executor(None, gate.wait)
    try:
        for target in ("espeak-ng", "/voices/joe.onnx"):
            assert await asyncio.wait_for((await make(target)).speak("hello"), 20)
    finally:
        gate.set()
        await busy


@in_loop
async def test_voices_of_piper_that_cannot_be_had(piper, monkeypatch):
    with pytest.raises(UnitError, match="cannot be loaded: it is no voice"):
        await make("/broken.onnx")
    with pytest.raises(UnitError, match="language must not be given"):
        await make("/joe.onnx", language="de")
    monkeypatch.setitem(sys.modules, "piper", None)
    with pytest.raises(UnitError, match="needs the package piper-tts"):
        await make("/joe.onnx")
