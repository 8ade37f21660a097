"""Routes of the messages API."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`."""
    return []
