"""`Peer`: a unit in another process, and the actions that it is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count

import zmq

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.remote.endpoint import Change, Sockets
from trivium.doors.unit.remote.messages import pack, write_command

__all__ = ["ACCEPT_SECONDS", "Peer"]

log = logging.getLogger("trivium.unit")

ACCEPT_SECONDS = 3.0  # within which a unit has to take a call
_MAX_CALLS = 64  # that have not been taken
_MAX_UNANSWERED = 256  # commands that were taken, and whose answers will be missed if the unit goes; some need none


class Peer:
    """Calls one unit. A unit takes a call at once and answers it later, on a line of the client's (`answered`).

    The door answers for it: with -3 if it has no such action, with -9 if it does not take a call in time, or goes before it has
    answered. Once it has gone (`gone`), the peer is of no more use.
    """

    def __init__(self, sockets: Sockets, name: str, url: str, gone: Callable[[Peer], None]) -> None:
        """Raises OSError."""
        self.name = name
        self.url = url
        self._gone = gone
        self._connected = False
        self._keys = count(1)
        self._calls: dict[bytes, tuple[Command | None, asyncio.TimerHandle]] = {}  # not taken yet
        self._unanswered: list[Command] = []
        # A DEALER is to the unit's REP what a REQ is, but need not wait for a reply before the next call.
        self._endpoint = sockets.connect(zmq.DEALER, url, self._taken, self._changed)

    def call(self, command: Command, reply_url: str) -> None:
        """Ask for an action; the unit is to answer at `reply_url`."""
        kept = command if command.action == "setup" else command.without_data()  # some are never answered
        if not self._send(kept, command, reply_url):
            command.fail(UnitError(Code.UNAVAILABLE, f"The unit {self.name} has too much to do."))
            return
        self._unanswered.append(kept)
        if len(self._unanswered) > _MAX_UNANSWERED:
            del self._unanswered[0]

    def tell(self, command: Command, reply_url: str) -> None:
        """Ask for an action whose answer does not matter."""
        self._send(None, command, reply_url)

    def answered(self, connection: Connection, request_id: str) -> Command | None:
        """An answer has come: to this command, or to none. Clients may use a request_id for several at once."""
        for command in self._unanswered:
            if command.connection is connection and command.request_id == request_id:
                self._unanswered.remove(command)
                return command
        return None

    def forget(self, connection: Connection) -> None:
        """A client has gone: there is nobody to answer."""
        self._unanswered = [command for command in self._unanswered if command.connection is not connection]

    def close(self) -> None:
        """Answer what the unit has not, and end the connection."""
        self._endpoint.close()
        for command, timer in self._calls.values():
            timer.cancel()
            self._fail(command, UnitError(Code.NO_UNIT))
        self._calls.clear()
        for command in tuple(self._unanswered):
            self._fail(command, UnitError(Code.NO_UNIT, f"The unit {self.name} has gone."))

    def _send(self, waiting: Command | None, command: Command, reply_url: str) -> bool:
        key = next(self._keys).to_bytes(8, "big")
        payload = pack(reply_url, write_command(command))
        if len(self._calls) >= _MAX_CALLS or not self._endpoint.send(key, b"", command.action.encode(), payload):
            return False
        timer = asyncio.get_running_loop().call_later(ACCEPT_SECONDS, self._timed_out, key)
        self._calls[key] = waiting, timer
        return True

    def _fail(self, command: Command | None, error: UnitError) -> None:
        if command is not None and command in self._unanswered:
            self._unanswered.remove(command)
            command.fail(error)

    def _taken(self, parts: list[bytes]) -> None:
        command, timer = self._calls.pop(parts[0], (None, None))
        if timer is not None:
            timer.cancel()
        if parts[-1].endswith(b" NotAction"):
            self._fail(command, UnitError(Code.ACTION))

    def _timed_out(self, key: bytes) -> None:
        command, _ = self._calls.pop(key)
        log.warning("the unit %s has not taken a call within %g s", self.name, ACCEPT_SECONDS)
        self._fail(command, UnitError(Code.NO_UNIT))
        if not self._connected:
            self._end()

    def _changed(self, change: Change) -> None:
        if change is Change.UP:
            self._connected = True
        else:
            self._end()

    def _end(self) -> None:
        self.close()
        self._gone(self)
