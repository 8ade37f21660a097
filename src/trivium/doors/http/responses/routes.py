"""Routes of the responses API."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`POST /v1/responses`."""
    return []
