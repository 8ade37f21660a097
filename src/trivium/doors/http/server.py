"""`HttpServer`: the life of the http door from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Protocol

from starlette.routing import BaseRoute

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.http.app import create_app
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor
from trivium.doors.http.limits import MAX_PENDING_DELTAS
from trivium.doors.http.listener import Listener
from trivium.doors.http.routes import business_routes, management_routes
from trivium.doors.http.tls import tls_context
from trivium.doors.http.tracing import Tracing
from trivium.doors.sockets import bind
from trivium.engine.engine import Engine
from trivium.errors import ConfigError

__all__ = ["Companion", "HttpServer", "StoppedError"]

log = logging.getLogger("trivium.http")

_SWITCH_SECONDS = 0.0002  # at Python's 5 ms, a busy event loop holds up every step of the engine
_ABORT_SECONDS = 10.0  # a step of the engine, with room
_FLUSH_SECONDS = 2.0  # for clients to read the end of their answers


class StoppedError(Exception):
    """Loading was given up, because the server has been told to end."""


class Companion(Protocol):
    """A door to the same engine on the same loop."""

    async def start(self) -> None:
        """Take clients. Raises `ConfigError`."""

    async def stop(self, timeout: float) -> None:
        """Refuse new work, let running work finish for so many seconds, end."""


class HttpServer:
    """Serves one engine. `load` makes it, on a worker thread, while the server already answers that it is not ready.

    The engine is the caller's to shut down, after `run` has returned.
    """

    def __init__(
        self, config: ServerConfig, load: Callable[[], Engine], beside: Callable[[Dispatcher], Companion] | None = None
    ) -> None:
        """`beside` makes a further door to the same engine. Raises `ConfigError` for TLS files that are not right."""
        self.config = config
        self.door = HttpDoor(config)
        self.door.stop = self._begin_stop
        self.port: int | None = None  # the one in use, once `run` listens
        self.management_port: int | None = None
        self.urls: list[str] = []  # of the addresses that `run` listens on
        self._load = load
        self._beside = beside
        self._tls = tls_context(config)
        self._listeners: list[Listener] = []
        self._stopped = asyncio.Event()
        self._seconds = config.shutdown_timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Listen, load, answer until `stop`. `on_ready` is called once requests are taken.

        Raises `ConfigError` if it cannot listen, and what `load` raises.
        """
        self._loop = asyncio.get_running_loop()
        interval = sys.getswitchinterval()
        seconds = 0.0
        self._bind()
        try:
            sys.setswitchinterval(_SWITCH_SECONDS)
            self.door.tracing = Tracing.from_environment()
            for listener in self._listeners:
                await listener.open()
            if await self._attach():
                companion = None if self._beside is None else self._beside(self.door.dispatcher)
                if companion is not None:
                    await companion.start()
                on_ready()
                await self._stopped.wait()
                ending = None if companion is None else asyncio.ensure_future(companion.stop(self._seconds))
                seconds = await self._drain()
                if ending is not None:
                    await ending
        finally:
            await asyncio.gather(*(listener.close(seconds) for listener in self._listeners))
            if self.door.tracing is not None:
                await asyncio.to_thread(self.door.tracing.close)
            sys.setswitchinterval(interval)

    def stop(self, seconds: float | None = None) -> None:
        """Refuse new work, let running work finish for so long (default: `shutdown_timeout`), end.

        May be called from any thread; only the first call counts.
        """
        if self._loop is None:
            self._begin_stop(seconds)
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed: it has ended
            self._loop.call_soon_threadsafe(self._begin_stop, seconds)

    def check_running(self) -> None:
        """For `load` to call now and then: raises `StoppedError` once the server has been told to end."""
        if self.door.draining:
            raise StoppedError

    def _begin_stop(self, seconds: float | None) -> None:
        if not self.door.draining:
            self.door.draining = True
            self._seconds = self.config.shutdown_timeout if seconds is None else seconds
            self._stopped.set()

    def _bind(self) -> None:
        """Take the sockets before anything that takes long, so that a port in use is known at once."""
        config = self.config
        own_port = config.management_port is not None
        routes = business_routes() + ([] if own_port else management_routes(own_port=False))
        try:
            listener = self._add_listener("http", config.host, config.port, "port", routes)
            self.port, self.urls = listener.port, listener.urls
            if config.management_port is not None:
                routes = management_routes(own_port=True)
                host = config.management_host or config.host
                listener = self._add_listener("management", host, config.management_port, "management_port", routes)
                self.management_port = listener.port
        except ConfigError:
            for listener in self._listeners:
                listener.abandon()
            raise
        if not (config.api_key or config.tls_ca or all(listener.is_local for listener in self._listeners)):
            log.warning("whoever reaches %s may use this server: api_key and tls_ca are unset", " or ".join(self.urls))

    def _add_listener(self, name: str, host: str, port: int, option: str, routes: list[BaseRoute]) -> Listener:
        sockets = bind(host, port, option)
        app = create_app(self.door, routes)
        listener = Listener(app, sockets, tls=self._tls, max_connections=self.config.max_connections)
        self._listeners.append(listener)
        for url in listener.urls:
            log.info("%s: %s", name, url)
        return listener

    async def _attach(self) -> bool:
        """Load the engine, and take requests from now on; False if the server was told to end before that."""
        try:
            engine = await asyncio.to_thread(self._load)
        except StoppedError:
            return False
        if self.door.draining:
            return False
        self.door.metrics.attach(engine)
        self.door.attach(Dispatcher(engine, self.door.metrics, max_pending=MAX_PENDING_DELTAS))
        return True

    async def _drain(self) -> float:
        """Let running work finish, or abort it when its time is over; how long clients may take to read what is left."""
        loop, dispatcher = asyncio.get_running_loop(), self.door.dispatcher
        end = loop.time() + self._seconds
        if dispatcher.num_open:
            log.info("ending; %d running requests have %g seconds to finish", dispatcher.num_open, self._seconds)
        if dispatcher.num_open and not await dispatcher.wait_idle(self._seconds):
            log.info("%d requests are aborted", dispatcher.num_open)
            last = loop.time() + _ABORT_SECONDS
            while loop.time() < last and dispatcher.num_open:
                dispatcher.abort_all()  # again and again: some may only now come to the engine
                await dispatcher.wait_idle(0.1)
        return max(end - loop.time(), _FLUSH_SECONDS)
