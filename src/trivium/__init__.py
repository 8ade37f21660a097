"""Trivium: a large-language-model inference engine that is fast on an ordinary CPU.

    from trivium import LLM, SamplingParams

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.config import EngineConfig
    from trivium.doors.library.async_llm import AsyncLLM
    from trivium.doors.library.llm import LLM
    from trivium.doors.library.outputs import CompletionOutput, RequestMetrics, RequestOutput
    from trivium.doors.library.sampling_params import GuidedDecodingParams, SamplingParams
    from trivium.errors import (
        ConfigError,
        DeadlineExceededError,
        EngineDeadError,
        EngineError,
        ModelLoadError,
        ModelNotFoundError,
        PromptTooLongError,
        QueueFullError,
        RequestError,
        TriviumError,
        UnsupportedModelError,
    )

__version__ = "0.1.0"

_MODULES = {
    "LLM": "trivium.doors.library.llm",
    "AsyncLLM": "trivium.doors.library.async_llm",
    "SamplingParams": "trivium.doors.library.sampling_params",
    "GuidedDecodingParams": "trivium.doors.library.sampling_params",
    "RequestOutput": "trivium.doors.library.outputs",
    "CompletionOutput": "trivium.doors.library.outputs",
    "RequestMetrics": "trivium.doors.library.outputs",
    "EngineConfig": "trivium.config",
    "TriviumError": "trivium.errors",
    "ConfigError": "trivium.errors",
    "ModelLoadError": "trivium.errors",
    "ModelNotFoundError": "trivium.errors",
    "UnsupportedModelError": "trivium.errors",
    "EngineError": "trivium.errors",
    "RequestError": "trivium.errors",
    "PromptTooLongError": "trivium.errors",
    "QueueFullError": "trivium.errors",
    "DeadlineExceededError": "trivium.errors",
    "EngineDeadError": "trivium.errors",
}

__all__ = [  # noqa: RUF022  in the order of the documentation
    "LLM",
    "AsyncLLM",
    "SamplingParams",
    "GuidedDecodingParams",
    "RequestOutput",
    "CompletionOutput",
    "RequestMetrics",
    "EngineConfig",
    "TriviumError",
    "ConfigError",
    "ModelLoadError",
    "ModelNotFoundError",
    "UnsupportedModelError",
    "EngineError",
    "RequestError",
    "PromptTooLongError",
    "QueueFullError",
    "DeadlineExceededError",
    "EngineDeadError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
