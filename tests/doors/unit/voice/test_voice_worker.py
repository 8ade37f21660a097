"""The thread that does a task's work."""

from __future__ import annotations

import threading

import pytest
from unit_parts import wait_until

from trivium.doors.unit.voice.worker import Worker


@pytest.fixture
def make():
    workers = []

    def make(**options):
        fields = {"max_bytes": 100, "failed": lambda error: None} | options
        workers.append(Worker("kws.1000", **fields))
        return workers[-1]

    yield make
    for worker in workers:
        worker.stop()
        worker.join(10)
        assert f"trivium-{worker.name}" not in [thread.name for thread in threading.enumerate()]


def test_jobs_run_in_order_on_one_thread(make):
    worker, done = make(), []
    for i in range(100):
        worker.put(lambda i=i: done.append((i, threading.current_thread().name)))
    wait_until(lambda: len(done) == 100)
    assert done == [(i, "trivium-kws.1000") for i in range(100)]


def test_what_waits_is_bounded(make):
    worker, gate, begun, done = make(max_bytes=10_000), threading.Event(), threading.Event(), []
    worker.put(lambda: begun.set() or gate.wait())
    begun.wait(10)
    assert not worker.put(lambda: done.append(0), 10_001)  # a single large one
    assert worker.put(lambda: done.append(1), 10_000)
    assert not worker.put(lambda: done.append(2), 1)
    assert worker.put(lambda: done.append(3))  # without bytes
    gate.set()
    wait_until(lambda: done == [1, 3])
    assert worker.put(lambda: done.append(4), 6000)


def test_many_tiny_jobs_are_bounded_too(make):
    worker, gate = make(max_bytes=100_000), threading.Event()
    worker.put(gate.wait)
    taken = sum(worker.put(lambda: None, 2) for _ in range(1000))
    gate.set()
    assert taken < 400


def test_a_fault_ends_its_job_only(make, caplog):
    errors, done = [], []
    worker = make(failed=errors.append)
    worker.put(lambda: 1 / 0)
    worker.put(lambda: done.append(1))
    wait_until(lambda: done)
    assert isinstance(errors[0], ZeroDivisionError)
    assert "kws.1000 failed" in caplog.text


def test_idle_runs_once_when_nothing_has_come_for_a_while(make):
    idle, done = [], []
    worker = make(idle=lambda: idle.append(1), idle_seconds=0.05)
    worker.put(lambda: done.append(1))
    wait_until(lambda: idle)
    worker.put(lambda: done.append(1))
    wait_until(lambda: len(idle) == 2)
    assert len(done) == 2
    threading.Event().wait(0.15)
    assert len(idle) == 2


def test_stopping_drops_what_waits_and_runs_the_end(make):
    gate, begun, done = threading.Event(), threading.Event(), []
    worker = make(at_end=lambda: done.append("end"))
    worker.put(lambda: begun.set() or gate.wait())
    begun.wait(10)
    worker.put(lambda: done.append("late"))
    worker.stop()
    assert not worker.put(lambda: done.append("later"), 1)
    assert not worker.put(lambda: done.append("later"))
    gate.set()
    worker.join(10)
    assert done == ["end"]


def test_a_thread_that_hangs_is_left_behind(make, caplog):
    gate, begun = threading.Event(), threading.Event()
    worker = make()
    worker.put(lambda: begun.set() or gate.wait())
    begun.wait(10)
    worker.stop()
    worker.join(0.02)
    assert "has not ended" in caplog.text
    gate.set()
