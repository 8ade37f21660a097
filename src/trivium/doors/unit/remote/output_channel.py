"""`OutputChannel`: what a task of this process says, for units in others."""

from __future__ import annotations

from collections.abc import Callable

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.publisher import Publisher

__all__ = ["OutputChannel"]


class OutputChannel:
    """Publishes the messages of one task, while anyone has subscribed. One who does not keep up loses what is too much."""

    def __init__(self, sockets: Sockets, bus: Bus, work_id: str, url: str) -> None:
        """The task must be open on the bus. Raises OSError."""
        self._bus = bus
        self._work_id = work_id
        self._unsubscribe: Callable[[], None] | None = None
        self._publisher = Publisher(sockets, url, self._heard)

    @property
    def url(self) -> str:
        """Where units subscribe."""
        return self._publisher.url

    def close(self) -> None:
        """The task has gone."""
        self._heard(False)
        self._publisher.close()

    def _heard(self, heard: bool) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if heard and self._bus.is_open(self._work_id):
            self._unsubscribe = self._bus.subscribe(self._work_id, self._publish)

    def _publish(self, message: ChainMessage) -> None:
        self._publisher.send(message.frame())
