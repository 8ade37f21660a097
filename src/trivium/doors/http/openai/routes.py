"""Routes of the OpenAI API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium.doors.dispatcher import Generation
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import door_of
from trivium.doors.http.errors import ClientGoneError
from trivium.doors.http.openai.chunks import DONE, chunk_writer, error_event
from trivium.doors.http.openai.exchange import ChatApi
from trivium.doors.http.openai.pieces import PieceReader
from trivium.doors.http.openai.request import CHAT, COMPLETIONS, OpenAIRequest
from trivium.doors.http.openai.response import response_body
from trivium.doors.http.streaming import EventStream
from trivium.engine.outputs import OutputDelta
from trivium.errors import EngineError

__all__ = ["routes"]

log = logging.getLogger("trivium.http")


def routes() -> list[BaseRoute]:
    """Chat completions, completions, models."""
    return [
        Route(CHAT, _chat, methods=["POST"]),
        Route(COMPLETIONS, _completion, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/v1/models/{id:path}", _model, methods=["GET"]),
    ]


async def _chat(request: Request) -> Response:
    return await _answer(request, CHAT)


async def _completion(request: Request) -> Response:
    return await _answer(request, COMPLETIONS)


async def _answer(request: Request, kind: str) -> Response:
    arrival_time = time.monotonic()
    door = door_of(request)
    body = await door.read_json(request)
    api = ChatApi.of(door)
    api.check_model(body.get("model"))
    asked, generation = await api.ask(request, kind, body, arrival_time)
    if asked.stream:
        return EventStream(generation, _events(asked, generation, api.model))
    with generation:
        deltas = await generation.all()
        if asked.prompt_logprobs or asked.requests[0].sampling.logprobs is not None:
            return await asyncio.to_thread(_whole, asked, deltas, api.model)  # the rows of all alternatives take seconds
        return _whole(asked, deltas, api.model)


def _whole(asked: OpenAIRequest, deltas: Sequence[OutputDelta], model: str) -> JsonResponse:
    return JsonResponse(response_body(asked, deltas, model))


async def _events(asked: OpenAIRequest, generation: Generation, model: str) -> AsyncIterator[bytes]:
    reader, writer = PieceReader(asked), chunk_writer(asked, model)
    try:
        async for events in reader.stream(generation, writer.add):
            yield events
    except ClientGoneError:
        raise
    except Exception as error:
        if not isinstance(error, EngineError):
            log.exception("a stream failed")
        yield error_event(error) + DONE
        return
    yield writer.last()


async def _models(request: Request) -> Response:
    return JsonResponse({"object": "list", "data": [ChatApi.of(door_of(request)).model_card()]})


async def _model(request: Request) -> Response:
    api = ChatApi.of(door_of(request))
    api.check_model(request.path_params["id"])
    return JsonResponse(api.model_card())
