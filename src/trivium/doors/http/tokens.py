"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`POST /tokenize` and `POST /detokenize`."""
    return []
