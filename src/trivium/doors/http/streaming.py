"""Answers that are sent while they are made: server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trivium.doors.dispatcher import Generation
from trivium.doors.http.errors import ClientGoneError
from trivium.doors.http.protocol import WRITE, Write

__all__ = ["EventStream"]

log = logging.getLogger("trivium.http")


class EventStream(Response):
    """Sends `events`, whole frames ending in a blank line, and owns `generation`: whatever happens, it is closed at the end.

    `events` tells failures of the engine itself, as its API does. Raises `ClientGoneError` for a client
    that goes away.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, events: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._generation = generation
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        def through_all(event: bytes) -> Awaitable[None]:
            return send({"type": "http.response.body", "body": event, "more_body": True})

        write: Write = scope.get("extensions", {}).get(WRITE, through_all)  # another server may have none
        with self._generation:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for event in self._events:
                    waiting = write(event)
                    if waiting is not None:
                        await waiting
            except ClientGoneError:
                raise
            except Exception:
                # The status has been sent: all that is left is to say it in the log, and to end without a last event.
                log.exception("a stream of %s failed", scope["path"])
            await send({"type": "http.response.body", "body": b"", "more_body": False})
