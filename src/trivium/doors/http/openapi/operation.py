"""How an operation and its answers are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trivium.doors.http.openapi.kinds import Schema, integer, record, ref, string

__all__ = ["ERROR_SCHEMAS", "Operation", "Payload"]

Form = Literal["OpenAIError", "InferError", "AnthropicError"]

_ANY = (400, 401, 403, 408, 429, 431, 500, 503)  # of every route: connections and access are checked for all
_BODY = (413,)  # of every route that takes a body

_WORDS = {
    400: "The request is wrong; the message names the field, what it may be and what came",
    401: "An API key is needed, or it is wrong",
    403: "A page of another site, or under a name that is not this server's, may not call it",
    404: "There is no such model here",
    408: "The request did not arrive, or its answer was not complete, in time",
    413: "The body is too large",
    422: "The input is wrong; the message names the key, its range and the value",
    424: "This model cannot take the input: it is too long, or has tokens that the model does not know",
    429: "Too many requests wait; try again after as many seconds as Retry-After tells",
    431: "The request line and the headers are too large",
    500: "The engine failed",
    503: "The model is being loaded, or the server is shutting down or has too many connections",
}
_RETRY = frozenset({429, 503})
_RETRY_AFTER = {"description": "Seconds after which to try again", "schema": integer(0)}
_REQUEST_ID = {"description": "The id under which the exchange is logged: the request's, or a new one", "schema": string()}

ERROR_SCHEMAS: dict[str, Schema] = {
    "OpenAIError": record(
        {
            "error": record(
                {
                    "message": string(),
                    "type": string(),
                    "param": {"type": ["string", "null"], "description": "The field that is wrong"},
                    "code": {"type": ["string", "null"]},
                }
            )
        }
    ),
    "AnthropicError": record({"type": {"const": "error"}, "error": record({"type": string(), "message": string()})}),
    "InferError": record({"error": string(), "error_type": string(), "message": string("Only with 413")}, "message"),
}


@dataclass(frozen=True, slots=True)
class Payload:
    """What an answer with a status holds: media type -> schema; none if it has no content."""

    words: str
    content: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answers` are those beside errors of the form `errors` with the statuses that all routes have.

    `also` are further statuses of errors. `is_open`: no key is needed.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    answers: Mapping[int, Payload]
    body: Schema | None = None
    example: Mapping[str, Any] | None = None
    errors: Form = "OpenAIError"
    also: Sequence[int] = ()
    parameters: Sequence[dict[str, Any]] = ()
    is_open: bool = False

    def described(self) -> dict[str, Any]:
        """The operation object."""
        request_id = {
            "name": "X-Request-Id",
            "in": "header",
            "description": "An id for the log and the answer: up to 128 letters, digits and . _ : -. Any other is replaced.",
            "schema": string(),
        }
        told: dict[str, Any] = {
            "operationId": self.name,
            "tags": [self.tag],
            "summary": self.summary,
            "parameters": [*map(dict, self.parameters), request_id],
            "responses": self._responses(),
        }
        if self.body is not None:
            content = {"schema": self.body} | ({} if self.example is None else {"example": self.example})
            told["requestBody"] = {"required": True, "content": {"application/json": content}}
        if self.is_open:
            told["security"] = []
        return told

    def _responses(self) -> dict[str, Any]:
        statuses = {*_ANY, *self.also, *(() if self.body is None else _BODY)}
        error = Payload("", {"application/json": ref(self.errors)})
        responses = {}
        for status in sorted({*statuses, *self.answers}):
            payloads = [one for one in (self.answers.get(status), error if status in statuses else None) if one is not None]
            responses[str(status)] = _response(status, payloads)
        return responses


def _response(status: int, payloads: Sequence[Payload]) -> dict[str, Any]:
    schemas: dict[str, list[Schema]] = {}
    for payload in payloads:
        for media_type, schema in payload.content.items():
            schemas.setdefault(media_type, []).append(schema)
    headers: dict[str, Any] = {name: {"schema": schema} for payload in payloads for name, schema in payload.headers.items()}
    headers["X-Request-Id"] = _REQUEST_ID
    if status in _RETRY:
        headers["Retry-After"] = _RETRY_AFTER
    content = {
        media_type: {"schema": found[0] if len(found) == 1 else {"anyOf": found}} for media_type, found in schemas.items()
    }
    told = {"description": payloads[0].words or _WORDS[status], "headers": headers}
    return told | ({"content": content} if content else {})
