"""The units `asr` and `whisper`: speech to text."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.frames import MAX_FRAME, reply, to_ascii
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.voice.activity import Activity, webrtc_detector
from trivium.doors.unit.voice.hearing import EndRules, Heard, Hearing
from trivium.doors.unit.voice.listening import ListeningTask, ListeningUnit
from trivium.doors.unit.voice.models import SpeechModel, SpeechModels
from trivium.doors.unit.voice.recogniser import Recogniser, Recognisers
from trivium.doors.unit.voice.sound import Recording
from trivium.doors.unit.voice.sound_device import SoundDevice

__all__ = ["AsrTask", "AsrUnit", "WhisperUnit"]


class AsrUnit(ListeningUnit):
    """Whisper models by name, shared by the tasks that use them."""

    name: ClassVar[str] = "asr"
    upstreams: ClassVar[frozenset[str]] = frozenset({"kws"})

    def __init__(self, bus: Bus, max_tasks: int, models: SpeechModels, device: SoundDevice, recognisers: Recognisers) -> None:
        super().__init__(bus, max_tasks, models, device)
        self.recognisers = recognisers

    async def create(self, work_id: str, setup: Setup, command: Command) -> Task:
        model = self.models.find("asr", setup.model)
        rules = _read_rules(setup)
        awake_delay = setup.number("awake_delay", 50, low=0, high=10_000) / 1000
        recogniser = await self.recognisers.acquire(model)
        try:
            language = _choose_language(setup, model, recogniser.languages)
            activity = Activity(webrtc_detector())
            return AsrTask(self, work_id, setup, command, model, recogniser, language, activity, rules, awake_delay)
        except BaseException:
            self.recognisers.release(model)
            raise

    def descriptors(self) -> list[dict[str, Any]]:
        inputs, outputs = ["sys.pcm", "asr.base64", "asr.wav.base64"], ["asr.utf-8", "asr.utf-8.stream"]
        return self.models.descriptors("asr", ["Automatic_Speech_Recognition"], inputs, outputs)

    async def shutdown(self) -> None:
        await super().shutdown()
        self.recognisers.close()


class WhisperUnit(AsrUnit):
    """The same under the name of the original's other unit for it."""

    name: ClassVar[str] = "whisper"

    def descriptors(self) -> list[dict[str, Any]]:
        """asr lists them."""
        return []


class AsrTask(ListeningTask):
    """Tells what is said, sentence by sentence; in a stream also what has been said so far of one.

    Linked to a kws it sleeps until a wake word, hears one sentence, and sleeps again.
    """

    unit: AsrUnit

    def __init__(
        self,
        unit: AsrUnit,
        work_id: str,
        setup: Setup,
        command: Command,
        model: SpeechModel,
        recogniser: Recogniser,
        language: str | None,
        activity: Activity,
        rules: EndRules,
        awake_delay: float,
    ) -> None:
        super().__init__(unit, work_id, setup, command)
        self._model = model
        self._awake_delay = awake_delay
        self._sentence: _Sentence | None = None  # of which something has been told
        # A file is an answer of its own: its first sentence is open from the moment that it comes.
        self._files: list[tuple[Command, _Sentence]] = []  # that wait
        self._file: Command | None = None  # that is being heard
        self._hearing = Hearing(
            activity,
            lambda sound: recogniser.transcribe(sound, language),
            partial(self.tell, self._heard),
            rules,
            so_far=setup.streams,
            is_unwanted=self.is_unwanted,
        )
        if any(map(unit.is_upstream, self.inputs)):
            self.worker.put(self._sleep)

    def receive(self, message: ChainMessage) -> None:
        """A wake word. It ends a pause, too."""
        self._paused = False
        self.worker.put(partial(self._hearing.wake, self._awake_delay))

    def stop(self) -> None:
        """What is being heard comes to nothing, and so do files that wait: they would be heard in the pause."""
        super().stop()
        self._finish_all()

    def close(self) -> None:
        super().close()
        self._finish_all()
        self.unit.recognisers.release(self._model)

    def link_inputs(self) -> None:
        """Without the kws that the setup names nothing would ever wake it, so it hears as if there were none."""
        super().link_inputs()
        if not self._has_kws():
            self.worker.put(self._sleep_no_more)

    def refuse(self, command: Command, error: UnitError) -> None:
        """Clients that look only for the last frame of an answer need one here, too."""
        _Sentence(self, command).fail(error)

    def fail(self, error: UnitError) -> None:
        sentence, self._sentence = self._sentence, None
        (sentence or _Sentence(self, self._file)).fail(error)
        self._file = None

    def ignored(self, recording: Recording, command: Command) -> None:
        if recording.whole:
            _Sentence(self, command).finish("")

    def queued(self, recording: Recording, command: Command) -> None:
        if recording.whole:
            self._files.append((command, _Sentence(self, command)))

    def begun(self, recording: Recording, command: Command) -> None:
        if recording.whole:
            if self._sentence is not None:
                self._sentence.finish("")
            self._file, self._sentence = self._files.pop(0)

    def ended(self) -> None:
        self._file = None

    def on_link(self, command: Command) -> None:
        super().on_link(command)
        self.worker.put(self._sleep_at_ends)

    def on_unlink(self, command: Command) -> None:
        super().on_unlink(command)
        if not self._has_kws():
            self.worker.put(self._sleep_no_more)

    def on_work(self, command: Command) -> None:
        """Hear again, also without a wake word."""
        super().on_work(command)
        self.worker.put(self._wake_up)

    # On the thread

    def hear(self, sound: bytes, *, whole: bool) -> None:
        if whole:
            self._hearing.hear_recording(sound)
        else:
            self._hearing.hear(sound)

    def hear_nothing(self) -> None:
        self._hearing.end()

    def forget(self) -> None:
        if self._hearing.sleeps:
            self._hearing.sleep()
        else:
            self._hearing.wake()

    def free(self) -> None:
        del self._hearing

    def _sleep(self) -> None:
        self._hearing.sleeps = True
        self._hearing.sleep()

    def _sleep_at_ends(self) -> None:
        self._hearing.sleeps = self._has_kws()

    def _sleep_no_more(self) -> None:
        self._hearing.sleeps = False
        self._wake_up()

    def _wake_up(self) -> None:
        if not self._hearing.awake:
            self._hearing.wake()

    # On the loop

    def _finish_all(self) -> None:
        open_sentences = [sentence for _, sentence in self._files]
        if self._sentence is not None:
            open_sentences.insert(0, self._sentence)
        self._file, self._sentence = None, None
        self._files.clear()
        for sentence in open_sentences:
            sentence.finish("")

    def _heard(self, heard: Heard, text: str) -> None:
        if heard is Heard.SO_FAR:
            self._sentence = self._sentence or _Sentence(self, self._file)
            self._sentence.so_far(text)
            return
        sentence, self._sentence = self._sentence or _Sentence(self, self._file), None
        sentence.finish(f"{text}." if text else "")

    def _has_kws(self) -> bool:
        return any(self.unit.is_upstream(name) and name not in self.missing for name in self.inputs)


