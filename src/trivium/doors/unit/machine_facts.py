"""What `hwinfo` and `cmminfo` tell of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any

from trivium.engine.machine import available_memory, usable_cores

__all__ = ["hardware", "memory"]

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>: an interface's IPv4 address
_SYS = Path("/sys/class")


def memory() -> dict[str, int]:
    """Memory of the machine in KiB. On the original this is the accelerator's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    remain = min(total, available_memory() // 1024)
    return {"total": total, "used": total - remain, "remain": remain}


def hardware() -> dict[str, Any]:
    """Temperature in thousandths of a degree (0 if unknown), load of the cores and use of the memory in percent, networks."""
    kib = memory()
    return {
        "temperature": _temperature(),
        "cpu_loadavg": min(100, round(100 * os.getloadavg()[0] / usable_cores())),
        "mem": 100 * kib["used"] // max(1, kib["total"]),
        "eth_info": _networks(),
    }


def _temperature() -> int:
    try:
        return int(_read(_SYS / "thermal" / "thermal_zone0" / "temp"))
    except ValueError:
        return 0


def _networks() -> list[dict[str, str]]:
    """Interfaces that have an IPv4 address, but for the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if name == "lo":
                continue
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(
                    {"name": name, "ip": socket.inet_ntoa(answer[20:24]), "speed": _read(_SYS / "net" / name / "speed")}
                )
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not on this machine, or the interface is down
        return ""
