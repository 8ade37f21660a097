"""`Command`: one message of a client, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.frames import NONE, reply

__all__ = ["Command"]


@dataclass(slots=True)
class Command:
    """What a client asks of a unit (work_id "llm") or a task ("llm.1000").

    `data` is any JSON value; with an inference also bytes, which stand for their base64.
    """

    connection: Connection
    request_id: str
    work_id: str
    action: str
    object: str = NONE
    data: Any = NONE

    def without_data(self) -> Command:
        """The same for those who only answer it later: what it brought may be large."""
        return replace(self, data=NONE)

    def reply(self, *, object: str = NONE, data: Any = NONE, work_id: str | None = None) -> None:
        """Answer without an error. `work_id` stands for the command's own when it is another."""
        work_id = self.work_id if work_id is None else work_id
        self.connection.send(reply(self.request_id, work_id, object=object, data=data))

    def fail(self, error: UnitError, *, work_id: str | None = None) -> None:
        """Answer with an error."""
        work_id = self.work_id if work_id is None else work_id
        self.connection.send(reply(self.request_id, work_id, code=error.code, message=error.message))
