"""`HttpDoor`: what all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from trivium.doors.dispatcher import Dispatcher, Generation
from trivium.doors.http.bodies import read_json
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.errors import ClientGoneError, HttpError
from trivium.doors.http.metrics import Metrics
from trivium.doors.http.tracing import Tracing
from trivium.engine.engine import Engine
from trivium.engine.request import GenerationRequest

__all__ = ["HttpDoor", "door_of"]

Part = TypeVar("Part")


class HttpDoor:
    """The configuration, the engine once it is loaded, and how routes reach it. Everything runs on one event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.draining = False
        self.start_time = time.monotonic()
        self.metrics = Metrics()
        self.tracing: Tracing | None = None
        self.stop: Callable[[float | None], object] = lambda seconds: None  # the server's own; on its loop
        self._dispatcher: Dispatcher | None = None
        self._parts: dict[type, Any] = {}

    def attach(self, dispatcher: Dispatcher) -> None:
        """The model is loaded: from now on requests are taken."""
        self._dispatcher = dispatcher

    @property
    def loaded(self) -> bool:
        return self._dispatcher is not None

    @property
    def dispatcher(self) -> Dispatcher:
        """Raises `HttpError` 503 while the model is loading."""
        if self._dispatcher is None:
            raise HttpError(503, "the model is being loaded; GET /ready tells when it is there")
        return self._dispatcher

    @property
    def engine(self) -> Engine:
        """Raises `HttpError` 503 while the model is loading."""
        return self.dispatcher.engine

    def part(self, kind: type[Part], make: Callable[[HttpDoor], Part]) -> Part:
        """The one object of a kind that an API keeps for this door and its engine, made with first use."""
        if kind not in self._parts:
            self._parts[kind] = make(self)
        part: Part = self._parts[kind]
        return part

    def check_open(self) -> None:
        """Raise `HttpError` 503 while no new work is taken."""
        if self.draining:
            raise HttpError(503, "the server is shutting down and takes no new requests")
        _ = self.dispatcher

    async def read_json(self, request: Request, *, bad_status: int = 400) -> dict[str, Any]:
        """The body of a request that asks for work: `check_open`, then `bodies.read_json` and what both raise."""
        self.check_open()
        return await read_json(request, self.config.max_request_bytes, bad_status=bad_status)

    async def generate(self, request: Request, make: Callable[[], Sequence[GenerationRequest]]) -> Generation:
        """Make and submit engine requests; `make` runs on a worker thread. Close the generation in the end.

        Its `take` raises `ClientGoneError` when the client closes the connection, also before it is submitted: work for nobody
        is not begun. Raises what `Dispatcher.submit` does.
        """
        self.check_open()
        request.state.generation = None  # from here on the dispatcher counts what becomes of it
        generation = Generation(self.dispatcher)
        watch = asyncio.get_running_loop().create_task(_watch(request, generation))
        generation.on_close = watch.cancel
        try:
            await self.dispatcher.submit(make, generation)
        except BaseException:
            generation.close()
            raise
        request.state.generation = generation
        return generation


async def _watch(request: Request, generation: Generation) -> None:
    """Notice that the client goes away. The body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    generation.fail(ClientGoneError())
    generation.close()


def door_of(request: Request) -> HttpDoor:
    """The door that a request came through."""
    door: HttpDoor = request.app.state.door
    return door
