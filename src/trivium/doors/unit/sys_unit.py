"""`SysUnit`: the door itself, work_id "sys"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trivium.doors.unit import machine_facts
from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.frames import reply
from trivium.doors.unit.line_settings import LineSettings
from trivium.doors.unit.serial_line import SerialLine
from trivium.doors.unit.unit import Unit

if TYPE_CHECKING:
    from trivium.doors.unit.remote.remote_units import RemoteUnits

__all__ = ["VERSION", "SysUnit"]

log = logging.getLogger("trivium.unit")

VERSION = "v1.6"

# Actions of the original that let anyone who reaches the door run programs, read and write files, or remove models.
_REFUSED = frozenset({"bashexec", "push", "pull", "upgrade", "update", "rmmode", "unit_call"})


class SysUnit:
    """Answers "sys" for the units of one server."""

    def __init__(self, bus: Bus, units: Mapping[str, Unit]) -> None:
        self.serial_lines: list[SerialLine] = []
        self.remote: RemoteUnits | None = None
        self._bus = bus
        self._units = units
        self._actions: dict[str, Callable[[Command], None]] = {
            "ping": self._ping,
            "version": self._version,
            "lsmode": self._list_models,
            "lstask": self._list_tasks,
            "cmminfo": self._memory,
            "hwinfo": self._hardware,
            "reset": self._reset,
            "reboot": self._reboot,
            "uartsetup": self._set_up_line,
        }

    def handle(self, command: Command) -> None:
        """Answer any action."""
        action = self._actions.get(command.action)
        if action is not None:
            action(command)
            return
        if command.action in _REFUSED:
            log.warning("%s asked for sys.%s, which is refused", command.connection.name, command.action)
        command.fail(UnitError(Code.ACTION))

    def _ping(self, command: Command) -> None:
        command.reply()

    def _version(self, command: Command) -> None:
        command.reply(object="sys.utf-8", data=VERSION)

    def _list_models(self, command: Command) -> None:
        command.reply(object="sys.lsmode", data=[model for unit in self._units.values() for model in unit.descriptors()])

    def _list_tasks(self, command: Command) -> None:
        command.fail(UnitError(Code.UNAVAILABLE))

    def _memory(self, command: Command) -> None:
        command.reply(object="sys.cmminfo", data=machine_facts.memory())

    def _hardware(self, command: Command) -> None:
        command.reply(object="sys.hwinfo", data=machine_facts.hardware())

    def _reset(self, command: Command) -> None:
        self._start_over(command, "llm server restarting ...")
        # Clients on serial lines wait for this; on TCP, where the original hangs up, it would be taken for another answer.
        for line in self.serial_lines:
            line.send(reply("0", "sys", message="reset over"))

    def _reboot(self, command: Command) -> None:
        self._start_over(command, "rebooting ...")

    def _start_over(self, command: Command, message: str) -> None:
        """End all tasks and count from the first number; the machine and the server stay as they are."""
        log.info("%s asked for sys.%s: all tasks end", command.connection.name, command.action)
        command.connection.send(reply(command.request_id, command.work_id, message=message))
        for unit in self._units.values():
            unit.reset()
        if self.remote is not None:
            self.remote.reset()
        self._bus.reset_numbers()

    def _set_up_line(self, command: Command) -> None:
        """Set up the line it came on; from TCP, all lines."""
        own = command.connection
        lines = [own] if isinstance(own, SerialLine) else self.serial_lines
        if not lines:
            command.fail(UnitError(Code.ACTION))
            return
        try:
            settings = LineSettings.of_command(command.data)
        except ValueError as error:
            command.fail(UnitError(Code.JSON, str(error)))
            return
        command.reply()
        for line in lines:
            line.set_up(settings)
