"""Errors on their way to a client: the status, and the body in the form of the API that was called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from trivium.doors.dispatcher import ClientGoneError
from trivium.engine.outputs import OutputDelta
from trivium.errors import DeadlineExceededError, EngineDeadError, EngineError, PromptTooLongError, RequestError

__all__ = ["AnthropicErrors", "ClientGoneError", "ErrorForm", "HttpError", "InferErrors", "OpenAIErrors", "failure", "form_of"]

RETRY_SECONDS = 1


class HttpError(Exception):
    """A request that ends with this status. `field` names what is wrong with the body, `headers` go with the answer."""

    def __init__(
        self, status: int, message: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.headers = dict(headers or {})


def failure(delta: OutputDelta) -> EngineError | None:
    """Why a sample ended other than by its text, None if it did not."""
    if delta.finish_reason in (None, "stop", "length"):
        return None
    if delta.finish_reason == "timeout":
        return DeadlineExceededError("the request's time was over before its answer was complete")
    if delta.finish_reason == "abort":
        return EngineDeadError("the answer was ended: the server is shutting down")
    if isinstance(delta.error, EngineError):
        return delta.error
    return EngineError("the engine failed while it worked on this request; the server's log says how")


class ErrorForm(ABC):
    """How one API tells errors."""

    def status(self, error: Exception) -> int:
        """The HTTP status of an error."""
        if isinstance(error, HttpError):
            return error.status
        return error.error_code if isinstance(error, EngineError) else 500

    @abstractmethod
    def body(self, error: Exception) -> dict[str, Any]:
        """The body, a JSON object."""

    def headers(self, error: Exception) -> dict[str, str]:
        """Headers that go with it."""
        headers = error.headers if isinstance(error, HttpError) else {}
        if self.status(error) in (429, 503):
            headers = {"Retry-After": str(RETRY_SECONDS), **headers}
        if isinstance(error, DeadlineExceededError):
            headers = {"X-Should-Retry": "false", **headers}  # SDKs would send a 408 again, and have it computed again
        return headers


def _field(error: Exception) -> str | None:
    return error.field if isinstance(error, (HttpError, RequestError)) else None


def _message(error: Exception) -> str:
    """What is safe and useful to tell; of an error that nobody foresaw, only that there was one."""
    known = isinstance(error, (HttpError, EngineError))
    return str(error) if known else "internal error; the server's log says more under this request's id"


def _chat_message(error: Exception) -> str:
    """With the words that agents and frameworks look for, to shorten their conversation and ask again."""
    message = _message(error)
    return f"prompt is too long: {message}" if isinstance(error, PromptTooLongError) else message


class OpenAIErrors(ErrorForm):
    """`{"error": {message, type, param, code}}`."""

    _TYPES: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    _CODES: ClassVar[dict[int, str]] = {
        401: "invalid_api_key",
        404: "not_found",
        408: "timeout",
        413: "request_too_large",
        429: "queue_full",
    }

    def body(self, error: Exception) -> dict[str, Any]:
        status = self.status(error)
        kind = self._TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        code = self._CODES.get(status)
        if isinstance(error, PromptTooLongError):
            code = "context_length_exceeded"
        elif status == 404 and _field(error) == "model":
            code = "model_not_found"
        return {"error": {"message": _chat_message(error), "type": kind, "param": _field(error), "code": code}}


class AnthropicErrors(ErrorForm):
    """`{"type": "error", "error": {type, message}}`."""

    _TYPES: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }

    def body(self, error: Exception) -> dict[str, Any]:
        status = self.status(error)
        kind = self._TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": _chat_message(error)}}


class InferErrors(ErrorForm):
    """MindIE's `{"error": …, "error_type": …}`: 422 for wrong input, 424 for what this model cannot take, 500 for no answer."""

    _TYPES: ClassVar[dict[int, str]] = {
        413: "Content Too Large",
        422: "Input Validation Error",
        424: "Generation Error",
        429: "Too Many Requests",
        500: "Incomplete Generation",
        503: "Service Unavailable",
    }

    def status(self, error: Exception) -> int:
        if isinstance(error, PromptTooLongError):
            return 424
        if isinstance(error, RequestError):
            return 424 if error.field == "prompt_token_ids" else 422
        if isinstance(error, DeadlineExceededError):
            return 500
        return super().status(error)

    def body(self, error: Exception) -> dict[str, Any]:
        status = self.status(error)
        kind = self._TYPES.get(status, "Bad Request" if status < 500 else "Incomplete Generation")
        message = _message(error)
        body = {"error": message, "error_type": kind}
        return body | {"message": message} if status == 413 else body  # the vendor's 413 has only this key


_OPENAI, _ANTHROPIC, _INFER = OpenAIErrors(), AnthropicErrors(), InferErrors()


def form_of(path: str) -> ErrorForm:
    """The form of the API that a path belongs to."""
    if path in ("/infer", "/infer_token", "/v1/tokenizer"):
        return _INFER
    return _ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else _OPENAI
