"""A real server on a free port, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.server import HttpServer
from trivium.engine.engine import Engine

__all__ = ["RunningServer", "ServerThread", "can_connect", "serving"]


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
    def management_port(self) -> int:
        assert self.server.management_port is not None
        return self.server.management_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class ServerThread:
    """`HttpServer.run` in a thread of its own, from now until it ends: by `stop`, or with `failure`."""

    def __init__(self, load: Callable[[], Engine], **options: Any) -> None:
        self.server = HttpServer(ServerConfig(**{"port": 0, "shutdown_timeout": 10.0, **options}), load)
        self.failure: BaseException | None = None
        self.ready = threading.Event()  # it takes requests, or has ended
        self._thread = threading.Thread(target=self._run, name="http-server")
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self.server.run(self.ready.set))
        except BaseException as error:
            self.failure = error
        finally:
            self.ready.set()

    def wait_listening(self) -> int:
        """The port, as soon as it is listened on."""
        end = time.monotonic() + 30
        while self.server.port is None:
            assert time.monotonic() < end
            time.sleep(0.001)
        return self.server.port

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(30)
        assert not self._thread.is_alive()


def can_connect(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there. A port that is being closed resets what has not been accepted yet."""
    try:
        socket.create_connection((host, port), 5).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    return True


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[RunningServer]:
    """Serve an engine with `ServerConfig` options; the engine stays the test's, and must be idle at the end."""
    thread = ServerThread(lambda: engine, **options)
    thread.ready.wait(30)
    try:
        if thread.failure is not None:
            raise thread.failure
        yield RunningServer(thread.server, engine)
    finally:
        thread.server.stop()
        thread.join()
    assert thread.failure is None, thread.failure
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
