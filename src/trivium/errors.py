"""The exception tree: everything Trivium raises on purpose derives from `TriviumError`.

TriviumError
├── ConfigError             a configuration value is wrong (also a ValueError)
├── ModelLoadError          the model's files are missing, damaged or hostile
│   ├── ModelNotFoundError  no such file, folder or catalogue name (also a FileNotFoundError)
│   └── UnsupportedModelError  a sound file of a kind that Trivium does not run
└── EngineError             a request could not be served; has an `error_code`
    ├── RequestError        the request itself is wrong (400; also a ValueError)
    │   └── PromptTooLongError
    ├── QueueFullError      too many requests wait (429)
    ├── DeadlineExceededError  the request's deadline passed (408)
    └── EngineDeadError     the engine has been shut down (503)
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DeadlineExceededError",
    "EngineDeadError",
    "EngineError",
    "ModelLoadError",
    "ModelNotFoundError",
    "PromptTooLongError",
    "QueueFullError",
    "RequestError",
    "TriviumError",
    "UnsupportedModelError",
]

_SHOWN_CHARS = 200  # of a wrong value in a message


class TriviumError(Exception):
    """Base of every exception that Trivium raises on purpose."""


class ConfigError(TriviumError, ValueError):
    """A configuration value is out of its range or contradicts another."""


class ModelLoadError(TriviumError):
    """The model cannot be loaded: a file is missing, truncated, damaged or hostile."""


class ModelNotFoundError(ModelLoadError, FileNotFoundError):
    """The model's name leads to no file, folder or catalogue entry."""

    # FileNotFoundError formats itself from errno; the message alone is what a user needs.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedModelError(ModelLoadError):
    """The file is sound, but its architecture, tensor type or tokenizer is not supported."""


class EngineError(TriviumError):
    """A request could not be served.

    `error_code` follows HTTP: 400 for a wrong request, 408, 429, 500 for a fault of the engine, 503.
    """

    error_code: int = 500

    def __init__(self, message: str, error_code: int | None = None) -> None:
        super().__init__(message)
        if error_code is not None:
            self.error_code = error_code


class RequestError(EngineError, ValueError):
    """The request is wrong.

    `field` names the parameter, `allowed` says what it may be, `value` is what came; a door writes its
    own message from them where its protocol asks for that.
    """

    error_code = 400

    def __init__(self, message: str, *, field: str | None = None, allowed: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.allowed = allowed
        self.value = value

    @classmethod
    def out_of_range(cls, field: str, allowed: str, value: object) -> RequestError:
        """An error that names the field, what was allowed and what came, cut short if that is long."""
        return cls(f"{field} must be {allowed}, got {_shown(value)}", field=field, allowed=allowed, value=value)


class PromptTooLongError(RequestError):
    """The prompt (with the least output it asks for) can never fit the model's context or the KV cache."""


class QueueFullError(EngineError):
    """The waiting queue is full; try again later."""

    error_code = 429


class DeadlineExceededError(EngineError):
    """The request's deadline passed before it was finished."""

    error_code = 408


class EngineDeadError(EngineError):
    """The engine has been shut down and takes no more requests."""

    error_code = 503


def _shown(value: object) -> str:
    """The beginning of a wrong value's repr."""
    try:
        return repr(value[:_SHOWN_CHARS] if isinstance(value, str) else value)[:_SHOWN_CHARS]
    except ValueError:
        return "an integer of more digits than Python writes"
