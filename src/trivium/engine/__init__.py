"""The engine: one model, many requests together.

`NativeEngine` loads lazily, so that the shared dataclasses cost nothing to import (and parsers and models may import them
without a circle).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trivium.engine.engine import Engine, EngineStats, ModelInfo
from trivium.engine.outputs import FinishReason, OutputDelta, OutputSink, RequestTimes, TokenLogprobs
from trivium.engine.request import EmbeddingSpan, GenerationRequest
from trivium.engine.sampling import GuidedOptions, LogprobsMode, SamplingOptions

if TYPE_CHECKING:
    from trivium.engine.native_engine import NativeEngine

__all__ = [
    "EmbeddingSpan",
    "Engine",
    "EngineStats",
    "FinishReason",
    "GenerationRequest",
    "GuidedOptions",
    "LogprobsMode",
    "ModelInfo",
    "NativeEngine",
    "OutputDelta",
    "OutputSink",
    "RequestTimes",
    "SamplingOptions",
    "TokenLogprobs",
]


def __getattr__(name: str) -> Any:
    if name == "NativeEngine":
        from trivium.engine.native_engine import NativeEngine

        return NativeEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
