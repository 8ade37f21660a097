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
    """Puts text into frames of the task's response format; ends with exactly one last frame.

    Streams: a frame for each text, then one with `finish`. Otherwise: one frame with the whole text. With
    `enoutput` false a user gets errors only. Linked tasks get the same whatever `enoutput` is, but nothing of an answer
    without text, and nothing is held back from them when the user's line is slow.
    """

    def __init__(self, task: Task, request_id: str, connection: Connection) -> None:
        """The task knows the output until it is finished."""
        self.connection = connection  # where frames go; changes with the task's owner
        self.finished = False
        self._task = task
        self._request_id = request_id
        self._object = task.setup.response_format
        self._streams = task.setup.streams
        self._frames = StreamFrames(request_id, task.work_id, self._object)
        self._held = ""  # what a slow line has not taken, or all text of an answer that is no stream
        self._index = 0  # of messages to linked tasks
        task.outputs.add(self)

    def add(self, text: str) -> None:
        """The answer goes on with a text. Ignored once finished."""
        if text and not self.finished:
            self._held += text
            if self._streams:
                self._stream(text)

    def finish(self) -> None:
        """The answer has ended. Ignored once finished."""
        self._end(0, "")

    def fail(self, error: UnitError) -> None:
        """The answer ends with an error; clients that look only for `finish` see its end, too. Ignored once finished."""
        self._end(error.code, error.message)

    def _stream(self, text: str) -> None:
        if self._task.unit.bus.is_heard(self._task.work_id):
            self._publish({"delta": text, "finish": False, "index": self._index})
        self._index += 1
        if not self._task.setup.enoutput:
            self._held = ""
        elif not self.connection.busy:
            self._send_held()

    def _send_held(self) -> None:
        for frame in self._frames.deltas(self._held):
            self.connection.send(frame)
        self._held = ""

    def _end(self, code: int, message: str) -> None:
        if self.finished:
            return
        self.finished = True
        self._task.outputs.discard(self)
        if self._streams:
            self._send_held()
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
        self._task.unit.bus.publish(ChainMessage(self._task.work_id, self._request_id, self._object, data))
