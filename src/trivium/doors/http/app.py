"""The ASGI application: routes of all APIs, and what every request passes through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.doors.http.access import AccessMiddleware, allowed_origins
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor
from trivium.doors.http.errors import ClientGoneError, ErrorForm, HttpError, form_of
from trivium.doors.http.protocol import ABORT
from trivium.doors.http.request_log import RequestLogMiddleware
from trivium.doors.http.tracing import TracingMiddleware
from trivium.errors import EngineError

__all__ = ["create_app"]

log = logging.getLogger("trivium.http")

_SHOWN_CHARS = 200


def create_app(door: HttpDoor, routes: list[BaseRoute]) -> Starlette:
    """An application for one listener of a door."""
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestLogMiddleware, metrics=door.metrics),
            Middleware(TracingMiddleware, door=door),
            *_cors(door.config),  # outside of errors, so that pages can read these, too
            Middleware(ErrorMiddleware),
            Middleware(AccessMiddleware, config=door.config),
        ],
        exception_handlers={HTTPException: _to_http_error},
    )
    app.router.redirect_slashes = False
    app.state.door = door
    return app


def _cors(config: ServerConfig) -> list[Middleware]:
    """What tells browsers that pages of other origins may call; nothing unless some are listed."""
    origins = allowed_origins(config)
    if not origins:
        return []
    exposed = ["X-Request-Id", "RequestUUID", "Retry-After"]
    cors = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"], expose_headers=exposed
    )
    return [cors]


class ErrorMiddleware:
    """Answers every error in the form of the API that was called. One that nobody foresaw is logged with its traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        # Not a coroutine of its own: a stream comes through here with every token.
        def watched(message: Message) -> Awaitable[None]:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            return send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGoneError:
            await _drop_connection(scope)
        except Exception as error:
            if not isinstance(error, (HttpError, EngineError)) or started:
                log.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                await _error_response(form_of(scope["path"]), error)(scope, receive, send)


async def _drop_connection(scope: Scope) -> None:
    """End the connection of a client that has gone, or reads too slowly: uvicorn expects no more of its answer then."""
    abort: Callable[[], object] = scope.get("extensions", {}).get(ABORT, lambda: None)  # another server may have none
    abort()
    await asyncio.sleep(0)  # the protocol hears of it with the loop's next turn


def _error_response(form: ErrorForm, error: Exception) -> JsonResponse:
    return JsonResponse(form.body(error), form.status(error), form.headers(error))


async def _to_http_error(request: Request, error: Exception) -> NoReturn:
    """Starlette's own errors: no such path, no such method there."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path[:_SHOWN_CHARS]
    words = {404: f"there is nothing at {path}", 405: f"{path} does not take {request.method}"}
    headers = getattr(error, "headers", None)
    raise HttpError(status, words.get(status, str(error)), headers=headers) from None
