"""`GET /stats`: the engine's state as JSON, for the page's live strip."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import door_of

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`GET /stats`."""
    return [Route("/stats", _stats, methods=["GET"])]


async def _stats(request: Request) -> JsonResponse:
    """A snapshot; counters grow from the engine's start. 503 while the model is loading."""
    door = door_of(request)
    engine = door.engine
    stats = engine.stats()
    content = {
        "model": engine.model_info.name,
        "max_model_len": engine.model_info.max_model_len,
        "uptime": round(time.monotonic() - door.start_time, 3),  # seconds
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_used": stats.used_blocks,  # of kv_total blocks
        "kv_total": stats.total_blocks,
        "prompt_tokens": stats.prompt_tokens,  # computed, without prefix hits
        "generated_tokens": stats.generated_tokens,
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
    }
    return JsonResponse(content, headers={"cache-control": "no-store"})
