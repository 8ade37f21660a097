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
from trivium.doors.unit.frames import NONE
from trivium.doors.unit.remote.answers import Answers
from trivium.doors.unit.remote.endpoint import Change, Endpoint, Sockets
from trivium.doors.unit.remote.messages import Frame, read_frame, write_command
from trivium.doors.unit.remote.publisher import Publisher

__all__ = ["RemoteTask"]

log = logging.getLogger("trivium.unit")

JOIN_SECONDS = 10.0  # within which a task's output can be reached after it was registered
END_SECONDS = 3.0  # within which a task that has taken a pause or an exit ends its answers
_LISTEN_SECONDS = 3.0  # that an inference waits for the task to begin listening
_MAX_HELD = 16  # inferences that wait so
_MAX_UNTOLD = 64  # frames that wait until the output can be reached


_Told = tuple[Connection, Frame, bytes, Command | None]


class RemoteTask:
    """Sends users' inferences to a task, and what it says to users and to those linked to it. Made when the unit registers it.

    The task has gone (`gone`) when its output has. Its answers end then, if they have not.
    """

    def __init__(
        self, sockets: Sockets, bus: Bus, work_id: str, inference_url: str, gone: Callable[[RemoteTask], None]
    ) -> None:
        """Raises OSError."""
        self.work_id = work_id
        self.output_url = ""
        self.answers = Answers(work_id)
        self.is_set_up = False  # a user knows of it
        self._sockets = sockets
        self._bus = bus
        self._gone = gone
        self._output: Endpoint | None = None
        self._complained = False
        self._held: deque[tuple[Command, bytes]] = deque()
        self._giving_up: asyncio.TimerHandle | None = None
        self._inference = Publisher(sockets, inference_url, self._heard)
        self._inference.keep_all()
        self._untold: list[_Told] | None = []  # None: what it says is told at once
        self._joining: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(JOIN_SECONDS, self._never_joined)
        self._ending: list[asyncio.TimerHandle] = []
        bus.open(work_id)

    @property
    def unit(self) -> str:
        """The unit's name."""
        return self.work_id.partition(".")[0]

    @property
    def has_gone(self) -> UnitError:
        """How answers end that the task does not end."""
        return UnitError(Code.RUN, f"{self.work_id} has gone.")

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
            self.answers.refuse(command, UnitError(Code.BUSY))
        else:
            self._held.append((command, message))
            if self._giving_up is None:
                self._giving_up = asyncio.get_running_loop().call_later(_LISTEN_SECONDS, self._refuse_held)

    def told(self, connection: Connection, frame: Frame, text: bytes, command: Command | None) -> None:
        """It tells a user something: the reply to an action, `command`, or else of an answer.

        That it is set up, too, which nobody shall know before its output is heard.
        """
        if command is not None and command.action == "setup" and frame.code == 0:
            self.is_set_up = True
        if self._untold is not None and len(self._untold) >= _MAX_UNTOLD:
            self._tell_all()
        if self._untold is not None:
            self._untold.append((connection, frame, text, command))
        elif command is None:
            self.answers.tell(connection, frame, text)
        else:
            if frame.code == 0:
                self._has_taken(command)
            connection.send(text)

    def close(self) -> None:
        """The task has gone: end all links to it, and soon its answers."""
        self._refuse_setup()
        self._joined()
        self._refuse_held()
        for timer in self._ending:
            timer.cancel()
        self._inference.close()
        if self._output is not None:
            self._output.close()
        self._bus.close(self.work_id)
        self.answers.fail_soon(self.has_gone)

    def _has_taken(self, command: Command) -> None:
        """An action was successful. What is to end because of it ends here if the unit does not see to it."""
        if command.action == "setup":
            self.answers.set_up(command.data)
        elif command.action == "link":
            self.answers.linked = True
        elif command.action == "pause":
            self._end_later(self.answers.pause())
        elif command.action == "exit":
            self._end_later(lambda: self._gone(self))

    def _end_later(self, end: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._ending = [timer for timer in self._ending if timer.when() > loop.time()]
        self._ending.append(loop.call_later(END_SECONDS, end))

    def _send(self, command: Command, message: bytes) -> None:
        if self._inference.send(message):
            self.answers.expect(command)
        else:
            self.answers.refuse(command, UnitError(Code.BUSY))

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
        if not self.answers.overhears and not self._bus.is_heard(self.work_id):
            return
        try:
            frame = read_frame(b"".join(parts))
        except ValueError as error:
            if not self._complained:
                self._complained = True
                log.warning("%s says what is no frame: %s", self.work_id, error)
            return
        self.answers.overhear(frame)
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
        self._tell_all()

    def _tell_all(self) -> None:
        untold, self._untold = self._untold or [], None
        for told in untold:
            self.told(*told)

    def _never_joined(self) -> None:
        log.warning("%s has no output that can be reached, and is given up", self.work_id)
        self._gone(self)

    def _refuse_setup(self) -> None:
        """A user who has not been told yet that the task is there shall not be: its output was never heard."""
        untold, self._untold = self._untold or [], []
        for told in untold:
            command = told[3]
            if command is not None and command.action == "setup":
                command.fail(UnitError(Code.MODEL, f"The output of {self.work_id} cannot be reached."), work_id=self.unit)
            else:
                self._untold.append(told)
