"""Routes of the messages API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trivium.doors.dispatcher import Generation
from trivium.doors.http.anthropic.answer import MessageWriter, error_event
from trivium.doors.http.anthropic.request import read_body
from trivium.doors.http.asking import ask, read_chat
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.errors import ClientGoneError
from trivium.doors.http.openai.exchange import ChatApi
from trivium.doors.http.openai.pieces import PieceReader
from trivium.doors.http.streaming import EventStream
from trivium.errors import EngineError, PromptTooLongError

__all__ = ["COUNT_TOKENS", "MESSAGES", "routes"]

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

log = logging.getLogger("trivium.http")


def routes() -> list[BaseRoute]:
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`."""
    return [Route(MESSAGES, _create, methods=["POST"]), Route(COUNT_TOKENS, _count_tokens, methods=["POST"])]


async def _create(request: Request) -> Response:
    arrival_time = time.monotonic()
    door = door_of(request)
    given = await door.read_json(request)
    api = ChatApi.of(door)
    api.check_model(given.get("model"))
    body, asked, generation = await ask(request, partial(read_body, given), arrival_time)
    num_prompt_tokens = len(asked.requests[0].prompt_token_ids)
    reader = PieceReader(asked)
    writer = MessageWriter(f"msg_{asked.key}", api.model, num_prompt_tokens, shows_thought=body.shows_thought)
    if body.stream:
        return EventStream(generation, _events(generation, reader, writer))
    with generation:
        for piece in reader.read(await generation.all()):
            writer.add(piece)
    return JsonResponse(writer.message)


async def _events(generation: Generation, reader: PieceReader, writer: MessageWriter) -> AsyncIterator[bytes]:
    try:
        async for events in reader.stream(generation, writer.add):
            yield events
    except ClientGoneError:
        raise
    except Exception as error:
        if not isinstance(error, EngineError):
            log.exception("a stream failed")
        yield error_event(error)


async def _count_tokens(request: Request) -> Response:
    door = door_of(request)
    given = await door.read_json(request)
    ChatApi.of(door).check_model(given.get("model"))
    return JsonResponse({"input_tokens": await asyncio.to_thread(_num_tokens, door, given)})


def _num_tokens(door: HttpDoor, given: Mapping[str, Any]) -> int:
    """Tokens of a prompt, also of one that is too long to be answered. Raises `RequestError`."""
    body = read_body(given, counting=True)
    try:
        asked = read_chat(door, body, COUNT_TOKENS, time.monotonic())
    except PromptTooLongError as error:
        if isinstance(error.value, int):
            return error.value
        raise
    return len(asked.requests[0].prompt_token_ids)
