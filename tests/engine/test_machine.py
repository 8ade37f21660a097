"""Cores and memory under container limits, on made-up /proc and /sys/fs/cgroup trees."""

from __future__ import annotations

import os

import pytest

from trivium.engine.machine import available_memory, usable_cores


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes files below proc/ and cgroups/; 8 cores and 1 GB."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def write(**files):
        for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000000 kB\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {"proc": tmp_path / "proc", "cgroups": tmp_path / "cgroups"}

    return write


def test_machine_without_control_groups(tree):
    places = tree()
    assert usable_cores(**places) == 8
    assert available_memory(**places) == 1_024_000_000


def test_version_2_limits_of_the_own_group_and_its_parents(tree):
    places = tree(
        **{
            "proc/self/cgroup": "0::/a/b\n",
            "cgroups/a/cpu.max": "150000 100000\n",
            "cgroups/a/b/cpu.max": "max 100000\n",
            "cgroups/a/memory.max": "max\n",
            "cgroups/a/b/memory.max": "1000000\n",
            "cgroups/a/b/memory.current": "700000\n",
            "cgroups/a/b/memory.stat": "anon 400000\ninactive_file 100000\n",
        }
    )
    assert usable_cores(**places) == 2
    assert available_memory(**places) == 400_000


def test_version_1_limits(tree):
    places = tree(
        **{
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n0::/x\n",
            "cgroups/cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n",
            "cgroups/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            "cgroups/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            "cgroups/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "cgroups/memory/x/memory.limit_in_bytes": "2000000\n",
            "cgroups/memory/x/memory.usage_in_bytes": "500000\n",
            "cgroups/memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 200000\n",
            "cgroups/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cgroups/memory/memory.usage_in_bytes": "500000\n",
        }
    )
    assert usable_cores(**places) == 3
    assert available_memory(**places) == 1_700_000


def test_a_group_over_its_limit_has_no_memory(tree):
    places = tree(**{"proc/self/cgroup": "0::/\n", "cgroups/memory.max": "1000\n", "cgroups/memory.current": "5000\n"})
    assert available_memory(**places) == 0


def test_a_quota_below_one_core_is_one_core(tree):
    assert usable_cores(**tree(**{"proc/self/cgroup": "0::/\n", "cgroups/cpu.max": "20000 100000\n"})) == 1


def test_this_machine():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert 0 < available_memory() < 2**50
