"""The units `tts` and `melotts`: text to speech."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.input import MAX_KEPT_BYTES, QUIET_SECONDS, STREAM_BYTES, read_chunk, too_much
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit
from trivium.doors.unit.voice.models import SpeechModels
from trivium.doors.unit.voice.sentences import Sentences
from trivium.doors.unit.voice.sound_device import NoDeviceError, SoundDevice
from trivium.doors.unit.voice.speaker import Speaker, SpeakerThreads, SpeechError, make_speaker
from trivium.doors.unit.voice.speech_output import SpeechOutput
from trivium.doors.unit.voice.text_chunks import TextChunks

__all__ = ["MelottsUnit", "TtsTask", "TtsUnit"]

log = logging.getLogger("trivium.unit")

_MAX_PIECES = 1000  # pieces of one text that wait
_MAX_CHARS = 65536  # that come at once: to cut megabytes would hold up the loop
_QUIET_SECONDS = 30.0  # after which a text that does not go on has ended


class TtsUnit(Unit):
    """Voices by name: espeak-ng's, and piper's as the configuration names them."""

    name: ClassVar[str] = "tts"
    upstreams: ClassVar[frozenset[str]] = frozenset({"llm", "vlm", "kws"})

    def __init__(self, bus: Bus, config: UnitConfig, models: SpeechModels, device: SoundDevice) -> None:
        super().__init__(bus, config.unit_max_tasks)
        self.config = config
        self.models = models
        self.device = device
        self.workers: set[asyncio.Task[None]] = set()
        self._threads = SpeakerThreads()

    def is_own_input(self, name: str) -> bool:
        return "tts" in name and not self.is_upstream(name)

    async def create(self, work_id: str, setup: Setup, command: Command) -> Task:
        model = self.models.find("tts", setup.model)
        speed_field = "spk_speed" if setup.has("spk_speed") else "spacker_speed"  # the original has both
        speed = setup.number(speed_field, 1.0, low=0.25, high=4.0)
        language = setup.text("language") if setup.has("language") else None
        plays = "sys" in setup.response_format
        if plays:
            try:
                await self._threads.load(self.device.check_speaker)
            except NoDeviceError as error:
                log.warning("%s cannot play on this machine: %s", work_id, error)
        speaker = await make_speaker(model, language, speed, self._threads)
        return TtsTask(self, work_id, setup, command, speaker, plays=plays)

    def descriptors(self) -> list[dict[str, Any]]:
        inputs, outputs = ["tts.utf-8", "tts.utf-8.stream"], ["sys.pcm", "tts.base64", "tts.base64.stream"]
        return self.models.descriptors("tts", ["tts"], inputs, outputs)

    async def shutdown(self) -> None:
        await super().shutdown()
        if self.workers:
            await asyncio.wait(self.workers)
        self._threads.close()
        self.device.close()


class MelottsUnit(TtsUnit):
    """The same under the name of the original's other unit for it."""

    name: ClassVar[str] = "melotts"

    def descriptors(self) -> list[dict[str, Any]]:
        """tts lists them."""
        return []


class _Speech:
    """A text that waits to be spoken, or is being spoken while more of it may come."""

    def __init__(self, output: SpeechOutput) -> None:
        self.output = output
        self.pieces: deque[str] = deque()
        self.complete = False
        self.said = False  # all of it
        self.changed = asyncio.Event()
        self._sentences = Sentences()

    def add(self, text: str) -> None:
        """The text goes on. Raises `UnitError` BUSY if too much of it waits."""
        if len(text) <= _MAX_CHARS:
            self.pieces += self._sentences.add(text)
        if len(text) > _MAX_CHARS or len(self.pieces) > _MAX_PIECES:
            raise UnitError(Code.BUSY, "The text comes faster than it can be spoken.")
        self.changed.set()

    def finish(self) -> None:
        """That was all of the text."""
        self.pieces += self._sentences.finish()
        self.complete = True
        self.changed.set()

    async def next(self) -> str | None:
        """The next piece; None after the last."""
        while not self.pieces and not self.complete:
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), _QUIET_SECONDS)
            except asyncio.TimeoutError:
                self.finish()
        return self.pieces.popleft() if self.pieces else None


@dataclass(slots=True)
class _Text:
    """A text that a client sends in chunks."""

    unanswered: Command | None  # the first of its commands, until something of it is to be spoken
    heard: float = 0.0
    chunks: TextChunks = field(default_factory=TextChunks)
    speech: _Speech | None = None
    refused: bool = False

    @property
    def is_over(self) -> bool:
        """It has had its last frame before its end: what still comes of it is dropped."""
        speech = self.speech
        return self.refused or (speech is not None and speech.output.finished and not speech.said)


