"""`Dispatcher`: the way of an asyncio program to the engine, shared by all doors of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.engine.engine import Engine
from trivium.engine.outputs import OutputDelta
from trivium.engine.request import GenerationRequest

__all__ = ["ClientGoneError", "DispatchObserver", "Dispatcher", "Generation"]

log = logging.getLogger("trivium")

MakeRequests = Callable[[], Sequence[GenerationRequest]]


class ClientGoneError(Exception):
    """The client has closed its connection, or reads too slowly: nobody is left to answer."""


class DispatchObserver:
    """What metrics and logs want to know of a dispatcher; methods run on the event loop and must be quick."""

    def submitted(self, requests: Sequence[GenerationRequest]) -> None:
        """The engine has taken these requests."""

    def refused(self, error: Exception) -> None:
        """Requests were not taken: they are wrong, the queue is full, or the engine has gone."""

    def delivered(self, outputs: Sequence[OutputDelta]) -> None:
        """All deltas of one step. The first may come before `submitted` is called."""


class Generation:
    """Requests that were submitted together, and their deltas. A context manager: leaving it aborts what still runs."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.requests: tuple[GenerationRequest, ...] = ()
        self.unfinished = 0  # samples
        self.num_output_tokens = 0  # so far, of all samples
        self.ended: list[OutputDelta] = []  # the last delta of each sample that has ended
        self.closed = False
        self.on_close: Callable[[], object] | None = None
        self._dispatcher = dispatcher
        self._pending: list[OutputDelta] = []
        self._listener: Callable[[OutputDelta], object] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._broken: Exception | None = None

    @property
    def num_pending(self) -> int:
        """Deltas that nobody has taken yet."""
        return len(self._pending)

    async def take(self) -> list[OutputDelta]:
        """All deltas since the last call, in order; waits for the first, and gives [] once every sample has ended.

        Raises what `fail` was given. One task at a time.
        """
        while not self._pending and self._broken is None and self.unfinished:
            self._waiter = self._dispatcher.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._broken is not None:
            raise self._broken
        taken, self._pending = self._pending, []
        return taken

    async def all(self) -> list[OutputDelta]:
        """Every delta, when all samples have ended."""
        deltas: list[OutputDelta] = []
        while taken := await self.take():
            deltas += taken
        return deltas

    def listen(self, listener: Callable[[OutputDelta], object]) -> None:
        """Instead of `take`: have each delta given to `listener`, at once and on the loop, until `close`. It must not raise."""
        self._listener = listener
        taken, self._pending = self._pending, []
        for delta in taken:
            listener(delta)

    def fail(self, error: Exception) -> None:
        """Have `take` raise: the client has gone, or reads too slowly."""
        self._broken = error
        self._wake()

    def close(self) -> None:
        """Abort what still runs, and take no more. Idempotent."""
        if not self.closed:
            self.closed = True
            self._pending = []
            if self.on_close is not None:
                self.on_close()
            if self.unfinished:
                self._dispatcher.abort(self)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def push(self, delta: OutputDelta) -> None:
        """For the dispatcher: a delta has come."""
        self.num_output_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.unfinished -= 1
            self.ended.append(delta)
        if self.closed:
            return
        if self._listener is not None:
            try:
                self._listener(delta)
            except Exception:  # the other deltas of the step are others'
                log.exception("a listener of request %s raised; it is aborted", delta.request_id)
                self.close()
            return
        self._pending.append(delta)
        if len(self._pending) > self._dispatcher.max_pending:
            self.fail(ClientGoneError())
            self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Dispatcher:
    """Submits the requests of one event loop and hands each its deltas; the loop is woken once per step.

    Everything but `_submit` and the sink runs on the loop. `observer` sees all that passes.
    """

    def __init__(self, engine: Engine, observer: DispatchObserver | None = None, *, max_pending: int = sys.maxsize) -> None:
        """Belongs to the running loop. A reader that lets more than `max_pending` deltas wait gets `ClientGoneError`."""
        self.engine = engine
        self.max_pending = max_pending
        self.busy_since = 0.0  # when the first of the open exchanges came, on the time.monotonic clock
        self.loop = asyncio.get_running_loop()
        self._observer = observer or DispatchObserver()
        self._routes: dict[str, _Route] = {}  # by request id, until its samples have ended
        self._num_open = 0  # generations that are being submitted, or have samples that have not ended
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_open(self) -> int:
        """Exchanges whose requests have not all ended."""
        return self._num_open

    async def submit(self, make: MakeRequests, generation: Generation | None = None) -> Generation:
        """Run `make` (render, tokenize, validate) and the submission on a worker thread.

        A caller that may want to close the generation before it is submitted gives one. Raises what `make` raises,
        RequestError, QueueFullError, EngineDeadError, and ClientGoneError if it was closed before the engine had its requests.
        If the caller is cancelled meanwhile, the requests are aborted.
        """
        generation = generation or Generation(self)
        self._opened()
        context = contextvars.copy_context()  # the request's id, for what is logged there
        job = self.loop.run_in_executor(None, context.run, self._submit, generation, make)
        try:
            if not await asyncio.shield(job):
                raise ClientGoneError
        except asyncio.CancelledError:
            generation.close()
            job.add_done_callback(lambda job: self._cancelled(generation, job))
            raise
        except BaseException as error:
            self._ended()
            if isinstance(error, Exception):
                self._observer.refused(error)
            raise
        self._observer.submitted(generation.requests)
        return generation

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until every request has ended; False if some have not after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    def abort_all(self) -> None:
        """Have every request end with the finish reason "abort"."""
        self.engine.abort(list(self._routes))

    def abort(self, generation: Generation) -> None:
        """Have what is left of a generation end with the finish reason "abort"."""
        # While its submission is still under way there is nothing to abort here: the worker thread looks afterwards.
        ids = [request.request_id for request in generation.requests if request.request_id in self._routes]
        if ids:
            self.engine.abort(ids)

    def _submit(self, generation: Generation, make: MakeRequests) -> bool:
        """On a worker thread: whether the engine has the requests."""
        if generation.closed:  # while it waited for the thread
            return False
        requests = tuple(make())
        if generation.closed:
            return False
        # Known before the engine can answer. Single operations on a dict need no lock.
        generation.unfinished = sum(request.n for request in requests)
        for request in requests:
            self._routes[request.request_id] = _Route(generation, request.n)
        try:
            self.engine.submit(requests, self._receive)
        except BaseException:
            for request in requests:
                del self._routes[request.request_id]
            raise
        generation.requests = requests
        if generation.closed:
            self.engine.abort([request.request_id for request in requests])
        return True

    def _cancelled(self, generation: Generation, job: asyncio.Future[bool]) -> None:
        """A submission whose caller has gone is over; if it went through, its last delta will close it."""
        if job.cancelled() or job.exception() is not None or not job.result():
            self._ended()
        else:
            self._observer.submitted(generation.requests)

    def _receive(self, outputs: Sequence[OutputDelta]) -> None:
        """The engine's sink, on its thread."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to read
            self.loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: Sequence[OutputDelta]) -> None:
        self._observer.delivered(outputs)
        for delta in outputs:
            route = self._routes[delta.request_id]
            if delta.finish_reason is not None:
                route.unfinished -= 1
                if not route.unfinished:
                    del self._routes[delta.request_id]
            generation = route.generation
            generation.push(delta)
            if delta.finish_reason is not None and not generation.unfinished:
                self._ended()

    def _opened(self) -> None:
        if not self._num_open:
            self.busy_since = time.monotonic()
        self._num_open += 1
        self._idle.clear()

    def _ended(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self._idle.set()


@dataclass(slots=True)
class _Route:
    """Where a request's deltas go, and how many of its samples have not ended."""

    generation: Generation
    unfinished: int
