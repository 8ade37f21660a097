"""Routes of `/infer`."""

from __future__ import annotations

import time
import uuid

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import door_of
from trivium.doors.http.infer.request import InferReader, InferRequest
from trivium.doors.http.infer.response import EventWriter, text_reply, write_events
from trivium.doors.http.streaming import EventStream
from trivium.engine.request import GenerationRequest

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """`POST /infer` and `POST /infer_token`."""
    return [Route(path, _infer, methods=["POST"]) for path in ("/infer", "/infer_token")]


async def _infer(request: Request) -> Response:
    """Both routes take `inputs` or `input_id`."""
    arrival = time.monotonic()
    door = door_of(request)
    body = await door.read_json(request, bad_status=422)
    reader = door.part(InferReader, InferReader)
    request_id = str(uuid.uuid4())
    headers = {"RequestUUID": request_id}
    asked: list[InferRequest] = []

    def make() -> list[GenerationRequest]:
        asked.append(reader.read(body, request_id, arrival))
        return [asked[0].request]

    generation = await door.generate(request, make)
    if asked[0].stream:
        writer = EventWriter(asked[0], door.config.infer_full_text)
        return EventStream(generation, write_events(generation, writer), headers)
    with generation:
        return JsonResponse(text_reply(asked[0], await generation.all()), headers=headers)
