"""Routes of the responses API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium.doors.dispatcher import Generation
from trivium.doors.http.asking import ask
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import door_of
from trivium.doors.http.errors import ClientGoneError, OpenAIErrors
from trivium.doors.http.openai.exchange import ChatApi
from trivium.doors.http.openai.logprobs import chat_logprobs
from trivium.doors.http.openai.pieces import PieceReader
from trivium.doors.http.openai.request import OpenAIRequest
from trivium.doors.http.responses.answer import ResponseWriter
from trivium.doors.http.responses.request import ResponsesRequest, read_body
from trivium.doors.http.streaming import EventStream
from trivium.engine.outputs import OutputDelta
from trivium.errors import EngineError

__all__ = ["RESPONSES", "routes"]

RESPONSES = "/v1/responses"

log = logging.getLogger("trivium.http")


def routes() -> list[BaseRoute]:
    """`POST /v1/responses`."""
    return [Route(RESPONSES, _create, methods=["POST"])]


async def _create(request: Request) -> Response:
    arrival_time = time.monotonic()
    door = door_of(request)
    given = await door.read_json(request)
    api = ChatApi.of(door)
    api.check_model(given.get("model"))
    body, asked, generation = await ask(request, partial(read_body, given), arrival_time)
    reader, writer = PieceReader(asked), _writer(body, asked, api.model)
    if body.stream:
        return EventStream(generation, _events(generation, reader, writer))
    with generation:
        deltas = await generation.all()
        if body.logprobs:
            return await asyncio.to_thread(_whole, reader, writer, deltas)  # the rows of all alternatives take seconds
        return _whole(reader, writer, deltas)


def _whole(reader: PieceReader, writer: ResponseWriter, deltas: Sequence[OutputDelta]) -> JsonResponse:
    for piece in reader.read(deltas):
        writer.add(piece)
    return JsonResponse(writer.response)


def _writer(body: ResponsesRequest, asked: OpenAIRequest, model: str) -> ResponseWriter:
    request = asked.requests[0]
    fields = {
        **body.repeated,
        "model": model,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
    }
    logprobs = partial(chat_logprobs, tokenizer=asked.tokenizer) if body.logprobs else None
    return ResponseWriter(f"resp_{asked.key}", fields, len(request.prompt_token_ids), logprobs)


async def _events(generation: Generation, reader: PieceReader, writer: ResponseWriter) -> AsyncIterator[bytes]:
    try:
        yield writer.begin()
        async for events in reader.stream(generation, writer.add):
            yield events
    except ClientGoneError:
        raise
    except Exception as error:
        if not isinstance(error, EngineError):
            log.exception("a stream failed")
        yield writer.fail(OpenAIErrors().body(error)["error"]["message"])
