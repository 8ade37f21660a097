"""Routes of `/infer`."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`POST /infer` and `POST /infer_token`."""
    return []
