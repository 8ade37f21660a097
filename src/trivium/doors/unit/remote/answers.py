"""`Answers`: what users have asked of one task of another process, until each inference has had its one last frame."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.frames import NONE, reply
from trivium.doors.unit.remote.messages import Frame

__all__ = ["Answers"]

log = logging.getLogger("trivium.unit")

LAST_WORDS_SECONDS = 0.2  # within which what a task said before it went still comes
_MAX_OPEN = 256  # answers that are waited for; some units never answer
_MAX_ENDED = 256  # answers that are remembered as complete

_Key = tuple[Connection, str]


@dataclass(slots=True, eq=False)
class _Answer:
    """An answer that has not ended. It has begun once a part of a stream has come, whose successor has the number `index`."""

    connection: Connection
    request_id: str
    object: str = NONE  # of its frames, as far as that is known
    is_text: bool = False  # what was asked
    index: int = 0

    @property
    def streams(self) -> bool:
        return self.index > 0 or "stream" in self.object


class Answers:
    """Passes on what a task says to users, so that every inference ends exactly once.

    Units may fall silent in mid-answer, say their last word twice, or go over to the next inference's request_id (and client)
    while they still answer the one before. Answers that nobody asked for, because of a link, are passed on like others.
    """

    def __init__(self, work_id: str) -> None:
        self.linked = False  # to other tasks: it may answer an inference, and then others under the same request_id
        self.overhears = False  # users hear nothing of it but errors
        self._work_id = work_id
        self._object = NONE  # of answers, as the setup wants them
        self._open: list[_Answer] = []  # in the order they were asked
        self._ended: OrderedDict[_Key, None] = OrderedDict()  # texts that have their answer
        self._cut: OrderedDict[_Key, None] = OrderedDict()  # streams that were ended here, and whose rest is dropped
        self._complained = False
        self._failing: asyncio.TimerHandle | None = None
        self._over = False

    def set_up(self, data: Any) -> None:
        """The data of the setup that made the task."""
        if isinstance(data, dict):
            wanted, inputs = data.get("response_format"), data.get("input")
            self._object = wanted if isinstance(wanted, str) else NONE
            self.overhears = data.get("enoutput") is False
            names = inputs if isinstance(inputs, list) else [inputs]
            self.linked |= any(isinstance(name, str) and name.rpartition(".")[2].isdecimal() for name in names)

    def expect(self, command: Command) -> None:
        """An inference was sent. Parts of a text before the last one are not answered; nor is each piece of sound or image."""
        data = command.data
        if "stream" in command.object and isinstance(data, dict) and data.get("finish") is not True:
            return
        answer = _Answer(command.connection, command.request_id, self._object, "utf-8" in command.object)
        if not answer.is_text and self.is_expected(command.connection, command.request_id):
            return
        self._open.append(answer)
        if len(self._open) > _MAX_OPEN:
            del self._open[0]

    def is_expected(self, connection: Connection, request_id: str) -> bool:
        """Whether an answer with this id is to come, or to go on."""
        return any((answer.connection, answer.request_id) == (connection, request_id) for answer in self._open)

    @property
    def is_answering(self) -> bool:
        """Whether an answer has begun and not ended that a client waits for; some that have not begun never will."""
        return any(answer.index and not answer.connection.closed for answer in self._open)

    def refuse(self, command: Command, error: UnitError) -> None:
        """Answer an inference that was not sent; clients that look only for the last frame see it, too."""
        _send_end(self._work_id, _Answer(command.connection, command.request_id, self._object), error.code, error.message)

    def tell(self, connection: Connection, frame: Frame, text: bytes) -> None:
        """The task says something to a user; `text` is the frame as users get it."""
        key = connection, frame.request_id
        if self._over or self._is_rest(key, frame):
            return
        answer = self._find(connection, frame)
        if answer is None:
            self._tell_unasked(key, frame, text)
            return
        if answer.request_id == frame.request_id:
            answer.connection = connection  # the task belongs to another user now
        else:
            frame.request_id = answer.request_id
            text = frame.write()
        if answer.index or frame.index is not None:
            answer.object = frame.object if frame.object != NONE else answer.object
        if frame.code and answer.streams and not frame.finishes:
            self._end(answer)
            _send_end(self._work_id, answer, frame.code, frame.message)
            return
        if frame.index is not None:
            answer.index = max(answer.index, frame.index + 1)
        if frame.ends and (not answer.index or frame.finishes):
            self._end(answer)
        answer.connection.send(text, apart=frame.finishes)

    def overhear(self, frame: Frame) -> None:
        """The task says something to linked tasks. If users hear nothing of it, their answers end with those."""
        if self.overhears and frame.ends:
            answer = next((answer for answer in self._open if answer.request_id == frame.request_id), None)
            if answer is not None:
                self._open.remove(answer)

    def pause(self) -> Callable[[], None]:
        """Returns what ends the answers that are under way now, if they still are then."""
        begun = [answer for answer in self._open if answer.index]

        def cut() -> None:
            for answer in [answer for answer in self._open if answer in begun]:
                self._end(answer)
                _remember(self._cut, (answer.connection, answer.request_id))
                _send_end(self._work_id, answer, 0, "")

        return cut

    def fail_soon(self, error: UnitError) -> None:
        """The task has gone. What it said at last may come after that."""
        self._failing = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self.fail, error)

    def fail(self, error: UnitError) -> None:
        """The task has gone: end all, and pass nothing more on."""
        self._over = True
        if self._failing is not None:
            self._failing.cancel()
        answers, self._open = self._open, []
        for answer in answers:
            _send_end(self._work_id, answer, error.code, error.message)

    def _is_rest(self, key: _Key, frame: Frame) -> bool:
        """Whether a frame belongs to an answer that was ended here."""
        if key not in self._cut:
            return False
        if frame.ends or not frame.index:
            del self._cut[key]
        return bool(frame.index)

    def _find(self, connection: Connection, frame: Frame) -> _Answer | None:
        """The answer that a frame is part of: the eldest that fits."""
        same = [answer for answer in self._open if answer.request_id == frame.request_id]
        same = [answer for answer in same if answer.connection is connection] or same
        found = next((answer for answer in same if bool(answer.index) == bool(frame.index)), same[0] if same else None)
        if frame.index and (found is None or not found.index):
            # No answer begins so: it is the rest of an earlier one, under the id of what has come in meanwhile.
            elder = self._open if found is None else self._open[: self._open.index(found)]
            return next((answer for answer in elder if 0 < answer.index <= frame.index), found)
        return found

    def _tell_unasked(self, key: _Key, frame: Frame, text: bytes) -> None:
        if key in self._ended and (not self.linked or (frame.ends and frame.index)):
            if not self._complained:
                self._complained = True
                log.warning("%s has answered %r already; what it says more is dropped", self._work_id, frame.request_id)
            return
        if frame.index is not None and not frame.ends:
            self._open.append(_Answer(*key, frame.object, index=frame.index + 1))
        key[0].send(text, apart=frame.finishes)

    def _end(self, answer: _Answer) -> None:
        self._open.remove(answer)
        if answer.is_text:
            _remember(self._ended, (answer.connection, answer.request_id))


def _remember(keys: OrderedDict[_Key, None], key: _Key) -> None:
    keys[key] = None
    keys.move_to_end(key)
    if len(keys) > _MAX_ENDED:
        keys.popitem(last=False)


def _send_end(work_id: str, answer: _Answer, code: int, message: str) -> None:
    """A last frame, of the form that the answer has, as far as that is known."""
    data: object = {"delta": "", "finish": True, "index": answer.index} if answer.streams else ""
    if answer.object == NONE:
        data = NONE
    frame = reply(answer.request_id, work_id, object=answer.object, data=data, code=code, message=message)
    answer.connection.send(frame, apart=answer.streams)
