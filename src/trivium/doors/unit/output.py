"""`Output`: one answer on its way to a client and to linked tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.doors.unit.bus import ChainMessage
from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.frames import StreamFrames, reply

if TYPE_CHECKING:
    from trivium.doors.unit.connection import Connection
    from trivium.doors.unit.task import Task

__all__ = ["Output"]


class Output:
    """Gathers text into frames of the task's response format; ends with exactly one last frame.

    Streams: frames with text as soon as they are full, then one with `finish`. Otherwise: one frame with the whole text. With
    `enoutput` false a user gets errors only. Linked tasks get the same whatever `enoutput` is, but nothing of an answer
    without text, and nothing is held back from them when the user's line is slow.
    """

    def __init__(self, task: Task, request_id: str, connection: Connection, *, frame_tokens: int = 1) -> None:
        """A frame is full with `frame_tokens` tokens. The task knows the output until it is finished."""
        self.connection = connection  # where frames go; changes with the task's owner
        self.finished = False
        self._task = task
        self._request_id = request_id
        self._object = task.setup.response_format
        self._streams = task.setup.streams
        self._frame_tokens = frame_tokens
        self._frames = StreamFrames(request_id, task.work_id, self._object)
        self._filling = ""  # less than a frame
        self._num_tokens = 0  # in it
        self._held = ""  # full frames that a slow line has not taken, or all text of an answer that is no stream
        self._index = 0  # of messages to linked tasks
        task.outputs.add(self)

    def add(self, text: str, num_tokens: int = 1) -> None:
        """The answer goes on with a text of so many tokens. Ignored once finished."""
        if self.finished:
            return
        self._filling += text
        self._num_tokens += num_tokens
        if self._num_tokens >= self._frame_tokens and self._filling:
            self._flush(final=False)

    def finish(self) -> None:
        """The answer has ended. Ignored once finished."""
        self._end(0, "")

    def fail(self, error: UnitError) -> None:
        """The answer ends with an error; clients that look only for `finish` see its end, too. Ignored once finished."""
        self._end(error.code, error.message)

    def _flush(self, *, final: bool) -> None:
        text, self._filling, self._num_tokens = self._filling, "", 0
        self._held += text
        if not self._streams:
            return
        if text:
            self._publish({"delta": text, "finish": False, "index": self._index})
            self._index += 1
        if not self._task.setup.enoutput:
            self._held = ""
        elif final or not self.connection.busy:
            for frame in self._frames.deltas(self._held):
                self.connection.send(frame)
            self._held = ""

    def _end(self, code: int, message: str) -> None:
        if self.finished:
            return
        self._flush(final=True)
        self.finished = True
        self._task.outputs.discard(self)
        if self._streams:
            if self._index:
                self._publish({"delta": "", "finish": True, "index": self._index})
            frame = self._frames.finish(code, message)
        else:
            if self._held:
                self._publish(self._held)
            frame = reply(
                self._request_id, self._task.work_id, object=self._object, data=self._held, code=code, message=message
            )
        if self._task.setup.enoutput or code:
            self.connection.send(frame, apart=True)

    def _publish(self, data: object) -> None:
        bus, work_id = self._task.unit.bus, self._task.work_id
        if bus.is_heard(work_id):
            bus.publish(ChainMessage(work_id, self._request_id, self._object, data))
