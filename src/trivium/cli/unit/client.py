"""`UnitClient`: one connection to a server that speaks the unit protocol."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from trivium.doors.unit.framer import Fault, Framer
from trivium.errors import TriviumError

__all__ = ["UnitClient", "UnitReplyError", "connection_options", "error_of", "is_last", "seconds_from"]

Function = TypeVar("Function", bound=Callable[..., Any])

_SHORTEST_WAIT = 0.0005  # seconds; none at all would mean that reading may fail
_LONGEST_WAIT = 2e6  # a socket counts milliseconds in 31 bits
_MAX_FRAME = 64 * 2**20  # speech in one piece


class UnitReplyError(TriviumError):
    """The server has answered with an error, whose `code` it is."""

    def __init__(self, what: str, code: int, message: str) -> None:
        super().__init__(f"{what}: {message or 'refused'} ({code})")
        self.code = code


class _Seconds(click.FloatRange):
    """A range without NaN, which is neither below nor above any number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


def seconds_from(low: float) -> click.FloatRange:
    """The type of an option: seconds that may be waited for."""
    return _Seconds(low, _LONGEST_WAIT)


def connection_options(function: Function) -> Function:
    """Decorator: `--host`, `--port` and `--timeout`."""
    for option in (
        click.option("--timeout", type=seconds_from(0.1), default=60.0, show_default=True, help="Seconds to wait for a reply."),
        click.option("--port", type=click.IntRange(1, 65535), default=10001, show_default=True, help="Its port."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address of the server."),
    ):
        function = option(function)
    return function


class UnitClient:
    """Sends commands and reads frames. To be used in a `with` block."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        """Raises `TriviumError` if nobody answers."""
        self.timeout = timeout
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except (OSError, UnicodeError) as error:  # a name like "a..b" is no OSError
            raise TriviumError(f"nobody answers at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._framer = Framer(_MAX_FRAME)
        self._received: list[dict[str, Any]] = []
        self._count = 0

    def __enter__(self) -> UnitClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, action: str, work_id: str = "sys", **fields: Any) -> str:
        """Send a command; returns its request_id. `fields` are `object` and `data`."""
        self._count += 1
        request_id = str(self._count)
        self.send_message({"request_id": request_id, "work_id": work_id, "action": action, **fields})
        return request_id

    def send_message(self, message: dict[str, Any]) -> None:
        """Send any object."""
        self._socket.settimeout(self.timeout)
        self._socket.sendall(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next frame, whatever it belongs to; None if there is none for so many seconds.

        Raises `TriviumError` if the server hangs up.
        """
        end = time.monotonic() + timeout
        while not self._received:
            self._socket.settimeout(max(_SHORTEST_WAIT, end - time.monotonic()))
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                return None
            if not data:
                raise TriviumError("the server has hung up")
            self._received += [frame for frame in self._framer.feed(data) if not isinstance(frame, Fault)]
        return self._received.pop(0)

    def replies(self, request_id: str) -> Iterator[dict[str, Any]]:
        """The frames that answer a command, up to the last; others are dropped. Raises `TriviumError` if none comes in time."""
        frame: dict[str, Any] = {}
        while not frame or not is_last(frame):
            found = self.receive(self.timeout)
            if found is None:
                raise TriviumError(f"the server has not answered for {self.timeout:g} s")
            if found.get("request_id") == request_id:
                frame = found
                yield frame

    def ask(self, action: str, work_id: str = "sys", **fields: Any) -> dict[str, Any]:
        """Send a command that is answered with one frame. Raises `UnitReplyError` if that is an error."""
        frame = next(self.replies(self.send(action, work_id, **fields)))
        code, message = error_of(frame)
        if code:
            raise UnitReplyError(f"{work_id} {action}", code, message)
        return frame

    def set_up(self, unit: str, data: dict[str, Any]) -> str:
        """The work_id of a new task. Raises `UnitReplyError`."""
        return str(self.ask("setup", unit, object=f"{unit}.setup", data=data)["work_id"])

    def models(self, unit: str) -> list[str]:
        """Names of the models that a setup of the unit may name. Raises `UnitReplyError`."""
        listed = self.ask("lsmode")["data"]
        models = listed if isinstance(listed, list) else []
        return [str(model.get("mode")) for model in models if isinstance(model, dict) and model.get("type") == unit]

    def choose_model(self, unit: str, name: str | None) -> str:
        """The one asked for, or the first that there is. Raises `TriviumError` if there is none."""
        models = [name] if name is not None else self.models(unit)
        if not models:
            raise TriviumError(f"the server has no model for {unit}")
        return models[0]


def error_of(frame: dict[str, Any]) -> tuple[int, str]:
    """Code and message of a frame's error; 0 if there is none."""
    error = frame.get("error")
    if not isinstance(error, dict):
        return 0, ""
    code = error.get("code", 0)
    return (code if isinstance(code, int) else -1), str(error.get("message", ""))


def is_last(frame: dict[str, Any]) -> bool:
    """Whether nothing more of the same answer comes: it is no part of a stream, or its last."""
    data = frame.get("data")
    return not (isinstance(data, dict) and data.get("finish") is False) or error_of(frame)[0] != 0
