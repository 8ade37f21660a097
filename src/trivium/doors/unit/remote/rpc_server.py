"""`SysRpc`: what units ask the door itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import orjson
import zmq

from trivium.doors.unit.remote.endpoint import Sockets

__all__ = ["REFUSED", "SUCCESS", "SysRpc"]

log = logging.getLogger("trivium.unit")

SUCCESS, REFUSED = b"Success", b"False"


class SysRpc:
    """Answers calls, one after the other, each a name and a text. Actions get the text."""

    def __init__(self, sockets: Sockets, url: str, actions: Mapping[str, Callable[[str], bytes]]) -> None:
        """Raises OSError if the URL cannot be had."""
        self._actions = {"list_action": self._list, **actions}
        self._endpoint = sockets.bind(zmq.REP, url, self._answer)

    @property
    def url(self) -> str:
        """Where units ask."""
        return self._endpoint.url

    def _answer(self, parts: list[bytes]) -> None:
        reply = REFUSED
        try:
            name = parts[0].decode()
            action = self._actions.get(name)
            reply = b"%b NotAction" % parts[0] if action is None else action(b"".join(parts[1:]).decode())
        except Exception:
            log.exception("a unit's call of %r failed", parts[0])
        finally:
            self._endpoint.send(reply)

    def _list(self, _: str) -> bytes:
        return orjson.dumps({"actions": list(self._actions)})