class TtsTask(Task):
    """One voice. Texts are spoken one after the other, piece by piece; those that come meanwhile wait."""

    unit: TtsUnit

    def __init__(self, unit: TtsUnit, work_id: str, setup: Setup, command: Command, speaker: Speaker, *, plays: bool) -> None:
        """`plays`: on the loudspeaker of this machine."""
        super().__init__(unit, work_id, setup, command)
        self._speaker = speaker
        self._plays = plays
        self._waiting: deque[_Speech] = deque()
        self._running: _Speech | None = None
        self._speaking: asyncio.Task[None] | None = None  # the running one
        self._worker: asyncio.Task[None] | None = None
        # Texts that go on: of users, one per connection, and of linked tasks.
        self._texts: dict[Connection, _Text] = {}
        self._answers: dict[str, _Speech] = {}
        self._deaf = False  # just woken: what linked tasks still say belongs to what was interrupted

    # Users

    def infer(self, command: Command) -> None:
        if "stream" in command.object and "base64" not in command.object:
            self._infer_chunk(command)
            return
        text = self.reader.read_text(command)
        if text and text != "None":
            speech = self._start(command.request_id, command.connection)
            self._add(speech, text)
            speech.finish()

    def _infer_chunk(self, command: Command) -> None:
        """A piece of text is spoken as it comes, as soon as those before it are there."""
        try:
            delta, index, finish = read_chunk(command.data)
        except UnitError as error:
            text = self._forget_text(command.connection)
            _fail(None if text is None else text.speech, error)
            return
        text = self._text(command, index)
        text.heard = time.monotonic()
        try:
            if not text.is_over:
                self._take_chunk(text, command, delta, index, finish)
        except UnitError as error:
            speech = text.speech
            self._drop_text(text)
            _fail(speech, error)
        finally:
            if finish:
                self._end_text(command.connection)

    def _text(self, command: Command, index: int) -> _Text:
        """The text that a chunk belongs to; a second chunk 0 begins another. Raises `UnitError` BUSY."""
        text = self._texts.get(command.connection)
        if text is not None and not (index == 0 and (text.chunks.begun or text.is_over)):
            return text
        self._end_text(command.connection)
        if text is not None and text.unanswered is not None and text.unanswered.request_id != command.request_id:
            self.refuse(text.unanswered, UnitError(Code.STREAM))
        if self.reader.num_kept + STREAM_BYTES > MAX_KEPT_BYTES:
            raise too_much()
        self.reader.num_kept += STREAM_BYTES
        text = self._texts[command.connection] = _Text(command.without_data())
        return text

    def _take_chunk(self, text: _Text, command: Command, delta: str, index: int, finish: bool) -> None:
        """Raises `UnitError`."""
        before = text.chunks.num_bytes
        try:
            ready = text.chunks.add(delta, index, finish)
        finally:
            self.reader.num_kept += text.chunks.num_bytes - before
        if self.reader.num_kept > MAX_KEPT_BYTES:
            raise too_much()
        if ready or finish:
            if text.speech is not None and text.speech.complete:
                text.speech = None  # it had not gone on for so long that it was taken for complete
            text.speech = text.speech or self._start(command.request_id, command.connection)
            text.unanswered = None
            self._add(text.speech, ready)

    def _drop_text(self, text: _Text) -> None:
        """It has had its last frame: what still comes of it is not to be spoken, nor to have another."""
        self.reader.num_kept -= text.chunks.num_bytes
        text.chunks = TextChunks()
        text.speech = text.unanswered = None
        text.refused = True

    def _forget_text(self, connection: Connection) -> _Text | None:
        text = self._texts.pop(connection, None)
        if text is not None:
            self.reader.num_kept -= text.chunks.num_bytes + STREAM_BYTES
        return text

    def _end_text(self, connection: Connection) -> None:
        """Nothing more comes of what a client has begun."""
        text = self._forget_text(connection)
        if text is not None and text.speech is not None:
            text.speech.finish()

    def expire(self, now: float) -> list[Command]:
        late = super().expire(now)
        for connection, text in tuple(self._texts.items()):
            if connection.closed:
                self._end_text(connection)
            elif text.speech is None and now - text.heard >= QUIET_SECONDS:
                if text.unanswered is None:
                    self._forget_text(connection)
                else:
                    late.append(text.unanswered)
                    self._drop_text(text)
                    text.heard = now
        return late

    def refuse(self, command: Command, error: UnitError) -> None:
        """Clients that look only for the last frame of an answer need one here, too."""
        self._output(command.request_id, command.connection).fail(error)

    # Linked tasks

    def receive(self, message: ChainMessage) -> None:
        """A wake word ends all speech; other tasks' text is spoken as it comes."""
        if message.work_id.startswith("kws."):
            self._fall_silent()
            return
        data = message.data
        if self._deaf or data == "None":
            return
        try:
            if isinstance(data, dict):
                self._follow_answer(message.work_id, data)
            elif isinstance(data, str) and data:
                speech = self._start(self.request_id, self.owner)
                self._add(speech, data)
                speech.finish()
        except UnitError as error:
            self._output(self.request_id, self.owner).fail(error)

    def _follow_answer(self, work_id: str, data: dict[str, Any]) -> None:
        """A piece of a linked task's answer. The first has the index 0; what comes without a first was interrupted."""
        if data.get("index") == 0:
            self._end_answer(work_id)
            self._go_on(work_id)
        delta = data.get("delta")
        if work_id in self._answers and isinstance(delta, str):
            self._add(self._go_on(work_id), delta)
        if data.get("finish") is True:
            self._end_answer(work_id)

    def _go_on(self, work_id: str) -> _Speech:
        """What comes from there; a new text if it had not gone on for so long that it was taken for complete."""
        speech = self._answers.get(work_id)
        if speech is None or speech.complete:
            speech = self._answers[work_id] = self._start(self.request_id, self.owner)
        return speech

    def _end_answer(self, work_id: str) -> None:
        speech = self._answers.pop(work_id, None)
        if speech is not None:
            speech.finish()

    def _fall_silent(self) -> None:
        self._clear()
        self._deaf = True
        asyncio.get_running_loop().call_soon(self._hear_again)

    def _hear_again(self) -> None:
        self._deaf = False

    # Actions

    def stop(self) -> None:
        if self._running is not None:
            self._running.output.finish()
        if self._speaking is not None:
            self._speaking.cancel()

    def close(self) -> None:
        self._clear()

    def on_work(self, command: Command) -> None:
        """The original has no such action here."""
        raise UnitError(Code.NO_WORK)

    def _clear(self) -> None:
        """End all speech, running and waiting."""
        self._answers.clear()
        waiting = list(self._waiting)
        self._waiting.clear()
        self.stop()
        for speech in waiting:
            speech.output.finish()
        for text in self._texts.values():
            if text.unanswered is not None:
                self._output(text.unanswered.request_id, text.unanswered.connection).finish()
            self._drop_text(text)

    # Speaking

    def _output(self, request_id: str, connection: Connection) -> SpeechOutput:
        play = self.unit.device.play if self._plays else None
        return SpeechOutput(self, request_id, connection, frame_bytes=self.unit.config.unit_sound_frame, play=play)

    def _start(self, request_id: str, connection: Connection) -> _Speech:
        """A new text, spoken as soon as those before it are. Raises `UnitError` BUSY if too many wait."""
        limit = self.unit.config.unit_queue
        if len(self._waiting) + (self._running is not None) > limit:
            raise UnitError(Code.BUSY, f"{limit} texts wait already.")
        speech = _Speech(self._output(request_id, connection))
        self._waiting.append(speech)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
            self.unit.workers.add(self._worker)
            self._worker.add_done_callback(self.unit.workers.discard)
        return speech

    def _add(self, speech: _Speech, text: str) -> None:
        try:
            speech.add(text)
        except UnitError as error:
            speech.output.fail(error)
            speech.pieces.clear()

    async def _work(self) -> None:
        """Speak what waits, until nothing does."""
        while self._waiting:
            speech = self._running = self._waiting.popleft()
            self._speaking = asyncio.get_running_loop().create_task(self._speak(speech))
            await asyncio.wait([self._speaking])
            self._running = self._speaking = None
            for text in self._texts.values():
                if text.speech is speech and speech.said:
                    text.speech = None
                elif text.speech is speech:
                    self._drop_text(text)
        self._worker = None

    async def _speak(self, speech: _Speech) -> None:
        output = speech.output
        try:
            while not output.finished and (piece := await speech.next()) is not None:
                await output.add(await self._speaker.speak(piece))
            speech.said = not output.finished
            await output.end()
        except (SpeechError, NoDeviceError) as error:
            log.warning("%s: %s", self.work_id, error)
            output.fail(UnitError(Code.RUN, str(error)))
        except Exception:
            log.exception("%s failed on a text", self.work_id)
            output.fail(UnitError(Code.RUN))


def _fail(speech: _Speech | None, error: UnitError) -> None:
    """End a text with an error, which is raised if nothing of it is to be spoken."""
    if speech is None:
        raise error
    speech.output.fail(error)
    speech.finish()
