"""Routes of the OpenAI API."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """Chat completions, completions, models."""
    return []
