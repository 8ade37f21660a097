"""What this process may use of the machine: cores, memory, instructions; container limits (control groups v1, v2) included."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from trivium.errors import ConfigError

__all__ = ["available_memory", "instruction_set", "usable_cores"]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Cores that the affinity mask and the CPU quota (rounded up) leave to this process; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _groups("cpu", proc, cgroups) if (quota := _cpu_quota(group)) is not None]
    return max(1, min([affinity, *(math.ceil(quota) for quota in quotas)]))


def instruction_set() -> str:
    """The instruction set of the kernels. Raises `ConfigError` if `TRIVIUM_ISA` names one that this machine lacks."""
    from trivium import _native

    try:
        return _native.instruction_set()
    except ValueError as error:
        raise ConfigError(str(error)) from error


def available_memory(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be allocated without swapping: the kernel's estimate, or less where a control group's limit is nearer."""
    room = [room for group in _groups("memory", proc, cgroups) if (room := _memory_room(group)) is not None]
    return max(0, min([_memory_of_machine(proc), *room]))


def _memory_of_machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders of the control groups this process is in, its own first and the root last: a limit of any of them binds."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        # "0::/path" is version 2; "4:cpu,cpuacct:/path" version 1.
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            root = cgroups
        elif controller in controllers.split(","):
            root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / controller
        else:
            continue
        group = root / path.lstrip("/")
        while group != root:
            yield group
            group = group.parent
        yield root


def _cpu_quota(group: Path) -> float | None:
    """Cores' worth of time per period, None without a limit."""
    words = _read(group / "cpu.max").split()
    if len(words) == 2:
        return None if words[0] == "max" else int(words[0]) / int(words[1])
    quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _memory_room(group: Path) -> int | None:
    """Bytes left below the group's limit, None without one. Inactive file pages count as free: the kernel drops them first."""
    limit = _read(group / "memory.max").strip()
    usage, cache = "memory.current", "inactive_file"
    if not limit:
        limit = _read(group / "memory.limit_in_bytes").strip()
        usage, cache = "memory.usage_in_bytes", "total_inactive_file"
    if not limit or limit == "max":
        return None
    statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    used = int(_read(group / usage).strip() or 0) - int(statistics.get(cache, 0))
    return int(limit) - max(0, used)


def _read(path: Path) -> str:
    """The file's text, empty when this kernel or container does not show it."""
    try:
        return path.read_text()
    except OSError:
        return ""
