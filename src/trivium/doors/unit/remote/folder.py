"""`BusFolder`: the folder that a bus is in."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from trivium.errors import ConfigError

__all__ = ["BusFolder"]

log = logging.getLogger("trivium.unit")


class BusFolder:
    """Holds a folder for one server, and in it `inner`, which nobody else can enter.

    Where others may write to the folder itself, as in /tmp, only what is in `inner` is safe from them.
    """

    def __init__(self, path: Path) -> None:
        """Make what is missing. Raises `ConfigError` if others can enter `inner`, or another server is here; OSError."""
        self.path = path
        self.inner = path / "llm"
        path.mkdir(0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.inner.mkdir(0o700)
        self._handle = self._open()
        try:
            self._check_ours()
            self._take()
        except BaseException:
            os.close(self._handle)
            raise
        status = path.stat()
        if status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
            log.warning("unit_bus: others may put sockets into %s, and so pass for units", path)

    def close(self) -> None:
        """Leave it to others. What they have put there stays."""
        with suppress(OSError):
            self.inner.rmdir()
        os.close(self._handle)

    def _open(self) -> int:
        """`inner` itself, wherever its name may come to point later."""
        try:
            return os.open(self.inner, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise ConfigError(f"unit_bus: {self.inner} must be a folder of this user's: {error.strerror}") from error

    def _check_ours(self) -> None:
        status = os.fstat(self._handle)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(f"unit_bus: {self.inner} must be this user's, and closed to others (chmod 700)")

    def _take(self) -> None:
        """The lock keeps servers of ours apart, also if they start at once; the original has none, but answers."""
        taken = ConfigError(f"unit_bus: another server has {self.path}")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path / "rpc.sys"))
            except (ConnectionRefusedError, FileNotFoundError):
                return
            except OSError as error:
                raise taken from error
        raise taken
