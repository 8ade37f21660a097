"""`Connection`: a client's line, TCP or serial."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["Connection"]


class Connection(ABC):
    """Where replies go. Everything runs on the event loop; nothing here waits or raises, however slow the client is.

    Attributes:
        name: for the log.
        closed: the client has gone; what is sent is dropped.
    """

    name: str
    closed: bool = False

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether earlier frames have not left yet, so that text should be gathered into fewer, larger frames."""

    @abstractmethod
    def send(self, frame: bytes, *, apart: bool = False) -> None:
        """Send a whole frame, as `frames` makes them.

        `apart`: other frames shall come some milliseconds before or after it. An answer's last frame would otherwise follow on
        its last text at once, and some clients take what they read in one go for one frame.
        """
