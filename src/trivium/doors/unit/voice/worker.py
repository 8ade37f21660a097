"""`Worker`: a thread that does one task's work, in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Worker"]

log = logging.getLogger("trivium.unit")

Job = Callable[[], None]

_LEAST = 320  # bytes that a job with sound counts as: many tiny ones take memory, too


class Worker:
    """Runs jobs one after the other on its own thread. What waits is bounded by the bytes of sound that the jobs stand for.

    `idle`, if any, runs once when no job has come for `idle_seconds`, `at_end` when the thread ends. What a job raises is
    logged and given to `failed`, on the thread; the next job runs all the same.
    """

    def __init__(
        self,
        name: str,
        *,
        max_bytes: int,
        failed: Callable[[Exception], None],
        idle: Job | None = None,
        idle_seconds: float = 2.0,
        at_end: Job | None = None,
    ) -> None:
        self.name = name
        self._max_bytes = max_bytes
        self._failed = failed
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._at_end = at_end
        self._jobs: deque[tuple[Job, int]] = deque()
        self._num_bytes = 0
        self._quiet = True  # `idle` has run since the last job
        self._stopped = False
        self._changed = threading.Condition()
        # A daemon: a model that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"trivium-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Job, num_bytes: int = 0) -> bool:
        """Have a job run; False if too many bytes would wait. Jobs without bytes are always taken."""
        num_bytes = num_bytes and max(num_bytes, _LEAST)
        with self._changed:
            if self._stopped or (num_bytes and self._num_bytes + num_bytes > self._max_bytes):
                return False
            self._jobs.append((job, num_bytes))
            self._num_bytes += num_bytes
            self._changed.notify()
        return True

    def stop(self) -> None:
        """End the thread after the job that is running; what waits is dropped."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("%s has not ended within %g s", self.name, timeout)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)
        if self._at_end is not None:
            self._do(self._at_end)

    def _do(self, job: Job) -> None:
        try:
            job()
        except Exception as error:
            log.exception("%s failed", self.name)
            self._failed(error)

    def _next(self) -> Job | None:
        """The next job, or `idle` when it is time; None at the end."""
        with self._changed:
            idle_at = time.monotonic() + self._idle_seconds
            while not self._stopped:
                if self._jobs:
                    job, num_bytes = self._jobs.popleft()
                    self._num_bytes -= num_bytes
                    self._quiet = False
                    return job
                if self._idle is None or self._quiet:
                    self._changed.wait()
                elif (seconds := idle_at - time.monotonic()) > 0:
                    self._changed.wait(seconds)
                else:
                    self._quiet = True
                    return self._idle
            return None
