"""The `kws` unit: listens for wake words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Protocol

import orjson

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.frames import reply
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit
from trivium.doors.unit.voice.chime import chime
from trivium.doors.unit.voice.listening import ListeningTask, ListeningUnit
from trivium.doors.unit.voice.models import KEYWORDS, SpeechModel, SpeechModels
from trivium.doors.unit.voice.sherpa_model import is_sherpa_installed
from trivium.doors.unit.voice.sherpa_spotter import SherpaSpotter
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND
from trivium.doors.unit.voice.sound_device import NoDeviceError, SoundDevice
from trivium.doors.unit.voice.spotter import PhraseError, Spotted, Spotter, clean_phrase
from trivium.errors import ModelLoadError

__all__ = ["KwsTask", "KwsUnit", "Spots"]

log = logging.getLogger("trivium.unit")

_MAX_PHRASES, _MAX_PHRASE = 32, 100
_BUTTONS = "buttons_thread"  # the original's buttons on its own board
_USUAL_THRESHOLD = 0.25  # of the original's field
_PIECE = BYTES_PER_SECOND  # of a recording, after which it is seen whether it is still wanted


class Spots(Protocol):
    """What finds the wake words."""

    def hear(self, sound: bytes) -> list[Spotted]: ...

    def finish(self) -> list[Spotted]: ...

    def forget(self) -> None: ...


class KwsUnit(ListeningUnit):
    """Wake words, by pocketsphinx in English, by sherpa-onnx in whatever language its model is for."""

    name: ClassVar[str] = "kws"
    actions: ClassVar[Mapping[str, str]] = {**Unit.actions, "trigger": "on_trigger"}

    def __init__(self, bus: Bus, max_tasks: int, models: SpeechModels, device: SoundDevice) -> None:
        super().__init__(bus, max_tasks, models, device)
        self._loader = ThreadPoolExecutor(1, "trivium-load-kws")  # the loop's usual threads submit the requests of all doors

    async def create(self, work_id: str, setup: Setup, command: Command) -> Task:
        phrases = _read_phrases(setup)
        model = self.models.find("kws", setup.model)
        # The original's field, from 0 to 1, says how sure it must be of a word.
        threshold = setup.number("keywords_threshold", _USUAL_THRESHOLD, low=0.0, high=1.0)
        setup.text("wake_wav_file", "")
        chimes = setup.flag("enwake_audio", True)
        given_threshold = threshold if setup.has("keywords_threshold") else None
        make = partial(_make_spotter, model, phrases, given_threshold)
        spotter = await asyncio.get_running_loop().run_in_executor(self._loader, make)
        if setup.has("wake_wav_file"):
            log.warning("%s: wake_wav_file is not played: devices cannot name files of this machine", work_id)
        return KwsTask(self, work_id, setup, command, spotter, chimes=chimes)

    def descriptors(self) -> list[dict[str, Any]]:
        told = self.models.descriptors("kws", ["Keyword_spotting"], ["sys.pcm", "kws.base64"], ["kws.bool"])
        for model in told:
            if self.models.find("kws", model["mode"]).target == KEYWORDS:
                model["capabilities"] = [*model["capabilities"], "English"]
        return told

    async def shutdown(self) -> None:
        await super().shutdown()
        self._loader.shutdown(wait=False)


class KwsTask(ListeningTask):
    """Says `true` whenever a wake word is heard, or a text with the word if the response format has "json" in it."""

    unit: KwsUnit

    def __init__(self, unit: KwsUnit, work_id: str, setup: Setup, command: Command, spotter: Spots, *, chimes: bool) -> None:
        super().__init__(unit, work_id, setup, command)
        self._spotter = spotter
        self._chimes = chimes
        self._chiming: set[asyncio.Task[None]] = set()

    def receive(self, message: ChainMessage) -> None:
        """Nothing is linked to it."""

    def on_link(self, command: Command) -> None:
        """Listen to the microphone, too."""
        name = command.data
        if not isinstance(name, str) or not ("sys" in name or name == _BUTTONS):
            raise UnitError(Code.LINK_KIND, "kws can be linked to sys.pcm only")
        if name == _BUTTONS:
            log.warning("%s: there are no buttons here", self.work_id)
            self.inputs += [] if name in self.inputs else [name]
            command.reply()
            return
        super().on_link(command)

    def on_trigger(self, command: Command) -> None:
        """Do as if a wake word had been heard. Nothing else is answered."""
        self._wake(True)

    def hear(self, sound: bytes, *, whole: bool) -> None:
        for piece in _pieces(sound):
            if self.is_unwanted():
                return
            self._tell_all(self._spotter.hear(piece))
        if whole:
            self.hear_nothing()

    def hear_nothing(self) -> None:
        self._tell_all(self._spotter.finish())

    def forget(self) -> None:
        self._spotter.forget()

    def free(self) -> None:
        del self._spotter

    def _tell_all(self, found: list[Spotted]) -> None:
        for spotted in found:
            log.debug("%s heard %r", self.work_id, spotted.phrase)
            self.tell(self._heard, spotted)

    def _heard(self, spotted: Spotted) -> None:
        if "json" not in self.setup.response_format:
            self._wake(True)
            return
        text = orjson.dumps({"keyword": spotted.phrase, "start_time": round(spotted.start, 2)}).decode()
        self._wake({"delta": text, "finish": True, "index": 0} if self.setup.streams else text)

    def _wake(self, data: object) -> None:
        setup = self.setup
        self.unit.bus.publish(ChainMessage(self.work_id, self.request_id, setup.response_format, data))
        if setup.enoutput:
            self.owner.send(reply(self.request_id, self.work_id, object=setup.response_format, data=data))
        if self._chimes and any("sys" in name for name in self.inputs):
            job = self._loop.create_task(self._chime())
            self._chiming.add(job)
            job.add_done_callback(self._chiming.discard)

    async def _chime(self) -> None:
        try:
            await self.unit.device.play(chime(), lambda: self._closed)
        except NoDeviceError as error:
            self._chimes = False
            log.warning("%s: no sound tells that a wake word was heard: %s", self.work_id, error)


def _make_spotter(model: SpeechModel, phrases: list[str], threshold: float | None) -> Spots:
    """What finds the phrases. `threshold` as the setup has it. Takes up to some seconds. Raises `UnitError`."""
    try:
        if model.target != KEYWORDS:
            return _make_sherpa_spotter(model, phrases, threshold)
        if model.language not in (None, "en"):
            raise UnitError(
                Code.MODEL, f"{model.name!r:.80} is for the language {model.language!r}; {model.target} knows English"
            )
        ease = 0.0 if threshold is None else _USUAL_THRESHOLD - threshold
        return Spotter([clean_phrase(phrase) for phrase in phrases], ease=ease)
    except PhraseError as error:
        raise UnitError(Code.MODEL, str(error)) from error


def _make_sherpa_spotter(model: SpeechModel, phrases: list[str], threshold: float | None) -> Spots:
    if not is_sherpa_installed():
        raise UnitError(Code.NO_UNIT, f"{model.name!r:.80} needs sherpa-onnx: `pip install 'trivium[sherpa]'`")
    try:
        return SherpaSpotter(model.target, phrases, threshold=threshold)
    except ModelLoadError as error:
        raise UnitError(Code.MODEL, f"{model.name!r:.80} cannot be loaded: {error}") from error


def _pieces(sound: bytes) -> Iterator[bytes]:
    return (sound[i : i + _PIECE] for i in range(0, len(sound), _PIECE))


def _read_phrases(setup: Setup) -> list[str]:
    """The wake words of a setup, a string or an array. Raises `UnitError` MODEL."""
    given = setup.values.get("kws")
    phrases = [given] if isinstance(given, str) else given
    if not isinstance(phrases, list) or not phrases or not all(isinstance(phrase, str) for phrase in phrases):
        raise UnitError(Code.MODEL, f"kws must be a string or an array of strings, got {given!r:.80}")
    if len(phrases) > _MAX_PHRASES or any(len(phrase) > _MAX_PHRASE for phrase in phrases):
        raise UnitError(Code.MODEL, f"kws must have at most {_MAX_PHRASES} strings of at most {_MAX_PHRASE} characters")
    return phrases
