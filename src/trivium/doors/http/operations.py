"""Health, readiness, version, statistics, metrics, and the route that stops the server."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """What a management port gets; without one the business port."""
    return []
