"""What the chat APIs of a door share: the model's names, the reader of bodies, and one way to ask."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trivium.doors.http.errors import HttpError
from trivium.doors.http.openai.fields import wrong
from trivium.doors.http.openai.request import BodyReader, OpenAIRequest
from trivium.errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

    from trivium.doors.dispatcher import Generation
    from trivium.doors.http.door import HttpDoor
    from trivium.engine.request import GenerationRequest

__all__ = ["ChatApi"]


class ChatApi:
    """One per door: `ChatApi.of(door)`. Raises `ConfigError` for parsers that the model does not suit."""

    def __init__(self, door: HttpDoor) -> None:
        config, engine = door.config, door.engine
        self.model = engine.model_info.name
        self._created = int(time.time())
        self.reader = BodyReader(
            engine,
            max_input_len=config.max_input_len,
            max_output_len=config.max_output_len,
            timeout=config.request_timeout,
        )
        self._door = door
        path = engine.config.model.removeprefix("hf:")
        file = PurePath(path).name
        names = (self.model, engine.config.served_model_name, engine.config.model, path, file, file.removesuffix(".gguf"))
        self._names = {name for name in names if name}

    @classmethod
    def of(cls, door: HttpDoor) -> ChatApi:
        """The door's own. Raises `HttpError` 503 while the model is loading."""
        return door.part(cls, cls)

    def check_model(self, name: Any) -> None:
        """Raise `HttpError` 404 for another model than the one that is served, RequestError for what is no name.

        A client may leave the name out.
        """
        if name is None:
            return
        if not isinstance(name, str):
            raise wrong("model", "a string", name)
        if name not in self._names:
            raise HttpError(404, f"the model {name[:200]!r} is not here; this server has {self.model!r}", field="model")

    def model_card(self) -> dict[str, Any]:
        """What `/v1/models` tells of the model."""
        return {
            "id": self.model,
            "object": "model",
            "created": self._created,
            "owned_by": "trivium",
            "max_model_len": self._door.engine.model_info.max_model_len,
        }

    async def ask(
        self, request: Request, kind: str, body: Mapping[str, Any], arrival_time: float
    ) -> tuple[OpenAIRequest, Generation]:
        """Read a body in the form of `kind` (CHAT, COMPLETIONS) and submit it. Close the generation in the end.

        `arrival_time` is when the HTTP request came in, by time.monotonic. Raises what `BodyReader.read` and
        `HttpDoor.generate` raise.
        """
        read: list[OpenAIRequest] = []
        most = self._door.engine.config.max_waiting

        def make() -> Sequence[GenerationRequest]:
            asked = self.reader.read(kind, body, uuid.uuid4().hex, arrival_time)
            if asked.num_samples > most:  # would be told forever that the queue is full
                count = f"{asked.num_samples} answers ({len(asked.requests)} prompts, n = {asked.requests[0].n})"
                raise RequestError(f"at most {most} answers may be asked for at once, got {count}", field="n")
            read.append(asked)
            return asked.requests

        generation = await self._door.generate(request, make)
        return read[0], generation
