"""`Recognisers`: Whisper models, each loaded once and shared by the tasks that name it."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.models import SpeechModel
from trivium.engine.machine import usable_cores
from trivium.errors import ModelLoadError
from trivium.models.catalogue import resolve_model

__all__ = ["Recogniser", "Recognisers"]

log = logging.getLogger("trivium.unit")

_MAX_THREADS = 4  # half of the cores, at most: more hardly make small models faster, and hold the language model up


class Recogniser:
    """One Whisper model in CTranslate2's format, run by faster-whisper on the CPU with 8-bit weights."""

    def __init__(self, path: str) -> None:
        """Takes about a second. Raises what faster-whisper raises for a folder that is no such model."""
        from faster_whisper import WhisperModel

        logging.getLogger("faster_whisper").setLevel(logging.WARNING)  # it tells of each sentence
        threads = min(_MAX_THREADS, max(1, usable_cores() // 2))
        self._model: Any = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=threads, local_files_only=True)
        self._lock = threading.Lock()
        self.languages: list[str] = list(self._model.supported_languages)

    def transcribe(self, sound: bytes, language: str | None) -> str:
        """The text of a sentence, "" if it has none; one at a time. `language` of two letters, None to have it detected."""
        levels = np.frombuffer(sound, "<i2").astype(np.float32) / 32768
        with self._lock:
            segments, _ = self._model.transcribe(
                levels,
                language=language,
                beam_size=5,
                temperature=0.0,  # the same sound gives the same text
                condition_on_previous_text=False,
                without_timestamps=True,
                vad_filter=True,  # Whisper makes sentences of noise
            )
            return "".join(segment.text for segment in segments).strip()


class _Shared:
    def __init__(self, loading: asyncio.Task[Recogniser]) -> None:
        self.loading = loading
        self.users = 0


class Recognisers:
    """The models in use. Everything runs on the event loop, loading on a thread."""

    def __init__(self) -> None:
        self._shared: dict[str, _Shared] = {}  # by target
        self._loader = ThreadPoolExecutor(1, "trivium-load-asr")  # the loop's usual threads submit the requests of all doors

    async def acquire(self, model: SpeechModel) -> Recogniser:
        """A model, loaded; give it back with `release`. Raises `UnitError` MODEL."""
        shared = self._shared.get(model.target)
        if shared is None:
            shared = self._shared[model.target] = _Shared(asyncio.create_task(self._load(model.target)))
        shared.users += 1
        try:
            return await asyncio.shield(shared.loading)
        except Exception as error:
            self.release(model)
            log.warning("the speech model %s cannot be loaded: %s", model.target, error)
            raise UnitError(Code.MODEL, f"{model.name!r:.80} cannot be loaded: {error}") from error

    def release(self, model: SpeechModel) -> None:
        """One task uses the model no more. It is freed when the last one's thread lets go of it."""
        shared = self._shared[model.target]
        shared.users -= 1
        if not shared.users:
            del self._shared[model.target]

    def close(self) -> None:
        """Load no more."""
        self._loader.shutdown(wait=False)

    async def _load(self, target: str) -> Recogniser:
        return await asyncio.get_running_loop().run_in_executor(self._loader, _load, target)


def _load(target: str) -> Recogniser:
    """Raises `ModelLoadError`."""
    path = resolve_model(target)
    try:
        return Recogniser(str(path))
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ModelLoadError(f"{path.name} is no Whisper model in CTranslate2's format: {first_line}") from error
