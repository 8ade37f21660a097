"""`Router`: from what a connection received to the unit that answers it."""

from __future__ import annotations

import binascii
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import Fault, Received
from trivium.doors.unit.frames import NONE, reply
from trivium.doors.unit.sys_unit import SysUnit
from trivium.doors.unit.unit import Unit

if TYPE_CHECKING:
    from trivium.doors.unit.remote.remote_units import RemoteUnits

__all__ = ["MAX_ID", "Router"]

log = logging.getLogger("trivium.unit")

MAX_ID = 256  # characters of a request_id, work_id or object: they are kept, and repeated in every frame

# Units of the original that are not here, and what to do about it.
_VOICE = "install the voice units with `pip install 'trivium[voice]'`, and start the server again"
_HINTS = {
    **dict.fromkeys(("kws", "asr", "whisper", "tts", "melotts"), _VOICE),
    "cosy_voice": "speech comes from the unit tts (trivium[voice])",
    "vad": "the unit asr (trivium[voice]) finds the ends of speech itself",
}


class Router:
    """Reads the envelope of messages and passes commands on. Every message gets its reply, and nothing here raises."""

    def __init__(self, sys_unit: SysUnit, units: Mapping[str, Unit]) -> None:
        self.remote: RemoteUnits | None = None  # those of other processes, if they may join
        self.draining = False  # the server ends: no new tasks and inferences
        self._sys = sys_unit
        self._units = units
        self._missed: set[str] = set()  # units that the log has told to be absent

    def route(self, connection: Connection, received: Received) -> None:
        """Have one message, or what came instead of one, answered."""
        if received is Fault.BRACE:
            _refuse(connection, "reace reset", Code.BRACES)
            return
        command = None if isinstance(received, Fault) else _command(connection, received)
        if command is None:
            _refuse(connection, "json format error", Code.JSON)
            return
        try:
            self._pass_on(command)
        except Exception:  # a fault of ours must not end the connection
            log.exception("%s of %s failed", command.action, command.work_id)
            command.fail(UnitError(Code.UNAVAILABLE))

    def _pass_on(self, command: Command) -> None:
        name = command.work_id.partition(".")[0]
        unit = self._units.get(name)
        if unit is None or command.action != "inference":
            command.data = _plain(command.data)
        if self.draining and command.action in ("setup", "inference"):
            task = None if unit is None or command.action == "setup" else unit.tasks.get(command.work_id)
            refuse = (
                command.fail if task is None else lambda error: task.refuse(command, error)
            )  # clients wait for a last frame
            refuse(UnitError(Code.UNAVAILABLE))
        elif unit is None and name != "sys" and self.remote is not None and self.remote.handle(command):
            pass
        elif command.action == "inference":
            if unit is None:
                command.fail(UnitError(Code.NO_INPUT))
            else:
                unit.infer(command)
        elif name == "sys":
            self._sys.handle(command)
        elif unit is None:
            self._tell_absent(name)
            command.fail(UnitError(Code.NO_UNIT))
        else:
            unit.handle(command)

    def _tell_absent(self, name: str) -> None:
        """Log that a unit is not here, once for each that the original has."""
        if name in _HINTS and name not in self._missed:
            self._missed.add(name)
            log.warning("a client asked for the unit %s, which is not running; %s", name, _HINTS[name])


def _command(connection: Connection, message: dict[str, Any]) -> Command | None:
    """The message's envelope, None if it lacks what every message must have, or that is too long."""
    request_id, work_id, action = message.get("request_id"), message.get("work_id"), message.get("action")
    if not (isinstance(request_id, str) and isinstance(work_id, str) and isinstance(action, str)):
        return None
    kind = message.get("object")
    kind = kind if isinstance(kind, str) else NONE
    if max(len(request_id), len(work_id), len(kind)) > MAX_ID:
        return None
    # An inference may have the text "None"; one without data is an error.
    return Command(connection, request_id, work_id or "sys", action, kind, message.get("data"))


def _plain(data: Any) -> Any:
    """Data as the protocol has it, which is no bytes, and "None" for nothing."""
    if isinstance(data, bytes):
        return binascii.b2a_base64(data, newline=False).decode("ascii")
    return NONE if data is None else data


def _refuse(connection: Connection, message: str, code: Code) -> None:
    """Answer what cannot be told whose it is."""
    connection.send(reply("0", "sys", code=code, message=message))
