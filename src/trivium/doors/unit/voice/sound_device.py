"""`SoundDevice`: the machine's microphone and loudspeaker, where it has them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trivium.doors.unit.voice.sound import BYTES_PER_SECOND, RATE

__all__ = ["NoDeviceError", "SoundDevice"]

log = logging.getLogger("trivium.unit")

_PIECE = BYTES_PER_SECOND // 10  # bytes of sound that the microphone gives at once
_CHUNK = BYTES_PER_SECOND // 50  # bytes that are played before it is seen whether to go on

Hear = Callable[[bytes], object]


class NoDeviceError(Exception):
    """There is no microphone or loudspeaker; the message says why."""


class SoundDevice:
    """Shared by all tasks of a server. Needs the package sounddevice, which needs the library PortAudio."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Hear] = []
        self._microphone: Any = None
        self._player: ThreadPoolExecutor | None = None

    def listen(self, hear: Hear) -> Callable[[], None]:
        """Have `hear` called with what the microphone hears, on a thread that must not be held up; returns what ends that.

        May take a while. Raises `NoDeviceError`.
        """
        with self._lock:
            if self._microphone is None:
                self._microphone = self._open_microphone()
            self._listeners.append(hear)

        def end() -> None:
            with self._lock:
                if hear in self._listeners:
                    self._listeners.remove(hear)
                if self._listeners or self._microphone is None:
                    return
                microphone, self._microphone = self._microphone, None
            microphone.close()

        return end

    def check_speaker(self) -> None:
        """May take a while. Raises `NoDeviceError` if nothing can be played."""
        sounddevice = _sounddevice()
        try:
            sounddevice.check_output_settings(samplerate=RATE, channels=1, dtype="int16")
        except Exception as error:  # PortAudioError, or ValueError without any device
            raise NoDeviceError(f"there is no loudspeaker: {error}") from error

    async def play(self, sound: bytes, stopped: Callable[[], bool]) -> None:
        """Play it to its end, or until `stopped` says so; behind what others play. Raises `NoDeviceError`."""
        if self._player is None:
            self._player = ThreadPoolExecutor(1, thread_name_prefix="trivium-player")
        await asyncio.get_running_loop().run_in_executor(self._player, _play, sound, stopped)

    def close(self) -> None:
        """Play no more. Whoever listens ends that itself."""
        if self._player is not None:
            self._player.shutdown(wait=False, cancel_futures=True)
            self._player = None

    def _open_microphone(self) -> Any:
        sounddevice = _sounddevice()
        try:
            microphone = sounddevice.RawInputStream(
                samplerate=RATE, channels=1, dtype="int16", blocksize=_PIECE // 2, callback=self._heard
            )
            microphone.start()
        except Exception as error:  # PortAudioError, or ValueError without any device
            raise NoDeviceError(f"there is no microphone: {error}") from error
        log.info("the microphone is on")
        return microphone

    def _heard(self, data: Any, num_frames: int, times: object, status: object) -> None:
        """On PortAudio's thread."""
        sound = bytes(data)
        for hear in tuple(self._listeners):
            hear(sound)


def _play(sound: bytes, stopped: Callable[[], bool]) -> None:
    if stopped():
        return
    sounddevice = _sounddevice()
    try:
        with sounddevice.RawOutputStream(samplerate=RATE, channels=1, dtype="int16") as speaker:
            for i in range(0, len(sound), _CHUNK):
                if stopped():
                    speaker.abort()
                    return
                speaker.write(sound[i : i + _CHUNK])
    except Exception as error:
        raise NoDeviceError(f"it cannot be played: {error}") from error


def _sounddevice() -> Any:
    try:
        return importlib.import_module("sounddevice")
    except ImportError:
        raise NoDeviceError("the package sounddevice is not installed") from None
    except OSError as error:  # the package is there, PortAudio is not
        raise NoDeviceError(f"sounddevice cannot be used: {error}") from None
