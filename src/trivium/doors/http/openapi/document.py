"""The document itself, made of what describes each API."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium import __version__
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import door_of
from trivium.doors.http.openapi import chat, infer, messages, operations, responses, tokens
from trivium.doors.http.openapi.operation import ERROR_SCHEMAS

__all__ = ["PATH", "openapi_document", "routes"]

PATH = "/openapi.json"

_APIS = (infer, chat, responses, messages, tokens)
_OPERATIONS = {
    (one.path, one.method): one for one in (*(one for api in _APIS for one in api.OPERATIONS), *operations.OPERATIONS)
}
_SCHEMAS = ERROR_SCHEMAS | {name: schema for api in _APIS for name, schema in api.SCHEMAS.items()}
_FILES = "/page/"
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def routes() -> list[BaseRoute]:
    """`GET /openapi.json`."""
    return [Route(PATH, _document, methods=["GET"])]


async def _document(request: Request) -> Response:
    """Describes what the listener that is asked serves."""
    door = door_of(request)
    return JsonResponse(openapi_document(request.app.routes, door.config), headers={"cache-control": "no-cache"})


def openapi_document(served: Iterable[BaseRoute], config: ServerConfig) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these routes; those that nothing describes are left out."""
    paths: dict[str, Any] = {}
    files = []
    for route in served:
        if not isinstance(route, Route):
            continue
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        if path.startswith(_FILES):
            files.append(path.removeprefix(_FILES))
            path = f"{_FILES}{{file}}"
        for method in route.methods or ():
            operation = _OPERATIONS.get((path, method.lower()))
            if operation is not None:
                paths.setdefault(path, {})[operation.method] = operation.described()
    if files:
        file = next(one for one in paths[f"{_FILES}{{file}}"]["get"]["parameters"] if one["name"] == "file")
        file["schema"] = {"enum": files}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Trivium", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }
    if config.api_key:
        document["components"]["securitySchemes"] = _SECURITY
        document["security"] = [{name: []} for name in _SECURITY]
    return document
