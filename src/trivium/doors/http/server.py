"""`HttpServer`: listening sockets, and the life of the server from its start to its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.http.app import create_app
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor
from trivium.doors.http.routes import business_routes, management_routes
from trivium.engine.engine import Engine

__all__ = ["HttpServer"]


class HttpServer:
    """Serves one engine. `load` makes it, on a worker thread, while the server already answers that it is not ready.

    The engine is the caller's to shut down, after `run` has returned.
    """

    def __init__(self, config: ServerConfig, load: Callable[[], Engine]) -> None:
        self.config = config
        self.door = HttpDoor(config)
        self.port: int | None = None  # the one in use, once `run` listens
        self._load = load
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Listen, load, answer until `stop`. `on_ready` is called once requests are taken."""
        self._loop = asyncio.get_running_loop()
        listener = socket.create_server((self.config.host, self.config.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        app = create_app(self.door, business_routes() + management_routes())
        server = _Uvicorn(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False))
        serving = asyncio.create_task(server.serve([listener]))
        engine = await asyncio.to_thread(self._load)
        self.door.attach(Dispatcher(engine))
        on_ready()
        await self._stop.wait()
        self.door.draining = True
        if not await self.door.dispatcher.wait_idle(self.config.shutdown_timeout):
            self.door.dispatcher.abort_all()
        server.should_exit = True
        await serving

    def stop(self) -> None:
        """Refuse new work, let running work finish, end. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)


class _Uvicorn(uvicorn.Server):
    """Without uvicorn's signal handlers: ours decide what a signal means."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)
