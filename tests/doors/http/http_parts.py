"""A real server on a free port, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.server import HttpServer
from trivium.engine.engine import Engine

__all__ = ["RunningServer", "serving"]


class RunningServer:
    """A server that answers; `url` has no slash at its end."""

    def __init__(self, server: HttpServer, engine: Engine) -> None:
        self.server = server
        self.engine = engine

    @property
    def port(self) -> int:
        assert self.server.port is not None
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[RunningServer]:
    """Serve an engine with `ServerConfig` options; the engine stays the test's, and must be idle at the end."""
    ready = threading.Event()
    failure: list[BaseException] = []
    server = HttpServer(ServerConfig(**{"port": 0, "shutdown_timeout": 10.0, **options}), lambda: engine)

    def run() -> None:
        try:
            asyncio.run(server.run(ready.set))
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="http-server")
    thread.start()
    ready.wait(30)
    try:
        if failure:
            raise failure[0]
        yield RunningServer(server, engine)
    finally:
        server.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert not failure, failure
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
