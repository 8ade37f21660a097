"""The APIs that can be driven: how each is asked for a stream, and what its events say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["BACKENDS", "Backend", "EventReader", "StreamError", "parse"]


class StreamError(Exception):
    """An event tells an error, or is none of this API."""


class Backend(ABC):
    """One API. `endpoint` is its usual path."""

    endpoint: str
    takes_ignore_eos = True
    ends_with_done = True  # the last event is "[DONE]"

    @abstractmethod
    def body(self, prompt: str, max_tokens: int, model: str | None, *, ignore_eos: bool) -> dict[str, Any]:
        """The body of a greedy request."""

    @abstractmethod
    def brings_tokens(self, event: Mapping[str, Any]) -> bool:
        """Whether an event has something of the answer. Raises `StreamError`."""

    @abstractmethod
    def counts(self, event: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Numbers of prompt and output tokens, where an event tells them."""


class OpenAICompletions(Backend):
    """`/v1/completions`."""

    endpoint = "/v1/completions"

    def body(self, prompt: str, max_tokens: int, model: str | None, *, ignore_eos: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens}
        return body | self._common(model, ignore_eos)

    def brings_tokens(self, event: Mapping[str, Any]) -> bool:
        return any(choice.get("text") for choice in _choices(event))

    def counts(self, event: Mapping[str, Any]) -> tuple[int | None, int | None]:
        usage = event.get("usage") or {}
        return _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")

    @staticmethod
    def _common(model: str | None, ignore_eos: bool) -> dict[str, Any]:
        common: dict[str, Any] = {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        return common | ({"model": model} if model else {}) | ({"ignore_eos": True} if ignore_eos else {})


class OpenAIChat(OpenAICompletions):
    """`/v1/chat/completions`: the prompt is one message of the user."""

    endpoint = "/v1/chat/completions"

    def body(self, prompt: str, max_tokens: int, model: str | None, *, ignore_eos: bool) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        return body | self._common(model, ignore_eos)

    def brings_tokens(self, event: Mapping[str, Any]) -> bool:
        for choice in _choices(event):
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")):
                return True
        return False


class Infer(Backend):
    """`/infer`."""

    endpoint = "/infer"
    takes_ignore_eos = False
    ends_with_done = False

    def body(self, prompt: str, max_tokens: int, model: str | None, *, ignore_eos: bool) -> dict[str, Any]:
        parameters = {"max_new_tokens": max_tokens, "do_sample": False, "details": True}
        return {"inputs": prompt, "stream": True, "parameters": parameters}

    def brings_tokens(self, event: Mapping[str, Any]) -> bool:
        if "error" in event:
            raise StreamError(str(event["error"]))
        return "token" in event  # the text of the last is null

    def counts(self, event: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return None, _count(event.get("details") or {}, "generated_tokens")


BACKENDS: dict[str, Backend] = {"openai": OpenAICompletions(), "openai-chat": OpenAIChat(), "infer": Infer()}


def _choices(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    if choices is None:
        error = event.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        raise StreamError(str(message or "an event without choices"))
    return [choice for choice in choices if isinstance(choice, dict)]


def _count(figures: Mapping[str, Any], name: str) -> int | None:
    value = figures.get(name)
    return value if isinstance(value, int) and value >= 0 else None


class EventReader:
    """Server-sent events out of bytes that are cut anywhere; the data of each, in order."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in these bytes."""
        data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *frames, self._rest = data.split(b"\n\n")
        return [found for frame in frames if (found := _data_of(frame)) is not None]


def _data_of(frame: bytes) -> bytes | None:
    if frame.startswith(b"data: ") and b"\n" not in frame:
        return frame[6:]
    lines = [line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object of an event. Raises `StreamError`."""
    try:
        event = orjson.loads(data)
    except ValueError:
        raise StreamError(f"an event is not JSON: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise StreamError(f"an event is not a JSON object: {data[:80]!r}")
    return event
