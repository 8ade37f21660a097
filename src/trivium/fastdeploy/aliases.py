"""The module names that scripts import, and what they find there."""

from __future__ import annotations

import importlib
import sys
import types

__all__ = ["ALIASES", "install_aliases"]

_LIBRARY = "trivium.doors.library"

# module -> name in it -> module of ours that has it
ALIASES: dict[str, dict[str, str]] = {
    "fastdeploy": {
        "LLM": "trivium.fastdeploy.llm",
        "SamplingParams": f"{_LIBRARY}.sampling_params",
        "__version__": "trivium",
    },
    "fastdeploy.entrypoints": {},
    "fastdeploy.entrypoints.llm": {"LLM": "trivium.fastdeploy.llm"},
    "fastdeploy.engine": {},
    "fastdeploy.engine.sampling_params": {
        "SamplingParams": f"{_LIBRARY}.sampling_params",
        "GuidedDecodingParams": f"{_LIBRARY}.sampling_params",
    },
    "fastdeploy.engine.request": {
        "RequestOutput": f"{_LIBRARY}.outputs",
        "CompletionOutput": f"{_LIBRARY}.outputs",
        "RequestMetrics": f"{_LIBRARY}.outputs",
    },
    "fastdeploy.input": {},
    "fastdeploy.input.ernie_tokenizer": {"ErnieBotTokenizer": "trivium.fastdeploy.tokenizer"},
    "fastdeploy.input.ernie4_5_tokenizer": {"Ernie4_5Tokenizer": "trivium.fastdeploy.tokenizer"},
    "fastdeploy.utils": {"EngineError": "trivium.errors"},
    "fastdeploy.worker": {},
    "fastdeploy.worker.output": {"Logprob": f"{_LIBRARY}.outputs", "LogprobsLists": f"{_LIBRARY}.outputs"},
}


def install_aliases() -> None:
    """Put the modules of `ALIASES` into `sys.modules`, before an installed package of that name can be found."""
    for name, contents in ALIASES.items():
        module = types.ModuleType(name, f"Trivium under the name {name}.")
        module.__path__ = []  # a package whose submodules are the ones here
        for attribute, source in contents.items():
            setattr(module, attribute, getattr(importlib.import_module(source), attribute))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.modules["fastdeploy"].version = sys.modules["fastdeploy"].__version__  # type: ignore[attr-defined]
