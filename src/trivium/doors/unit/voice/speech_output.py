"""`SpeechOutput`: spoken sound on its way to a client, to linked tasks, or to the loudspeaker."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from trivium.doors.unit.bus import ChainMessage
from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.frames import reply
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND
from trivium.doors.unit.voice.speaker import SpeechError

if TYPE_CHECKING:
    from trivium.doors.unit.connection import Connection
    from trivium.doors.unit.task import Task

__all__ = ["SpeechOutput"]

_STUCK_SECONDS = 60.0  # after which a client that takes nothing gets no more of an answer
_MAX_PLAIN = 80 * BYTES_PER_SECOND  # of an answer in one frame
_UNIT = 6  # bytes: whole samples, and no padding in the middle of an answer's base64

Play = Callable[[bytes, Callable[[], bool]], Awaitable[None]]


class SpeechOutput:
    """One spoken text. In a stream its sound comes in frames, then a last one without sound; otherwise all in one frame.

    It ends with exactly one last frame. What the loudspeaker plays is not sent, nor is there a last frame, but for errors.
    `enoutput` and linked tasks are as with any output. A client that does not read holds up this answer only.
    """

    def __init__(
        self, task: Task, request_id: str, connection: Connection, *, frame_bytes: int, play: Play | None = None
    ) -> None:
        """`frame_bytes` of sound at most in a frame of a stream; `play` is the loudspeaker, if that is to speak.

        The task knows the output until it is finished.
        """
        self.connection = connection
        self.finished = False
        self._task = task
        self._request_id = request_id
        self._frame_bytes = frame_bytes - frame_bytes % _UNIT
        self._play = play
        self._sound = bytearray()  # of an answer that is no stream
        self._index = 0
        task.outputs.add(self)

    async def add(self, sound: bytes) -> None:
        """The answer goes on; returns when it is played, or sent, or the output finished.

        Raises `SpeechError` if it cannot be played, is too long for one frame, or the client does not read.
        """
        if self._play is not None:
            await self._play(sound, lambda: self.finished)
        elif self._task.setup.streams:
            await self._stream(sound + bytes(-len(sound) % _UNIT))
        else:
            self._sound += sound
            if len(self._sound) > _MAX_PLAIN:
                raise SpeechError(f"it is longer than {_MAX_PLAIN // BYTES_PER_SECOND} s; ask for a stream")

    async def end(self) -> None:
        """All has been said. What is sent in one frame waits until the client has taken those before it: two may be too many.

        Raises `SpeechError` if the client does not read.
        """
        if self._play is None and self._task.setup.enoutput and not self._task.setup.streams:
            await self._until_taken()
        self.finish()

    def finish(self) -> None:
        """All has been said, or shall be. Ignored once finished."""
        if self._end() and self._play is None:
            streams = self._task.setup.streams
            self._emit(self._chunk("", finish=True) if streams else _pack(bytes(self._sound)), last=True)

    def fail(self, error: UnitError) -> None:
        """The answer ends with an error. Ignored once finished."""
        if self._end():
            task, kind = self._task, self._task.setup.response_format
            data = self._chunk("", finish=True) if task.setup.streams else ""
            frame = reply(self._request_id, task.work_id, object=kind, data=data, code=error.code, message=error.message)
            self.connection.send(frame, apart=True)

    async def _stream(self, sound: bytes) -> None:
        for i in range(0, len(sound), self._frame_bytes):
            await self._until_taken()
            if self.finished:
                return
            self._emit(self._chunk(_pack(sound[i : i + self._frame_bytes]), finish=False))
            self._index += 1

    async def _until_taken(self) -> None:
        await asyncio.sleep(0)  # long answers let others have their turn
        deadline = time.monotonic() + _STUCK_SECONDS
        while self.connection.busy and not self.connection.closed and not self.finished:
            if time.monotonic() > deadline:
                raise SpeechError("the client does not read it")
            await asyncio.sleep(0.01)

    def _end(self) -> bool:
        """Whether it had not ended yet."""
        if self.finished:
            return False
        self.finished = True
        self._task.outputs.discard(self)
        return True

    def _chunk(self, delta: str, *, finish: bool) -> dict[str, object]:
        return {"delta": delta, "finish": finish, "index": self._index}

    def _emit(self, data: object, *, last: bool = False) -> None:
        task, kind = self._task, self._task.setup.response_format
        bus = task.unit.bus
        if bus.is_heard(task.work_id):
            bus.publish(ChainMessage(task.work_id, self._request_id, kind, data))
        if task.setup.enoutput:
            self.connection.send(reply(self._request_id, task.work_id, object=kind, data=data), apart=last)


def _pack(sound: bytes) -> str:
    return base64.b64encode(sound).decode("ascii")
