"""A batch of requests on its way through the engine: fed as the queue has room, and taken back whole if anything goes wrong."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from trivium.engine.engine import Engine
from trivium.engine.outputs import OutputDelta
from trivium.engine.request import GenerationRequest
from trivium.errors import QueueFullError

__all__ = ["Batch"]

_BUSY_WAIT = 0.02  # seconds between tries while other callers fill the queue
_MAX_UNREAD = 4096  # deltas kept before a caller that waits for whole answers is woken to take them
_INTERRUPT_WAIT = 0.1  # seconds; a signal that another thread took is noticed only when a wait ends
_LOST_WAIT = 1.0  # seconds to wait for requests that may or may not have reached the engine


class Batch:
    """Runs requests and hands out their deltas as they come. A context manager: on leaving it, whatever still runs is aborted
    and has ended, so the engine is as clean as before.

    Batches longer than the engine's queue wait here, not there: no `QueueFullError` reaches the caller. With `streaming` the
    caller is woken by every step, else only when a request ends: waking it costs the engine's thread the interpreter's lock.
    """

    def __init__(self, engine: Engine, requests: Sequence[GenerationRequest], *, streaming: bool = False) -> None:
        self._engine = engine
        self._streaming = streaming
        self._backlog = deque(requests)
        # The engine's thread alone takes requests out of `_running`: an interrupt of the caller cannot lose one.
        self._running: dict[str, int] = {}  # request id -> samples still to end
        self._submitting: list[str] = []
        self._inbox: list[OutputDelta] = []
        self._unread = False  # whether the inbox holds what the caller wants to be woken for
        self._changed = threading.Condition()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._backlog.clear()
        with self._changed:
            unfinished = list(self._running)
        if not unfinished:
            return
        self._engine.abort(unfinished)
        if self._engine.is_own_thread:  # where the garbage collector may drop a stream: nothing ends while that thread waits
            return
        with self._changed:
            certain = set(unfinished) - set(self._submitting)
            self._changed.wait_for(lambda: certain.isdisjoint(self._running))
            self._changed.wait_for(lambda: not self._running, timeout=_LOST_WAIT)

    def feed(self) -> None:
        """Submit as much of the backlog as the engine's queue has room for.

        Raises what `Engine.submit` raises; `QueueFullError` only if a request cannot even wait in an idle engine.
        """
        while self._backlog:
            room = self._engine.config.max_waiting - self._engine.stats().waiting
            chunk: list[GenerationRequest] = []
            while self._backlog and (room >= self._backlog[0].n or (room > 0 and not chunk)):
                room -= self._backlog[0].n
                chunk.append(self._backlog.popleft())
            if not chunk or not self._submit(chunk):
                return

    def next(self) -> list[OutputDelta]:
        """Wait for the next deltas and return all that have come; empty when every request has ended."""
        while True:
            with self._changed:
                while not self._unread and self._running:
                    self._changed.wait(_INTERRUPT_WAIT)
                deltas, self._inbox, self._unread = self._inbox, [], False
            self.feed()
            if deltas or not (self._running or self._backlog):
                return deltas
            if not self._running:
                with self._changed:
                    self._changed.wait(_BUSY_WAIT)

    def _submit(self, chunk: list[GenerationRequest]) -> bool:
        """Submit `chunk`, or its first half, or the half of that; False if the queue has no room for one request."""
        while chunk:
            self._submitting = [r.request_id for r in chunk]
            with self._changed:
                self._running.update((r.request_id, r.n) for r in chunk)
            try:
                self._engine.submit(chunk, self._receive)
            except QueueFullError:
                self._forget(chunk)
                if len(chunk) == 1 and self._engine_is_idle():
                    raise
                kept = len(chunk) // 2
                self._backlog.extendleft(reversed(chunk[kept:]))
                chunk = chunk[:kept]
            except Exception:
                self._forget(chunk)
                raise
            else:
                self._submitting = []
                return True
        return False

    def _forget(self, chunk: list[GenerationRequest]) -> None:
        with self._changed:
            for request in chunk:
                self._running.pop(request.request_id, None)
        self._submitting = []

    def _engine_is_idle(self) -> bool:
        stats = self._engine.stats()
        return not stats.running and not stats.waiting

    def _receive(self, outputs: Sequence[OutputDelta]) -> None:
        """The engine's sink, on its thread."""
        with self._changed:
            ended = False
            for delta in outputs:
                if not delta.finished:
                    continue
                ended = True
                left = self._running.get(delta.request_id, 0) - 1
                if left > 0:
                    self._running[delta.request_id] = left
                else:
                    self._running.pop(delta.request_id, None)
            self._inbox.extend(outputs)
            self._unread = self._streaming or ended or self._unread or len(self._inbox) > _MAX_UNREAD
            if self._unread:
                self._changed.notify_all()
