"""What other threads want of the engine thread, and what they may know of it. Everything here is guarded by one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from trivium.engine.engine import EngineStats
from trivium.engine.sample import ActiveRequest, Sample
from trivium.engine.scheduler import Scheduler
from trivium.errors import EngineDeadError, QueueFullError, RequestError

__all__ = ["Inbox", "Message"]

Message = tuple[Callable[[Any], None], Any]  # a handler of the engine thread, and its argument


class Inbox:
    """Messages to the engine thread in order of arrival, the requests that are not finished, and the statistics.

    The engine thread sleeps in `take` while there is nothing to do; `wakeups` counts how often it went on.
    """

    def __init__(self, max_waiting: int, total_blocks: int) -> None:
        # Re-entrant, because the garbage collector may drop an engine, and so close its inbox, inside one of the methods below.
        self._changed = threading.Condition(threading.RLock())
        self._max_waiting = max_waiting
        self._messages: list[Message] = []
        self._active: dict[str, ActiveRequest] = {}
        self._num_posted = 0  # samples in messages
        self._num_waiting = 0  # samples in the scheduler's queue
        self._orders = 0
        self._closed: str | None = None
        self._stats = EngineStats(total_blocks=total_blocks)
        self.wakeups = 0

    def submit(self, requests: Sequence[ActiveRequest], handler: Callable[[list[Sample]], None]) -> None:
        """Post all requests or none. Raises EngineDeadError, RequestError for an id in use, QueueFullError."""
        samples = [sample for active in requests for sample in active.samples]
        with self._changed:
            if self._closed is not None:
                raise EngineDeadError(self._closed)
            self._admit(requests, len(samples))
            for active in requests:
                self._active[active.request.request_id] = active
            for sample in samples:
                self._orders += 1
                sample.order = self._orders
            self._num_posted += len(samples)
            self._post((handler, samples))

    def post(self, handler: Callable[[Any], None], argument: object) -> None:
        """Have the engine thread call `handler(argument)` before its next step. Ignored once closed."""
        with self._changed:
            if self._closed is None:
                self._post((handler, argument))

    def take(self) -> list[Message] | None:
        """All messages, as soon as there are messages or unfinished requests; None once closed."""
        with self._changed:
            while not self._messages and not self._active and self._closed is None:
                self._changed.wait()
            self.wakeups += 1
            if self._closed is not None:
                return None
            return self._drain()

    def close(self, reason: str) -> None:
        """Refuse everything from now on, and wake the engine thread to end. Only the first reason counts."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()

    def drain(self) -> list[Message]:
        """Messages that were left when it closed."""
        with self._changed:
            return self._drain()

    def forked(self, reason: str) -> None:
        """Start over, closed, in a forked child, where the lock may be held by a thread that does not exist."""
        self._changed = threading.Condition(threading.RLock())
        self._messages, self._active, self._closed = [], {}, reason

    def find(self, request_ids: Iterable[str]) -> list[ActiveRequest]:
        """The unfinished requests of these ids; unknown ids are ignored."""
        with self._changed:
            return [self._active[request_id] for request_id in request_ids if request_id in self._active]

    def unfinished(self) -> list[ActiveRequest]:
        """All unfinished requests."""
        with self._changed:
            return list(self._active.values())

    @property
    def is_open(self) -> bool:
        return self._closed is None

    @property
    def idle(self) -> bool:
        return not self._active

    def finished(self, active: ActiveRequest, reason: str, *, last: bool) -> None:
        """Count the end of a sample; `last` of its request frees the request's id."""
        with self._changed:
            self._stats.finished[reason] = self._stats.finished.get(reason, 0) + 1
            if last:
                del self._active[active.request.request_id]

    def record(self, scheduler: Scheduler, *, steps: int, prompt_tokens: int, generated_tokens: int) -> None:
        """Publish the scheduler's state, and add to the counters."""
        with self._changed:
            stats = self._stats
            stats.running, self._num_waiting = scheduler.num_running, scheduler.num_waiting
            stats.used_blocks = scheduler.blocks.num_used
            stats.preemptions = scheduler.num_preemptions
            stats.prefix_queries, stats.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits
            stats.drafted, stats.accepted = scheduler.num_drafted, scheduler.num_accepted
            stats.steps += steps
            if tokens := prompt_tokens + generated_tokens:
                log2 = (tokens - 1).bit_length()
                stats.step_sizes[log2] = stats.step_sizes.get(log2, 0) + steps
            stats.prompt_tokens += prompt_tokens
            stats.generated_tokens += generated_tokens

    def refused(self, count: int) -> None:
        """Count requests that `submit` refused."""
        with self._changed:
            self._stats.rejected += count

    def stats(self) -> EngineStats:
        """A consistent copy."""
        with self._changed:
            stats, waiting = self._stats, self._num_posted + self._num_waiting
            return replace(stats, waiting=waiting, finished=dict(stats.finished), step_sizes=dict(stats.step_sizes))

    def _admit(self, requests: Iterable[ActiveRequest], num_samples: int) -> None:
        seen = set(self._active)
        for active in requests:
            request_id = active.request.request_id
            if request_id in seen:
                raise RequestError.out_of_range("request_id", "unique among unfinished requests", request_id)
            seen.add(request_id)
        waiting = self._num_posted + self._num_waiting
        if waiting + num_samples > self._max_waiting:
            raise QueueFullError(f"{num_samples} more cannot wait: {waiting} of at most {self._max_waiting} are waiting")

    def _post(self, message: Message) -> None:
        self._messages.append(message)
        self._changed.notify_all()

    def _drain(self) -> list[Message]:
        messages, self._messages = self._messages, []
        self._num_waiting += self._num_posted
        self._num_posted = 0
        return messages
