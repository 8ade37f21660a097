"""`Publisher`: a bound socket that others subscribe to, and whether anyone has."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from trivium.doors.unit.remote.endpoint import Endpoint, Sockets

__all__ = ["Publisher"]


class Publisher:
    """Sends messages to all who have subscribed. `heard` is called with True for the first and False after the last."""

    def __init__(self, sockets: Sockets, url: str, heard: Callable[[bool], None]) -> None:
        """Raises OSError."""
        self._heard = heard
        self._topics: set[bytes] = set()
        self._endpoint: Endpoint = sockets.bind(zmq.XPUB, url, self._subscribed)

    @property
    def url(self) -> str:
        """Where it is subscribed to."""
        return self._endpoint.url

    @property
    def is_heard(self) -> bool:
        """Whether anyone has subscribed."""
        return bool(self._topics)

    def keep_all(self) -> None:
        """Refuse a message rather than drop it for a subscriber that does not keep up."""
        self._endpoint.socket.set(zmq.XPUB_NODROP, 1)

    def send(self, message: bytes) -> bool:
        """Whether it could be sent, with `keep_all`."""
        return self._endpoint.send(message)

    def close(self) -> None:
        """End it, without a call."""
        self._endpoint.close()

    def _subscribed(self, parts: list[bytes]) -> None:
        kind, topic = parts[0][:1], parts[0][1:]
        before = self.is_heard
        if kind == b"\1":
            self._topics.add(topic)
        elif kind == b"\0":
            self._topics.discard(topic)
        if self.is_heard != before:
            self._heard(self.is_heard)
