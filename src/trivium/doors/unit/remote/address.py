"""`BusAddress`: where the bus is, and the names of its sockets."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from trivium.errors import ConfigError

__all__ = ["MAX_UNIT_NAME", "BusAddress", "SocketNames", "is_unit_name"]

MAX_UNIT_NAME = 24
_MAX_FOLDER = 48  # bytes: the whole name of a socket has at most 107
_MAX_IPC_URL = 113
_FIRST_TASK, _FIRST_REPLY = 5010, 8001  # numbers that the original begins with
_UNIT_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_UNIT_NAME}}}")
_ALLOWED = f"a folder with at most {_MAX_FOLDER} bytes in its path, or tcp://ADDRESS:PORT with an address of this machine"
_LOOPBACK = "127.0.0.1"


def is_unit_name(name: str) -> bool:
    """Whether a unit may have this name; sockets are named after it."""
    return _UNIT_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class BusAddress:
    """A folder of sockets, for units on this machine, or an address and a port, for units that reach it over a network.

    In a folder, the original's programs find everything under the names they know, if it is /tmp. "tcp://:5000" is reached from
    this machine only.
    """

    folder: Path | None = None
    host: str = ""  # as it stands in URLs
    port: int = 0

    @classmethod
    def of_option(cls, text: str) -> BusAddress:
        """Raises `ConfigError`."""
        wrong = ConfigError(f"unit_bus must be {_ALLOWED}, got {text!r}")
        if "://" not in text:
            folder = Path(text).expanduser().absolute()
            if not text or len(os.fsencode(folder)) > _MAX_FOLDER:
                raise wrong
            return cls(folder)
        try:
            parts = urlsplit(text)
            host, port = ipaddress.ip_address(parts.hostname or _LOOPBACK), parts.port
        except ValueError:
            raise wrong from None
        rest = (parts.path, parts.query, parts.fragment, parts.username)
        if parts.scheme != "tcp" or any(rest) or not port or host.is_unspecified:
            raise wrong
        return cls(None, f"[{host}]" if host.version == 6 else str(host), port)

    @property
    def is_local(self) -> bool:
        """Whether it is reached from this machine only."""
        return self.folder is not None or ipaddress.ip_address(self.host.strip("[]")).is_loopback

    @property
    def sys_url(self) -> str:
        """Where units ask."""
        return f"tcp://{self.host}:{self.port}" if self.folder is None else f"ipc://{self.folder}/rpc.sys"

    def unit_url(self, name: str) -> str | None:
        """Where a unit is asked; None if it has to say that itself."""
        return None if self.folder is None else f"ipc://{self.folder}/rpc.{name}"

    def own_url(self, name: str) -> str:
        """Where a unit of this process is to take calls; over a network, at any free port."""
        return self.unit_url(name) or f"tcp://{self.host}:*"

    def may_be(self, url: str) -> bool:
        """Whether units may name this URL as theirs. Hosts are numbers, because looking names up could take long."""
        if url.startswith("ipc://"):
            begin = f"ipc://{self.folder}/"
            if self.folder is None or not url.startswith(begin) or len(os.fsencode(url)) > _MAX_IPC_URL:
                return False
            # In the folder, or its subfolder for tasks: what is named here is removed in the end.
            *folders, name = url[len(begin) :].split("/")
            return folders in ([], ["llm"]) and name not in ("", ".", "..") and "\0" not in name
        try:
            parts = urlsplit(url)
            host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
        except ValueError:
            return False
        return parts.scheme == "tcp" and bool(port) and not host.is_unspecified


class SocketNames:
    """URLs to bind new sockets to. No name is given twice."""

    def __init__(self, address: BusAddress) -> None:
        self._address = address
        self._tasks = count(_FIRST_TASK)
        self._replies = count(_FIRST_REPLY)

    def output(self, unit: str) -> str:
        """For what a task of the unit says; over a network "tcp://*:*", any free port of the unit's machine."""
        return "tcp://*:*" if self._address.folder is None else self._task(unit, "output_url")

    def own_output(self, unit: str) -> str:
        """The same for a task of this process."""
        return self._task(unit, "output_url")

    def inference(self, unit: str) -> str:
        """For what users ask of a task."""
        return self._task(unit, "inference_url")

    def reply(self) -> str:
        """For what units tell one client."""
        return self._bind(f"{next(self._replies)}.sock")

    def _task(self, unit: str, kind: str) -> str:
        return self._bind(f"{next(self._tasks)}.sock.{unit}.{kind}")

    def _bind(self, name: str) -> str:
        folder = self._address.folder
        return f"tcp://{self._address.host}:*" if folder is None else f"ipc://{folder}/llm/{name}"
