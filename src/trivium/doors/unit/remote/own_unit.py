"""`OwnUnit`: a unit of this process, as others on the bus call it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import Fault, Framer, Received
from trivium.doors.unit.remote.address import BusAddress
from trivium.doors.unit.remote.caller import Callers
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.messages import unpack
from trivium.doors.unit.remote.rpc_server import RpcServer

__all__ = ["OwnUnit", "Route"]

Route = Callable[[Connection, Received], None]

_TAKEN = b"None"


class OwnUnit:
    """Takes calls like the original's units: an action's name, and a pair of the caller's URL and the message.

    A message goes the way of those that come over TCP, and what is said to it goes to the URL. The call's name stands for the
    message's action, and the unit's for a work_id that is missing. An inference is called like any action.
    """

    def __init__(
        self,
        sockets: Sockets,
        address: BusAddress,
        name: str,
        actions: Collection[str],
        callers: Callers,
        route: Route,
        inner: Path | None,
    ) -> None:
        """Raises OSError if it cannot be called."""
        self.name = name
        self._address = address
        self._callers = callers
        self._route = route
        calls = {action: partial(self._take, action) for action in actions}
        self._rpc = RpcServer(sockets, address.own_url(name), calls, inner=inner)

    @property
    def url(self) -> str:
        """Where it is called."""
        return self._rpc.url

    def _take(self, action: str, payload: bytes) -> bytes:
        """Raises ValueError if there is no way to answer, and OSError."""
        url, text = unpack(payload)
        if not self._address.may_be(url):
            raise ValueError(f"{url[:120]!r} is no place for answers on this bus")
        caller = self._callers.at(url)
        found = Framer().feed(text)
        message = found[0] if len(found) == 1 else Fault.JSON
        if isinstance(message, dict):
            message["action"] = action
            if message.get("work_id", "") == "":
                message["work_id"] = self.name
            if self._is_other(message["work_id"]) and isinstance(message.get("request_id"), str):
                Command(caller, message["request_id"], message["work_id"], action).fail(UnitError(Code.NO_TASK))
                return _TAKEN
        self._route(caller, message)
        return _TAKEN

    def _is_other(self, work_id: object) -> bool:
        return isinstance(work_id, str) and work_id.partition(".")[0] != self.name
