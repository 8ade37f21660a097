"""Logs: one line per exchange, under an id that the client may choose, and the form of all lines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Awaitable
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.doors.dispatcher import Generation
from trivium.doors.http.metrics import CLIENT_GONE, GENERATION_ROUTES, Metrics

__all__ = ["RequestLogMiddleware", "configure_logging"]

log = logging.getLogger("trivium.http.requests")

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PROBES = frozenset({"/health", "/metrics", "/ready", "/stats", "/v2/health/live", "/v2/health/ready"})
_IN_MESSAGE = ("method", "path", "status")
_MAX_PATH = 256  # characters of a path in the log
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestLogMiddleware:
    """The outermost layer: gives each exchange its id, and tells log and metrics of its end.

    The id is the client's `X-Request-Id`, if that is sane; it stands in `scope["state"]["request_id"]`, in the answer's
    headers, and in all that is logged meanwhile.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        token = _request_id.set(request_id)
        start = time.perf_counter()
        status, complete = CLIENT_GONE, False

        # Not a coroutine of its own: a stream comes through here with every token.
        def watched(message: Message) -> Awaitable[None]:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                names = (b"x-request-id", b"request-id") if scope["path"].startswith("/v1/messages") else (b"x-request-id",)
                headers = [*message.get("headers", ()), *((name, request_id.encode()) for name in names)]
                message = {**message, "headers": headers}
            elif not message.get("more_body", False):
                complete = True
            return send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            status, complete = 500, True
            raise
        finally:
            self._finished(scope, status if complete else CLIENT_GONE, time.perf_counter() - start)
            _request_id.reset(token)

    def _finished(self, scope: Scope, status: int, seconds: float) -> None:
        # What refuses a request before it is routed, refuses it on the way to its path.
        unrouted = scope["path"] if scope["path"] in GENERATION_ROUTES else "other"
        route = str(getattr(scope.get("route"), "path", unrouted))
        if self._metrics is not None:
            self._metrics.http_finished(route, scope["method"], status, seconds)
            if status >= 400 and route in GENERATION_ROUTES and "generation" not in scope["state"]:
                self._metrics.http_rejected(status)
        level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
        if log.isEnabledFor(level):
            fields = _fields(scope, status, seconds)
            log.log(level, "%s %s %s", *(fields[name] for name in _IN_MESSAGE), extra={"fields": fields})


def _id_of(scope: Scope) -> str:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _SANE_ID.fullmatch(given[0]):
        return str(given[0], "ascii")
    return uuid.uuid4().hex


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    """What a line says of an exchange. Nothing of its contents."""
    path, client = scope["path"], scope.get("client")
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": path if len(path) <= _MAX_PATH else path[:_MAX_PATH] + "…",
        "status": status,
        "duration_ms": round(1000 * seconds, 3),
    }
    if client:
        host = f"[{client[0]}]" if ":" in client[0] else client[0]
        fields["client"] = f"{host}:{client[1]}"
    generation = scope["state"].get("generation")
    return fields | _of_generation(generation) if generation is not None else fields


def _of_generation(generation: Generation) -> dict[str, Any]:
    """Tokens, ends and times; those of prefill are known when a first sample has ended."""
    reasons = {delta.finish_reason for delta in generation.ended} | ({"abort"} if generation.unfinished else set())
    fields: dict[str, Any] = {
        "id": generation.requests[0].request_id,  # as the engine's lines have it, and the answer
        "prompt_tokens": sum(len(request.prompt_token_ids) for request in generation.requests),
        "output_tokens": generation.num_output_tokens,
        "finish": ",".join(sorted(filter(None, reasons))),
    }
    if generation.ended:
        first = {delta.request_id: delta for delta in reversed(generation.ended)}.values()
        fields["cached_tokens"] = sum(delta.num_cached_tokens for delta in first)
        times = [delta.times for delta in generation.ended]
        for name, moment in (("queue_ms", "scheduled"), ("ttft_ms", "first_token")):
            waits = [getattr(one, moment) - one.arrival for one in times if getattr(one, moment)]
            if waits:
                fields[name] = round(1000 * min(waits), 3)
    return fields


def configure_logging(log_format: Literal["text", "json"], level: int = logging.INFO) -> None:
    """Have all loggers write to stderr: lines for people, or one JSON object per line. A second call replaces the first."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # takes one from Python 3.11 on
    """Ours, to be known again."""


class _TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123+00:00 INFO trivium.http message field=value`; further lines are indented, and none is forged."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")
        fields = {name: value for name, value in getattr(record, "fields", {}).items() if name not in _IN_MESSAGE}
        request_id = _request_id.get()
        if request_id is not None:
            fields["request_id"] = request_id
        words = [moment, record.levelname, record.name, record.getMessage(), *(f"{k}={v}" for k, v in fields.items())]
        line = _printable(" ".join(words))
        further = _traceback(self, record).splitlines()
        return "\n    ".join([line, *map(_printable, further)])


class _JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, request_id, fields of the exchange, exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = _request_id.get()
        if request_id is not None:
            entry["request_id"] = request_id
        entry |= getattr(record, "fields", {})
        if further := _traceback(self, record):
            entry["exception"] = further
        return json.dumps(entry, default=str)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return "\n".join(parts)


def _printable(text: str) -> str:
    """Without characters that could begin a new line or steer a terminal."""
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
