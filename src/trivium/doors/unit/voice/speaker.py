"""`Speaker`: text to sound, with espeak-ng or a voice of piper."""

from __future__ import annotations

import asyncio
import importlib
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.models import SPEAKER, SpeechModel
from trivium.doors.unit.voice.sound import read_wav, resample, to_sound

__all__ = ["Espeak", "Piper", "Speaker", "SpeakerThreads", "SpeechError", "make_speaker"]

_SECONDS = 20.0  # for one piece of text
_USUAL_SPEED = 165  # words per minute
_LANGUAGES = {"en": "en-us", "zh": "cmn"}  # whose voices have other names
_VOICE = re.compile(r"[a-z]{2,4}(-[a-z0-9]{1,12}){0,3}")
_AT_ONCE = 2  # programs or threads that speak for one unit; more would only wait for each other

Result = TypeVar("Result")


class SpeechError(Exception):
    """A piece of text could not be spoken."""


class SpeakerThreads:
    """Where voices are loaded and speak: threads of their own, because the loop's usual ones submit the requests of all doors.

    Attributes:
        programs: holds those back that would be too many at once.
    """

    def __init__(self) -> None:
        self.programs = asyncio.Semaphore(_AT_ONCE)
        self._loader = ThreadPoolExecutor(1, "trivium-load-tts")
        self._speakers = ThreadPoolExecutor(_AT_ONCE, "trivium-speak")

    async def load(self, function: Callable[[], Result]) -> Result:
        """Run what may take long, once for a setup."""
        return await asyncio.get_running_loop().run_in_executor(self._loader, function)

    async def speak(self, function: Callable[[], Result]) -> Result:
        """Run what is done for each piece of text."""
        return await asyncio.get_running_loop().run_in_executor(self._speakers, function)

    def close(self) -> None:
        """Run no more; what runs goes on to its end."""
        self._loader.shutdown(wait=False)
        self._speakers.shutdown(wait=False)


class Speaker(ABC):
    """One voice. Used on the event loop; what takes time runs elsewhere."""

    @abstractmethod
    async def speak(self, text: str) -> bytes:
        """The sound of a text. Cancelling it is safe. Raises `SpeechError`."""


class Espeak(Speaker):
    """A voice of the program espeak-ng, which is started for each piece of text."""

    def __init__(self, program: str, voice: str, speed: float, threads: SpeakerThreads) -> None:
        self._command = [program, "-v", voice, "-s", str(round(_USUAL_SPEED * speed)), "-b", "1", "--stdin", "--stdout"]
        self._threads = threads

    async def speak(self, text: str) -> bytes:
        async with self._threads.programs:
            wav = await self._run(text.encode("utf-8", "replace"))
        try:
            return await self._threads.speak(lambda: read_wav(wav).sound())
        except UnitError as error:
            raise SpeechError(f"espeak-ng wrote no sound: {error}") from error

    async def _run(self, text: bytes) -> bytes:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise SpeechError(f"espeak-ng cannot be started: {error.strerror}") from error
        try:
            wav, errors = await asyncio.wait_for(process.communicate(text), _SECONDS)
        except asyncio.TimeoutError:
            raise SpeechError(f"espeak-ng took more than {_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                # Its end is noticed once all that it wrote is read; what would cancel this again must not leave it unread.
                await asyncio.shield(process.communicate())
        if process.returncode:
            message = errors.decode(errors="replace").strip().partition("\n")[0]
            raise SpeechError(f"espeak-ng ended with {process.returncode}: {message}")
        return wav


class Piper(Speaker):
    """A voice of the package piper, a file `.onnx` with its `.onnx.json` beside it. For one task: one text at a time."""

    def __init__(self, path: str, speed: float, threads: SpeakerThreads) -> None:
        """Takes about a second. Raises what piper raises for a file that is no voice, and ImportError without piper."""
        piper: Any = importlib.import_module("piper")
        self._voice = piper.PiperVoice.load(path)
        self._options = piper.SynthesisConfig(length_scale=1 / speed)
        self._threads = threads

    async def speak(self, text: str) -> bytes:
        try:
            return await self._threads.speak(lambda: self._speak(text))
        except Exception as error:
            raise SpeechError(f"piper failed: {error}") from error

    def _speak(self, text: str) -> bytes:
        chunks = self._voice.synthesize(text, self._options)
        return b"".join(
            to_sound(resample(np.asarray(chunk.audio_float_array, np.float32), chunk.sample_rate)) for chunk in chunks
        )


async def make_speaker(model: SpeechModel, language: str | None, speed: float, threads: SpeakerThreads) -> Speaker:
    """The voice for a setup, which has spoken once. `language` as espeak-ng names it, like "de" or "en-gb".

    Raises `UnitError` MODEL if there is no such voice, or not what speaks it.
    """
    speaker = await _load(model, language, speed, threads)
    try:
        await speaker.speak("a")
    except SpeechError as error:
        raise UnitError(Code.MODEL, str(error)) from error
    return speaker


async def _load(model: SpeechModel, language: str | None, speed: float, threads: SpeakerThreads) -> Speaker:
    if model.target != SPEAKER:
        if language is not None:
            raise UnitError(Code.MODEL, f"language must not be given: {model.name!r:.80} is a voice of its own")
        try:
            return await threads.load(partial(Piper, model.target, speed, threads))
        except ImportError as error:
            raise UnitError(Code.MODEL, f"{model.name!r:.80} needs the package piper-tts: {error}") from error
        except Exception as error:
            raise UnitError(Code.MODEL, f"{model.name!r:.80} cannot be loaded: {error}") from error
    program = shutil.which(SPEAKER)
    if program is None:
        raise UnitError(Code.MODEL, f"The program {SPEAKER} is not installed; it is a system package of that name.")
    voice = (language or model.language or "en").lower().replace("_", "-")
    voice = _LANGUAGES.get(voice, voice)
    if not _VOICE.fullmatch(voice):
        raise UnitError(Code.MODEL, f'language must be like "en" or "en-gb", got {language!r:.80}')
    return Espeak(program, voice, speed, threads)
