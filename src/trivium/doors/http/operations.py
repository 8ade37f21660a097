"""Health, readiness, version, metrics, and the routes that end the server."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium import __version__
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.errors import RETRY_SECONDS, HttpError

__all__ = ["routes", "stop_routes"]

_BAD = ("hanging", "dead")  # states in which the server must be started anew
_HANG_SECONDS = 60.0  # no step of a sane engine takes longer
_FORCED_SECONDS = 5.0  # that `?mode=Force` leaves to running answers


def routes() -> list[BaseRoute]:
    """What a management port gets; without one the business port."""
    return [
        Route("/health", _health),
        Route("/ready", _ready),
        Route("/v2/health/live", _vendor_live),
        Route("/v2/health/ready", _vendor_ready),
        Route("/version", _version),
        Route("/metrics", _metrics),
    ]


def stop_routes() -> list[BaseRoute]:
    """`GET /stopService`, as the vendor has it, and `POST /shutdown`: for a management port only."""
    return [Route("/stopService", _stop_service), Route("/shutdown", _shutdown, methods=["POST"])]


async def _health(request: Request) -> Response:
    """200 unless the engine has work and makes no steps: then the process should be started anew."""
    status = _health_of(door_of(request))
    return _told(JsonResponse({"status": status}), status not in _BAD)


async def _ready(request: Request) -> Response:
    """200 while requests are taken."""
    status = _readiness_of(door_of(request))
    return _told(JsonResponse({"status": status}), status == "ready")


async def _vendor_live(request: Request) -> Response:
    """`/health` for the vendor's probes: all is in the status."""
    return _told(Response(), _health_of(door_of(request)) not in _BAD)


async def _vendor_ready(request: Request) -> Response:
    """`/ready` for the vendor's probes."""
    return _told(Response(), _readiness_of(door_of(request)) == "ready")


async def _version(request: Request) -> Response:
    return JsonResponse({"version": __version__})


async def _metrics(request: Request) -> Response:
    """What Prometheus reads."""
    body, content_type = await asyncio.to_thread(door_of(request).metrics.render)
    return Response(body, headers={"content-type": content_type})


async def _stop_service(request: Request) -> Response:
    """Let running work finish and end; with `?mode=Force` after 5 seconds at the latest. A second call is an error."""
    # A GET that does something: no link or image of another site's page may do it.
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HttpError(403, "other sites may not stop this server")
    mode = request.query_params.get("mode")
    if mode not in (None, "Force"):
        raise HttpError(400, f"mode must be Force or not there, got {mode[:80]!r}", field="mode")
    return _stop(door_of(request), _FORCED_SECONDS if mode == "Force" else None)


async def _shutdown(request: Request) -> Response:
    """As `/stopService`."""
    return _stop(door_of(request), None)


def _stop(door: HttpDoor, seconds: float | None) -> Response:
    if door.draining:
        raise HttpError(500, "the server is being stopped already")
    door.stop(seconds)
    return JsonResponse({"status": "stopping"})


def _health_of(door: HttpDoor) -> str:
    if not door.loaded:
        return "loading"
    if not door.engine.is_alive:
        return "dead"
    stats = door.engine.stats()
    last_step: float = getattr(door.engine, "last_step_time", time.monotonic())
    waited = time.monotonic() - max(last_step, door.dispatcher.busy_since)
    return "hanging" if stats.running + stats.waiting and waited > _HANG_SECONDS else "ok"


def _readiness_of(door: HttpDoor) -> str:
    if door.draining:
        return "draining"
    if not door.loaded:
        return "loading"
    return "ready" if door.engine.is_alive else "dead"


def _told(response: Response, good: bool) -> Response:
    response.headers["cache-control"] = "no-store"
    if not good:
        response.status_code = 503
        response.headers["retry-after"] = str(RETRY_SECONDS)
    return response
