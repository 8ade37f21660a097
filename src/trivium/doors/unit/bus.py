"""`Bus`: the numbers of tasks, and what tasks tell those that are linked to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.doors.unit.frames import reply

__all__ = ["Bus", "ChainMessage"]

log = logging.getLogger("trivium.unit")

_FIRST_NUMBER = 1000


@dataclass(frozen=True, slots=True)
class ChainMessage:
    """One output of a task, as tasks linked to it get it. It holds what a frame for a user would hold.

    `data` is a text, or in a stream (an `object` with "stream") {"delta": …, "finish": …, "index": …}; with kws it is true.
    """

    work_id: str  # of the task that says it
    request_id: str
    object: str
    data: Any

    def frame(self) -> bytes:
        """The message as JSON, for units in other processes."""
        return reply(self.request_id, self.work_id, object=self.object, data=self.data)


Handler = Callable[[ChainMessage], None]


class Bus:
    """Connects the tasks of one server. Everything runs on the event loop.

    Attributes:
        closed: called with the work_id of each task that has gone.
    """

    def __init__(self) -> None:
        self.closed: list[Callable[[str], None]] = []
        self._number = _FIRST_NUMBER
        self._handlers: dict[str, list[Handler]] = {}  # by the work_id of each open task

    def next_number(self) -> int:
        """The number of the next task of whatever unit; used up even if its setup fails."""
        self._number += 1
        return self._number - 1

    def reset_numbers(self) -> None:
        """Begin at the first number again."""
        self._number = _FIRST_NUMBER

    def open(self, work_id: str) -> None:
        """There is such a task now: others may link to it."""
        self._handlers[work_id] = []

    def close(self, work_id: str) -> None:
        """The task has gone, and with it whatever was linked to it."""
        self._handlers.pop(work_id, None)
        for tell in self.closed:
            tell(work_id)

    def is_open(self, work_id: str) -> bool:
        """Whether there is such a task."""
        return work_id in self._handlers

    def is_heard(self, work_id: str) -> bool:
        """Whether any task is linked to this one."""
        return bool(self._handlers.get(work_id))

    def subscribe(self, work_id: str, handler: Handler) -> Callable[[], None]:
        """Have `handler` called, on the loop, with each message of an open task; returns what ends that.

        Handlers must be quick; what they raise is logged. Raises KeyError if there is no such task.
        """
        handlers = self._handlers[work_id]
        handlers.append(handler)

        def unsubscribe() -> None:
            if handler in handlers:
                handlers.remove(handler)

        return unsubscribe

    def publish(self, message: ChainMessage) -> None:
        """Tell a message to all that are linked to its task."""
        for handler in tuple(self._handlers.get(message.work_id, ())):
            try:
                handler(message)
            except Exception:
                log.exception("a task linked to %s failed on its output", message.work_id)
