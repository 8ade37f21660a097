"""`RemoteTask`: a task of a unit in another process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.frames import NONE, StreamFrames, reply
from trivium.doors.unit.remote.endpoint import Change, Endpoint, Sockets
from trivium.doors.unit.remote.messages import Frame, read_frame, write_command
from trivium.doors.unit.remote.publisher import Publisher

__all__ = ["RemoteTask"]

log = logging.getLogger("trivium.unit")

JOIN_SECONDS = 10.0  # within which a task's output can be reached after it was registered
_LISTEN_SECONDS = 3.0  # that an inference waits for the task to begin listening
_MAX_HELD = 16  # inferences that wait so
_MAX_UNTOLD = 64  # frames that wait until the output can be reached


class RemoteTask:
    """Sends users' inferences to a task, and what it says to those linked to it. Made when the unit registers it.

    The task has gone (`gone`) when its output has. An answer that is cut off by that gets an end.
    """

    def __init__(
        self, sockets: Sockets, bus: Bus, work_id: str, inference_url: str, gone: Callable[[RemoteTask], None]
    ) -> None:
        """Raises OSError."""
        self.work_id = work_id
        self.output_url = ""
        self._sockets = sockets
        self._bus = bus
        self._gone = gone
        self._output: Endpoint | None = None
        self._complained = False
        self._asked: Command | None = None  # the last inference, until it is answered
        self._streaming: tuple[Connection, Frame] | None = None  # the last frame of an answer that has not ended
        self._held: deque[tuple[Command, bytes]] = deque()
        self._giving_up: asyncio.TimerHandle | None = None
        self._inference = Publisher(sockets, inference_url, self._heard)
        self._inference.keep_all()
        self._untold: list[tuple[Connection, Frame, bytes]] = []
        self._joining: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(JOIN_SECONDS, self._never_joined)
        bus.open(work_id)

    @property
    def unit(self) -> str:
        """The unit's name."""
        return self.work_id.partition(".")[0]

    @property
    def inference_url(self) -> str:
        """Where the task subscribes to inferences."""
        return self._inference.url

    def follow(self, output_url: str) -> None:
        """Listen to its output there. Raises OSError if that is no URL."""
        endpoint = self._sockets.connect(zmq.SUB, output_url, self._receive, self._changed)
        endpoint.socket.subscribe(b"")
        if self._output is not None:
            self._output.close()
        self._output, self.output_url = endpoint, output_url

    def infer(self, command: Command, reply_url: str) -> None:
        """Send an inference; the task is to answer at `reply_url`. A task that does not listen gets it once it does."""
        message = write_command(command, reply_url)
        if self._inference.is_heard and not self._held:
            self._send(command, message)
        elif len(self._held) >= _MAX_HELD:
            command.fail(UnitError(Code.BUSY))
        else:
            self._held.append((command, message))
            if self._giving_up is None:
                self._giving_up = asyncio.get_running_loop().call_later(_LISTEN_SECONDS, self._refuse_held)

    def told(self, connection: Connection, frame: Frame, text: bytes) -> None:
        """It tells a client something: that it is set up, too, which nobody shall know before its output is heard."""
        if self._joining is not None and len(self._untold) < _MAX_UNTOLD:
            self._untold.append((connection, frame, text))
            return
        connection.send(text)
        if self._asked is not None and self._asked.request_id == frame.request_id:
            self._asked = None
        self._streaming = None if frame.ends else (connection, frame)

    def close(self) -> None:
        """The task has gone: end its answer, and all links to it."""
        self._joined()
        self._refuse_held()
        self._inference.close()
        if self._output is not None:
            self._output.close()
        self._bus.close(self.work_id)
        self._end_answer(UnitError(Code.RUN, f"{self.work_id} has gone."))

    def _end_answer(self, error: UnitError) -> None:
        if self._asked is not None:
            self._asked.fail(error)
        if self._streaming is not None:
            connection, frame = self._streaming
            frames = StreamFrames(frame.request_id, frame.work_id, frame.object)
            frames.index = (frame.index or 0) + 1
            connection.send(frames.finish(error.code, error.message))
        self._asked = self._streaming = None

    def _send(self, command: Command, message: bytes) -> None:
        if self._inference.send(message):
            self._asked = command
        else:
            command.fail(UnitError(Code.BUSY))

    def _heard(self, heard: bool) -> None:
        if heard:
            self._stop_giving_up()
            while self._held:
                self._send(*self._held.popleft())

    def _refuse_held(self) -> None:
        self._stop_giving_up()
        while self._held:
            self._held.popleft()[0].fail(UnitError(Code.NO_INPUT))

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _receive(self, parts: list[bytes]) -> None:
        """Something for those linked to it; acknowledgements and errors go over the same socket, and are not."""
        if not self._bus.is_heard(self.work_id):
            return
        try:
            frame = read_frame(b"".join(parts))
        except ValueError as error:
            if not self._complained:
                self._complained = True
                log.warning("%s says what is no frame: %s", self.work_id, error)
            return
        if frame.code == 0 and frame.object != NONE:
            self._bus.publish(ChainMessage(self.work_id, frame.request_id, frame.object, frame.data))

    def _changed(self, change: Change) -> None:
        if change is Change.UP:
            self._joined()
        elif change is Change.DOWN:
            self._gone(self)

    def _joined(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        untold, self._untold = self._untold, []
        for told in untold:
            self.told(*told)

    def _never_joined(self) -> None:
        log.warning("%s has no output that can be reached, and is given up", self.work_id)
        untold, self._untold = self._untold, []
        error = UnitError(Code.MODEL, f"The output of {self.work_id} cannot be reached.")
        for connection, frame, _ in untold:
            connection.send(reply(frame.request_id, self.unit, code=error.code, message=error.message))
        self._gone(self)
