"""`RemoteUnits`: all units that have joined over the bus, from the bus's start to its end."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.remote.address import BusAddress
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.messages import Frame
from trivium.doors.unit.remote.peer import Peer
from trivium.doors.unit.remote.registry import Registry
from trivium.doors.unit.remote.reply_line import ReplyLine
from trivium.doors.unit.remote.sys_rpc import SysRpc
from trivium.errors import ConfigError

__all__ = ["RemoteUnits"]

log = logging.getLogger("trivium.unit")


class RemoteUnits:
    """Passes commands on to units in other processes. Everything runs on the loop it is started on."""

    def __init__(self, address: BusAddress, bus: Bus, own_units: Collection[str], serial: Connection | None) -> None:
        """Start. `serial` is what units know as the serial line. Raises `ConfigError`; then nothing is left open."""
        self._address = address
        self._sockets = Sockets()
        self._peers: dict[str, Peer] = {}
        self._lines: dict[Connection, ReplyLine] = {}
        self._nobody = _Nobody()
        self._registry = Registry(self._sockets, bus, address, own_units)
        try:
            self._take_address()
            self._sys = SysRpc(self._sockets, address.sys_url, self._registry.actions)
            if address.folder is not None:
                (address.folder / "rpc.sys").chmod(0o600)
            # Units ask for it every second until there is one.
            self._registry.values["serial_zmq_url"] = self._line(serial or self._nobody).url
        except OSError as error:
            self.stop()
            raise ConfigError(f"units cannot join at {address.sys_url}: {error.strerror or error}") from error
        if not address.is_local:
            log.warning("whoever reaches %s can join as a unit: nothing asks for a password", address.sys_url)

    @property
    def url(self) -> str:
        """Where units ask, for the log."""
        return self._address.sys_url

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
            peer = self._peer(task.unit)
            if peer is not None:
                peer.tell(Command(self._nobody, "0", task.work_id, "exit"), self._line(self._nobody).url)
            self._registry.drop(task)

    def expire(self) -> None:
        """Close the lines of clients that have gone. To be called every second or so."""
        for connection in [connection for connection in self._lines if connection.closed]:
            self._lines.pop(connection).close()

    def stop(self) -> None:
        """End the bus; what units still owe is answered with errors."""
        for peer in tuple(self._peers.values()):
            peer.close()
        self._peers.clear()
        self._registry.close()
        self._sockets.close()
        if self._address.folder is not None:
            with suppress(OSError):  # what others have put there stays
                (self._address.folder / "llm").rmdir()

    def _take_address(self) -> None:
        """Make the folder, and see that no other server has it. Raises `ConfigError`, and OSError."""
        folder = self._address.folder
        if folder is None:
            return
        folder.mkdir(0o700, parents=True, exist_ok=True)
        (folder / "llm").mkdir(0o700, exist_ok=True)
        try:
            _check_ours(folder / "llm")
        except ConfigError:
            self._sockets.close()
            raise
        if folder.stat().st_mode & 0o022:
            log.warning("unit_bus: others may put sockets into %s, and so pass for units", folder)
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(folder / "rpc.sys"))
            except OSError:
                return
        self.stop()
        raise ConfigError(f"unit_bus: another server has {folder}")

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
        peer = self._peers.get(frame.work_id.partition(".")[0])
        if peer is not None:
            peer.answered(connection, frame.request_id)
        task = self._registry.tasks.get(frame.work_id)
        if task is None:
            connection.send(text)
        else:
            task.told(connection, frame, text)


def _check_ours(folder: Path) -> None:
    """Raise `ConfigError` if other users may do something in a folder that was there already."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(f"unit_bus: {folder} must be this user's, and closed to others (chmod 700)")


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
