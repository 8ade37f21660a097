"""`UnitServer`: the unit door of one engine, from its start to its end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.sockets import bind
from trivium.doors.unit.bus import Bus
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.engines import Engines, LoadEngine
from trivium.doors.unit.llm import LlmUnit
from trivium.doors.unit.router import Router
from trivium.doors.unit.serial_line import SerialLine
from trivium.doors.unit.sys_unit import SysUnit
from trivium.doors.unit.tcp import TcpListener
from trivium.doors.unit.unit import Unit
from trivium.doors.unit.voice import voice_units
from trivium.errors import ConfigError

__all__ = ["UnitServer"]

log = logging.getLogger("trivium.unit")

_TICK_SECONDS = 1.0
_FLUSH_SECONDS = 2.0  # for what is still to be sent at the end


class UnitServer:
    """Listens on TCP and serial lines, and passes commands to the units. Everything runs on the loop it is made on.

    The dispatcher and its engine are the caller's, and may serve other doors, too.
    """

    def __init__(
        self,
        config: UnitConfig,
        dispatcher: Dispatcher,
        load: LoadEngine | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """`load` makes the engines of further models; by default they are native ones.

        `sockets` are bound to the configured port already; by default `start` binds them.
        """
        self.config = config
        self._sockets = sockets
        self.bus = Bus()
        self.port: int | None = None  # the one in use, once `start` has returned
        self.units: dict[str, Unit] = {}
        self._add(LlmUnit(self.bus, config, Engines(dispatcher, config.models, config.unit_default_model, load)))
        for unit in voice_units(self.bus, config):
            self._add(unit)
        self._sys = SysUnit(self.bus, self.units)
        self._router = Router(self._sys, self.units)
        self._tcp = TcpListener(self._router)
        self._tick: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> list[str]:
        """Where it can be reached, for the log."""
        lines = [f"{device}:{settings.baud}" for device, settings in self.config.serial_lines]
        bus = [] if self._router.remote is None else [self._router.remote.url]
        return [f"{self.config.unit_host}:{self.port}", *lines, *bus]

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches its TCP port."""
        sockets = self._sockets or ()
        return all(ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback for sock in sockets)

    @property
    def num_connections(self) -> int:
        """TCP clients at the moment."""
        return len(self._tcp.connections)

    async def start(self) -> None:
        """Take clients. Raises `ConfigError` if a port, a serial line or the bus cannot be had; then nothing is left open."""
        if self._sockets is None:
            self._sockets = bind(self.config.unit_host, self.config.unit_port, "unit_port")
        await self._tcp.start(self._sockets)
        self.port = int(self._sockets[0].getsockname()[1])
        try:
            for device, settings in self.config.serial_lines:
                line = SerialLine(device, settings, self._router)
                line.open()
                self._sys.serial_lines.append(line)
            self._open_bus()
        except ConfigError:
            await self.stop(0.0)
            raise
        self._expire()

    async def stop(self, timeout: float) -> None:
        """Refuse new work, let answers finish for up to `timeout` seconds, end all tasks and connections."""
        self._router.draining = True
        await self._tcp.stop_listening()
        deadline = time.monotonic() + timeout
        while self._answering() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for unit in self.units.values():
            await unit.shutdown()
        if self._tick is not None:
            self._tick.cancel()
        if self._router.remote is not None:
            self._router.remote.stop()
        end = max(deadline, time.monotonic() + _FLUSH_SECONDS)
        await asyncio.gather(self._tcp.close(_FLUSH_SECONDS), *(line.end(end) for line in self._sys.serial_lines))

    def _add(self, unit: Unit) -> None:
        if unit.name not in self.config.unit_without:
            self.units[unit.name] = unit

    def _open_bus(self) -> None:
        """Let units of other processes join. Raises `ConfigError`."""
        address = self.config.bus_address
        if address is None:
            return
        try:
            from trivium.doors.unit.remote.remote_units import RemoteUnits
        except ImportError as error:
            raise ConfigError("unit_bus needs pyzmq: pip install 'trivium[bus]'") from error
        serial = next(iter(self._sys.serial_lines), None)
        self._router.remote = self._sys.remote = RemoteUnits(address, self.bus, self.units, serial, self._router.route)

    def _answering(self) -> bool:
        remote = self._router.remote
        own = any(task.outputs for unit in self.units.values() for task in unit.tasks.values())
        return own or (remote is not None and remote.is_answering)

    def _expire(self) -> None:
        now = time.monotonic()
        self._tcp.expire(now)
        for line in self._sys.serial_lines:
            line.expire(now)
        for unit in self.units.values():
            unit.expire(now)
        if self._router.remote is not None:
            self._router.remote.expire()
        self._tick = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._expire)
