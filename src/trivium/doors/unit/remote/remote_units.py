"""`RemoteUnits`: all units that have joined over the bus, from the bus's start to its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.remote.address import BusAddress
from trivium.doors.unit.remote.caller import Callers
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.folder import BusFolder
from trivium.doors.unit.remote.messages import Frame
from trivium.doors.unit.remote.own_unit import OwnUnit, Route
from trivium.doors.unit.remote.peer import Peer
from trivium.doors.unit.remote.registry import Registry
from trivium.doors.unit.remote.remote_task import RemoteTask
from trivium.doors.unit.remote.reply_line import ReplyLine
from trivium.doors.unit.remote.rpc_server import RpcServer
from trivium.doors.unit.unit import Unit
from trivium.errors import ConfigError

__all__ = ["RemoteUnits"]

log = logging.getLogger("trivium.unit")


class RemoteUnits:
    """Passes commands on to units in other processes. Everything runs on the loop it is started on."""

    def __init__(
        self, address: BusAddress, bus: Bus, units: Mapping[str, Unit], serial: Connection | None, route: Route
    ) -> None:
        """Start. `units` are those of this process, which messages that `route` is given reach; `serial` is what others know
        as the serial line. Raises `ConfigError`; then nothing is left open.
        """
        self._address = address
        self._sockets = Sockets()
        self._folder: BusFolder | None = None
        self._callers = Callers(self._sockets)
        self._peers: dict[str, Peer] = {}
        self._lines: dict[Connection, ReplyLine] = {}
        self._nobody = _Nobody()
        self._serial = serial or self._nobody
        self._registry = Registry(self._sockets, bus, address, units)
        try:
            self._open(units, route)
        except OSError as error:
            self.stop()
            raise ConfigError(f"units cannot join at {address.sys_url}: {error.strerror or error}") from error
        except ConfigError:
            self.stop()
            raise
        if not address.is_local:
            log.warning("whoever reaches %s may join as a unit and command those here: the bus has no keys", address.sys_url)

    @property
    def url(self) -> str:
        """Where units ask, for the log."""
        return self._address.sys_url

    @property
    def is_answering(self) -> bool:
        """Whether an answer of a task has begun and not ended."""
        return any(task.answers.is_answering for task in self._registry.tasks.values())

    def handle(self, command: Command) -> bool:
        """Have a command for a unit that is not in this process answered; False if there is no such unit, or task."""
        if command.action == "inference":
            task = self._registry.tasks.get(command.work_id)
            if task is not None:
                task.infer(command, self._line(command.connection).url)
            return task is not None
        peer = self._peer(command.work_id.partition(".")[0])
        if peer is not None:
            peer.call(command, self._line(command.connection).url)
        return peer is not None

    def reset(self) -> None:
        """End all tasks. Their units are asked to, and not waited for."""
        for task in tuple(self._registry.tasks.values()):
            self._end_task(task)

    def expire(self) -> None:
        """Close the lines of clients that have gone; an unplugged serial line comes back. To be called every second or so."""
        for connection in [connection for connection in self._lines if connection.closed and connection is not self._serial]:
            self._lines.pop(connection).close()
            for peer in self._peers.values():
                peer.forget(connection)

    def stop(self) -> None:
        """End the bus; what units still owe is answered with errors."""
        for peer in tuple(self._peers.values()):
            peer.close()
        self._peers.clear()
        self._registry.close()
        self._callers.close()
        self._sockets.close()
        if self._folder is not None:
            self._folder.close()

    def _open(self, units: Mapping[str, Unit], route: Route) -> None:
        """Take calls. Raises `ConfigError`, and OSError."""
        inner = None
        if self._address.folder is not None:
            self._folder = BusFolder(self._address.folder)
            inner = self._folder.inner
        self._sys = RpcServer(self._sockets, self._address.sys_url, self._registry.actions, inner=inner)
        for name, unit in units.items():
            calls = ("setup", "inference", *unit.actions)
            own = OwnUnit(self._sockets, self._address, name, calls, self._callers, route, inner)
            self._registry.fix(f"rpc.{name}", own.url)
        # Units ask for it every second until there is one.
        self._registry.fix("serial_zmq_url", self._line(self._serial).url)

    def _peer(self, name: str) -> Peer | None:
        """The unit of this name, if it may be there."""
        url = self._registry.unit_url(name) if self._registry.is_free(name) else None
        peer = self._peers.get(name)
        if peer is not None and peer.url != url:
            self._peers.pop(name).close()
            peer = None
        if peer is None and url is not None and _may_answer(url):
            peer = self._peers[name] = Peer(self._sockets, name, url, self._gone)
        return peer

    def _gone(self, peer: Peer) -> None:
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]

    def _line(self, connection: Connection) -> ReplyLine:
        line = self._lines.get(connection)
        if line is None:
            line = ReplyLine(self._sockets, connection, self._registry.reply_url(), self._told)
            self._lines[connection] = line
        return line

    def _told(self, connection: Connection, frame: Frame, text: bytes) -> None:
        """A unit tells a client something."""
        task = self._registry.tasks.get(frame.work_id)
        command = self._answered(connection, frame, task or self._registry.gone(frame.work_id))
        if command is None and frame.is_reply and frame.code == 0:
            # An action that was taken for refused has been done after all; a task that nobody knows of would stay for ever.
            if task is not None and not task.is_set_up:
                self._end_task(task)
        elif task is not None:
            task.told(connection, frame, text, command)
        elif command is None and (gone := self._registry.gone(frame.work_id)) is not None:
            gone.answers.tell(connection, frame, text)
        else:
            connection.send(text)

    def _answered(self, connection: Connection, frame: Frame, task: RemoteTask | None) -> Command | None:
        """The action that a frame is the reply to, if any."""
        if not frame.is_reply and task is not None and task.answers.is_expected(connection, frame.request_id):
            return None
        name = frame.work_id.partition(".")[0]
        peers = sorted(self._peers.values(), key=lambda peer: peer.name != name)  # some units err in their names
        answered = (peer.answered(connection, frame.request_id) for peer in peers)
        return next((command for command in answered if command is not None), None)

    def _end_task(self, task: RemoteTask) -> None:
        """Ask the unit to, and do not wait for it."""
        peer = self._peer(task.unit)
        if peer is not None:
            peer.tell(Command(self._nobody, "0", task.work_id, "exit"), self._line(self._nobody).url)
        self._registry.drop(task)


def _may_answer(url: str) -> bool:
    """Whether trying makes sense: a unit that has never been there has no socket."""
    return not url.startswith("ipc://") or Path(url.removeprefix("ipc://")).is_socket()


class _Nobody(Connection):
    """Takes answers that matter to nobody."""

    name = "nobody"

    @property
    def busy(self) -> bool:
        return False

    def send(self, frame: bytes, *, apart: bool = False) -> None:
        """Drop it."""
