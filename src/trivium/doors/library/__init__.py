"""The library door: offline batches from Python, after FastDeploy's offline inference."""

from __future__ import annotations

from trivium.doors.library.async_llm import AsyncLLM
from trivium.doors.library.llm import LLM
from trivium.doors.library.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from trivium.doors.library.sampling_params import GuidedDecodingParams, SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]
