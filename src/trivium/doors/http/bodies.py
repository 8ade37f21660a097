"""Bodies of requests and answers: JSON, read under caps and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trivium.doors.http.errors import ClientGoneError, HttpError
from trivium.doors.http.limits import BODY_SECONDS, MAX_JSON_CONTAINERS, MAX_JSON_DEPTH

__all__ = ["JsonResponse", "dump", "read_json"]

_LARGE = 256 * 1024  # bytes whose parsing would hold up the event loop noticeably


class JsonResponse(Response):
    """A JSON object as the body."""

    media_type = "application/json"

    def __init__(self, content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(dump(content), status, dict(headers) if headers else None)


def dump(content: object) -> bytes:
    """Compact JSON in UTF-8."""
    return orjson.dumps(content)


async def read_json(request: Request, max_bytes: int, *, bad_status: int = 400) -> dict[str, Any]:
    """The body as a JSON object.

    Raises `HttpError`: 413 for too many bytes, 408 if it does not arrive in time, `bad_status` for what is no JSON object (also
    NaN, lone surrogates, wrong UTF-8, too much nesting, too many brackets). Raises `ClientGoneError`.
    """
    try:
        data = await asyncio.wait_for(_read(request, max_bytes), BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"the body must arrive within {BODY_SECONDS:g} seconds"
        raise HttpError(408, message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    if len(data) > _LARGE:
        return await asyncio.to_thread(_parse, data, bad_status)
    return _parse(data, bad_status)


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _parse(data: bytes, bad_status: int) -> dict[str, Any]:
    if not data.strip():
        raise HttpError(bad_status, "the body is empty; it must be a JSON object")
    # Counting brackets is quick and errs on the safe side, for those in strings count, too.
    brackets = data.count(b"[") + data.count(b"{")
    if brackets > MAX_JSON_CONTAINERS:
        raise HttpError(bad_status, f"the body may hold [ and {{ at most {MAX_JSON_CONTAINERS} times, got {brackets}")
    try:
        content = orjson.loads(data)
    except ValueError as error:
        raise HttpError(bad_status, f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise HttpError(bad_status, f"the body must be a JSON object, got {_kind(content)}")
    # Only suspicious bodies are walked through.
    if brackets > MAX_JSON_DEPTH and _depth(content) > MAX_JSON_DEPTH:
        raise HttpError(bad_status, f"the body is nested more than {MAX_JSON_DEPTH} levels deep")
    return content


def _depth(content: object) -> int:
    """Levels of nesting, found without recursion."""
    depth, level = 0, [content]
    while level:
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        depth += any(isinstance(value, (dict, list)) for value in level)
        level = inner
    return depth


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body must have at most {max_bytes} bytes ({max_bytes / 2**20:g} MB)")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")
