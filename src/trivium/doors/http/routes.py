"""Which routes a listener has."""

from __future__ import annotations

from starlette.routing import BaseRoute

from trivium.doors.http import openapi, operations, stats, tokens
from trivium.doors.http.anthropic import routes as anthropic
from trivium.doors.http.infer import routes as infer
from trivium.doors.http.openai import routes as openai
from trivium.doors.http.page import routes as page
from trivium.doors.http.responses import routes as responses

__all__ = ["business_routes", "management_routes"]


def business_routes() -> list[BaseRoute]:
    """What clients ask for."""
    apis = (infer, openai, responses, anthropic, tokens, openapi, stats, page)
    return [route for api in apis for route in api.routes()]


def management_routes(*, own_port: bool) -> list[BaseRoute]:
    """What operators ask for, beside the rest or on a port of their own; only there the server can be told to end."""
    return operations.routes() + (operations.stop_routes() + openapi.routes() if own_port else [])
