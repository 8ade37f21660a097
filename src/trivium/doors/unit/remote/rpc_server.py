"""`RpcServer`: what others on the bus can call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import zmq

from trivium.doors.unit.remote.endpoint import Sockets

__all__ = ["REFUSED", "SUCCESS", "RpcServer"]

log = logging.getLogger("trivium.unit")

SUCCESS, REFUSED = b"Success", b"False"


class RpcServer:
    """Answers calls, one after the other, each a name and bytes. An action that raises ValueError refuses what it was given."""

    def __init__(
        self, sockets: Sockets, url: str, actions: Mapping[str, Callable[[bytes], bytes]], *, inner: Path | None = None
    ) -> None:
        """`inner` as for `Sockets.bind`. Raises OSError if the URL cannot be had."""
        self._actions = {"list_action": self._list, **actions}
        self._endpoint = sockets.bind(zmq.REP, url, self._answer, inner=inner)

    @property
    def url(self) -> str:
        """Where it is called."""
        return self._endpoint.url

    def _answer(self, parts: list[bytes]) -> None:
        reply = REFUSED
        try:
            action = self._actions.get(parts[0].decode())
            reply = b"%b NotAction" % parts[0] if action is None else action(b"".join(parts[1:]))
        except ValueError as error:
            log.warning("a call of %r at %s is refused: %s", parts[0][:40], self.url, error)
        except Exception:
            log.exception("a call of %r at %s failed", parts[0][:40], self.url)
        finally:
            self._endpoint.send(reply)

    def _list(self, _: bytes) -> bytes:
        return orjson.dumps({"actions": list(self._actions)})