class _Sentence:
    """What is told of one sentence: frames for the owner, messages for linked tasks. It ends with exactly one last frame."""

    def __init__(self, task: AsrTask, command: Command | None = None) -> None:
        """`command` is what it answers, if anything."""
        self.connection = command.connection if command else task.owner
        self._request_id = command.request_id if command else task.request_id
        self._task = task
        self._index = 0
        task.outputs.add(self)

    def so_far(self, text: str) -> None:
        """Each time the whole text so far. One that is too long for a frame is left out: the last frame has it all."""
        self._send(text, finish=False)

    def finish(self, text: str) -> None:
        """The whole text; "" if nothing was said after all."""
        self._send(text, finish=True)

    def fail(self, error: UnitError) -> None:
        self._send("", finish=True, error=error)

    def _send(self, text: str, *, finish: bool, error: UnitError | None = None) -> None:
        task, setup = self._task, self._task.setup
        data: object = {"delta": text, "finish": finish, "index": self._index} if setup.streams else text
        code, message = (error.code, error.message) if error else (0, "")
        frame = reply(self._request_id, task.work_id, object=setup.response_format, data=data, code=code, message=message)
        if not finish and len(to_ascii(frame)) > MAX_FRAME:
            return
        self._index += 1
        if finish:
            task.outputs.discard(self)
        if error is None and (text or self._index > 1):
            task.unit.bus.publish(ChainMessage(task.work_id, self._request_id, setup.response_format, data))
        if setup.enoutput or error is not None:
            self.connection.send(frame, apart=finish)


def _read_rules(setup: Setup) -> EndRules:
    """When sentences end: rule1, rule2, rule3, or by the long names that the original's documents use. Raises `UnitError`."""
    usual = EndRules()
    unspoken, spoken = usual.unspoken, usual.spoken
    if setup.has("silence_timeout"):  # in milliseconds, of the original's other kind of model
        unspoken = spoken = setup.number("silence_timeout", low=100, high=60_000) / 1000

    def read(rule: int, field: str, default: float, high: float) -> float:
        name = f"rule{rule}"
        long = f"endpoint_config.{name}.{field}"
        return setup.number(long if setup.has(long) and not setup.has(name) else name, default, low=0.1, high=high)

    field = "min_utterance_length" if setup.has("endpoint_config.rule3.min_utterance_length") else "min_trailing_silence"
    return EndRules(
        read(1, "min_trailing_silence", unspoken, 60.0),
        read(2, "min_trailing_silence", spoken, 60.0),
        read(3, field, usual.longest, 120.0),
    )


def _choose_language(setup: Setup, model: SpeechModel, known: list[str]) -> str | None:
    """Two letters; None to have it detected, if neither the setup nor the model's name says. Raises `UnitError` MODEL."""
    asked = setup.text("language", model.language or "")
    language = re.split("[-_]", asked.lower())[0]
    if not language:
        return known[0] if len(known) == 1 else None
    if language not in known:
        which = known[0] if len(known) == 1 else f"{len(known)} languages"
        raise UnitError(Code.MODEL, f"language must be one that {model.target} knows ({which}), got {asked!r:.80}")
    return language
