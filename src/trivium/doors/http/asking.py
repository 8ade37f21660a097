"""Asking the engine with bodies that are told as chat completions."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.openai.exchange import ChatApi
from trivium.doors.http.openai.request import CHAT, OpenAIRequest
from trivium.doors.http.translation import Translation
from trivium.errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

    from trivium.doors.dispatcher import Generation
    from trivium.engine.request import GenerationRequest

__all__ = ["ask", "read_chat"]

log = logging.getLogger("trivium.http")

_MAX_NAMES = 1000  # of unknown fields that are remembered: they are the clients'
_SHOWN_CHARS = 80  # of such a name

Body = TypeVar("Body", bound=Translation)


async def ask(request: Request, read: Callable[[], Body], arrival_time: float) -> tuple[Body, OpenAIRequest, Generation]:
    """Read a body and submit it; `read` runs on a worker thread. Close the generation in the end.

    `arrival_time` is when the HTTP request came in, by time.monotonic. Raises what `read`, `read_chat` and `HttpDoor.generate`
    raise.
    """
    door = door_of(request)
    done: list[tuple[Body, OpenAIRequest]] = []

    def make() -> Sequence[GenerationRequest]:
        body = read()
        asked = read_chat(door, body, request.url.path, arrival_time)
        done.append((body, asked))
        return asked.requests

    generation = await door.generate(request, make)
    body, asked = done[0]
    return body, asked, generation


def read_chat(door: HttpDoor, body: Translation, path: str, arrival_time: float) -> OpenAIRequest:
    """The chat completion that a body has become. Raises what `BodyReader.read` does, under the body's own names."""
    door.part(_UnknownFields, _UnknownFields).note(path, body.unknown)
    try:
        asked = ChatApi.of(door).reader.read(CHAT, body.chat, uuid.uuid4().hex, arrival_time)
    except RequestError as error:
        raise body.renamed(error) from error
    if body.max_thought is not None and asked.reasoning is not None:
        for one in asked.requests:
            one.sampling = replace(one.sampling, reasoning_max_tokens=body.max_thought)
    return asked


class _UnknownFields:
    """Fields that mean nothing are ignored, and logged the first time."""

    def __init__(self, door: HttpDoor) -> None:
        self._logged: set[tuple[str, str]] = set()

    def note(self, path: str, names: Sequence[str]) -> None:
        for name in names:
            shown = name[:_SHOWN_CHARS]
            if (path, shown) not in self._logged and len(self._logged) < _MAX_NAMES:
                self._logged.add((path, shown))
                log.warning("unknown field %r of %s: ignored", shown, path)
