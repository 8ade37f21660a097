"""What the measurements ran on, and whether something else ran beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

__all__ = ["busy_cores", "describe_machine", "warn_if_busy"]

_FEATURES = ("avx2", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_BUSY = 0.15  # cores; an idle machine's services stay below


def describe_machine() -> dict[str, Any]:
    """Processor, the flags of it that matter here, usable cores, memory in bytes, kernel."""
    fields = dict(_cpu_fields())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name", "unknown"),
        "flags": [flag for flag in _FEATURES if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "load_average": os.getloadavg(),
    }


def busy_cores(seconds: float = 0.5) -> float:
    """Cores' worth of time that was not idle during a pause of `seconds`; while our own processes rest, what others use."""
    before = _cpu_times()
    time.sleep(seconds)
    busy, idle = (now - then for now, then in zip(_cpu_times(), before, strict=True))
    return (os.cpu_count() or 1) * busy / max(1, busy + idle)


def warn_if_busy(busy: float) -> str | None:
    """The warning that belongs to a result of `busy_cores`, None if the machine is quiet."""
    if busy < _BUSY:
        return None
    return f"warning: other processes use {busy:.2f} cores; what is measured now means little"


def _cpu_fields() -> list[tuple[str, str]]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in reversed(lines)) if value]


def _cpu_times() -> tuple[int, int]:
    """Ticks busy and idle since boot, of all cores; time stolen by the hypervisor counts as busy."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle
