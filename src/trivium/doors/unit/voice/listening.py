"""`ListeningTask`: base of the tasks that get sound, of users and of the microphone."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit
from trivium.doors.unit.voice.models import SpeechModels
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND, Recording, read_recording
from trivium.doors.unit.voice.sound_device import NoDeviceError, SoundDevice
from trivium.doors.unit.voice.worker import Worker

__all__ = ["ListeningTask", "ListeningUnit"]

log = logging.getLogger("trivium.unit")

_MAX_WAITING = 120 * BYTES_PER_SECOND  # of sound that has not been looked at
_QUIET_SECONDS = 2.0  # without sound, after which it counts as silence
_JOIN_SECONDS = 10.0


class ListeningUnit(Unit):
    """Base of kws and asr."""

    def __init__(self, bus: Bus, max_tasks: int, models: SpeechModels, device: SoundDevice) -> None:
        super().__init__(bus, max_tasks)
        self.models = models
        self.device = device
        self.workers: set[Worker] = set()  # that have not ended

    async def shutdown(self) -> None:
        await super().shutdown()
        for worker in tuple(self.workers):
            await asyncio.to_thread(worker.join, _JOIN_SECONDS)


class ListeningTask(Task):
    """A thread of its own looks at the sound, in the order in which it comes. Inputs with "sys" are the microphone.

    A subclass has `hear`, `forget`, `free` and perhaps `hear_nothing`, which run on the thread and tell the loop with `tell`.
    `stop` (a pause) ends what is being heard and what waits: none of it is told any more, and a subclass ends its answers.
    """

    unit: ListeningUnit

    def __init__(self, unit: ListeningUnit, work_id: str, setup: Setup, command: Command) -> None:
        super().__init__(unit, work_id, setup, command)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._paused = False
        self._num_stops = 0
        self._num_stopped = 0  # of these, how many the thread has come to
        self._lagging = False  # the microphone's sound comes faster than it is looked at
        self._end_listening: Callable[[], None] | None = None  # with the microphone; for the thread
        self.worker = Worker(
            work_id,
            max_bytes=_MAX_WAITING,
            failed=self._failed,
            idle=self.hear_nothing,
            idle_seconds=_QUIET_SECONDS,
            at_end=self._ended,
        )
        unit.workers.add(self.worker)

    # What a subclass does

    @abstractmethod
    def hear(self, sound: bytes, *, whole: bool) -> None:
        """On the thread: sound has come; `whole` if it is a recording that ends here."""

    @abstractmethod
    def forget(self) -> None:
        """On the thread: what was heard has nothing to do with what will be."""

    @abstractmethod
    def free(self) -> None:
        """On the thread, at its end: let go of what takes memory. The garbage collector would be late: it does not see it."""

    def hear_nothing(self) -> None:
        """On the thread: no sound has come for a while."""
        return

    def ignored(self, recording: Recording, command: Command) -> None:
        """Sound of a user came in a pause."""
        return

    def queued(self, recording: Recording, command: Command) -> None:
        """Sound of a user waits to be heard."""
        return

    def begun(self, recording: Recording, command: Command) -> None:
        """It is being heard: what is told from now on, up to `ended`, is of it."""
        return

    def ended(self) -> None:
        """What is told from now on is of something else."""
        return

    def fail(self, error: UnitError) -> None:
        """Looking at sound has failed: tell the owner."""
        self.refuse(Command(self.owner, self.request_id, self.work_id, "inference"), error)

    def is_unwanted(self) -> bool:
        """On the thread: what is being heard was stopped, or the task has ended."""
        return self._closed or self._num_stopped != self._num_stops

    def tell(self, function: Callable[..., None], *args: Any) -> None:
        """On the thread: have a function called on the event loop, unless the sound that it is about is stopped meanwhile."""
        num_stopped = self._num_stopped

        def call() -> None:
            if num_stopped == self._num_stops:
                function(*args)

        self._call(call)

    # For the unit

    def infer(self, command: Command) -> None:
        data = self.reader.read_bytes(command)
        if data is None:
            return
        recording = read_recording(data, command.object)
        num_bytes = max(recording.num_bytes, len(data))
        command = command.without_data()  # its base64 may be much longer than what counts
        if self._paused:
            self.ignored(recording, command)
        elif not self.worker.put(partial(self._hear_recording, recording, command), num_bytes):
            limit, length = _MAX_WAITING / BYTES_PER_SECOND, num_bytes / BYTES_PER_SECOND
            raise UnitError(Code.BUSY, f"At most {limit:g} s of sound may wait, and {length:.1f} s more have come.")
        else:
            self.queued(recording, command)

    def stop(self) -> None:
        self._num_stops += 1
        self.worker.put(self._stopped)

    def close(self) -> None:
        self._closed = True
        self.worker.stop()

    def link_inputs(self) -> None:
        super().link_inputs()
        for name in self.inputs:
            if _is_microphone(name):
                self.worker.put(partial(self._listen, name))
            elif not self.unit.is_upstream(name) and not self.unit.is_own_input(name):
                log.warning("%s: nothing comes from the input %r here", self.work_id, name)

    def on_link(self, command: Command) -> None:
        name = command.data
        if not isinstance(name, str) or not _is_microphone(name):
            super().on_link(command)
            return
        if name not in self.inputs:
            self.inputs.append(name)
        self.worker.put(partial(self._listen, name))
        command.reply()

    def on_unlink(self, command: Command) -> None:
        super().on_unlink(command)
        if not any(map(_is_microphone, self.inputs)):
            self.worker.put(self._listen_no_more)

    def on_pause(self, command: Command) -> None:
        """Hear nothing until `work`."""
        self._paused = True
        super().on_pause(command)

    def on_work(self, command: Command) -> None:
        """Hear again; a microphone that failed is tried again."""
        self._paused = False
        for name in filter(_is_microphone, self.inputs):
            self.worker.put(partial(self._listen, name))
        super().on_work(command)

    # On the thread

    def _hear_recording(self, recording: Recording, command: Command) -> None:
        if self.is_unwanted():
            return
        if recording.whole:
            self._end_stream()
        self.tell(self.begun, recording, command)
        self.hear(recording.sound(), whole=recording.whole)
        self.tell(self.ended)

    def _end_stream(self) -> None:
        """What was heard before is complete. A fault in it is not one of the recording that comes."""
        try:
            self.hear_nothing()
        except Exception as error:
            log.exception("%s failed", self.work_id)
            self._failed(error)

    def _hear_microphone(self, sound: bytes) -> None:
        if self.is_unwanted():
            return
        try:
            self.hear(sound, whole=False)
        except Exception:
            log.warning("%s: the microphone is off until `work`", self.work_id)
            self._listen_no_more()
            raise

    def _stopped(self) -> None:
        try:
            self.forget()
        finally:
            self._num_stopped += 1

    def _call(self, function: Callable[[], None]) -> None:
        """Have it called on the event loop, unless the task has ended."""
        try:
            self._loop.call_soon_threadsafe(lambda: None if self._closed else function())
        except RuntimeError:  # the loop has ended
            return

    def _listen(self, name: str) -> None:
        if self._end_listening is not None:
            return
        try:
            self._end_listening = self.unit.device.listen(self._take_microphone)
        except NoDeviceError as error:
            log.warning("%s gets no sound from %s: %s", self.work_id, name, error)
            self._call(partial(self._note_missing, name))
        else:
            self._call(partial(self._note_there, name))

    def _listen_no_more(self) -> None:
        if self._end_listening is not None:
            self._end_listening()
            self._end_listening = None

    def _ended(self) -> None:
        try:
            self._listen_no_more()
        finally:
            self.free()
            self.unit.workers.discard(self.worker)

    def _failed(self, error: Exception) -> None:
        self.tell(self.fail, UnitError(Code.RUN, str(error).strip().partition("\n")[0]))

    # On the sound device's thread

    def _take_microphone(self, sound: bytes) -> None:
        if self._paused:
            return
        taken = self.worker.put(partial(self._hear_microphone, sound), len(sound))
        if not taken and not self._lagging and not self._closed:
            log.warning("%s is behind: some of what the microphone hears is lost", self.work_id)
        self._lagging = not taken

    # On the loop

    def _note_missing(self, name: str) -> None:
        if name not in self.missing:
            self.missing.append(name)

    def _note_there(self, name: str) -> None:
        if name in self.missing:
            self.missing.remove(name)


def _is_microphone(name: str) -> bool:
    return "sys" in name
