"""The ASGI application: routes of all APIs, and what every request passes through."""

from __future__ import annotations

import logging
from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import HttpDoor
from trivium.doors.http.errors import ClientGoneError, ErrorForm, HttpError, form_of
from trivium.errors import EngineError

__all__ = ["create_app"]

log = logging.getLogger("trivium.http")


def create_app(door: HttpDoor, routes: list[BaseRoute]) -> Starlette:
    """An application for one listener of a door."""
    app = Starlette(
        routes=routes,
        middleware=[Middleware(ErrorMiddleware)],
        exception_handlers={HTTPException: _to_http_error},
    )
    app.state.door = door
    return app


class ErrorMiddleware:
    """Answers every error in the form of the API that was called. One that nobody foresaw is logged with its traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGoneError:
            return
        except Exception as error:
            if not isinstance(error, (HttpError, EngineError)) or started:
                log.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                await _error_response(form_of(scope["path"]), error)(scope, receive, send)


def _error_response(form: ErrorForm, error: Exception) -> JsonResponse:
    return JsonResponse(form.body(error), form.status(error), form.headers(error))


async def _to_http_error(request: Request, error: Exception) -> NoReturn:
    """Starlette's own errors: no such path, no such method there."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    words = {404: f"there is nothing at {path}", 405: f"{path} does not take {request.method}"}
    headers = getattr(error, "headers", None)
    raise HttpError(status, words.get(status, str(error)), headers=headers) from None
