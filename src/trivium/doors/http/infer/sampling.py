"""How `/infer` chooses tokens: what the request says, then what the model's files say, then fixed defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.engine.engine import ModelInfo
from trivium.engine.sampling import SamplingOptions

__all__ = ["resolve_sampling"]

_KNOBS = ("temperature", "top_k", "top_p")  # any of these turns sampling on
_TOP_K = 1000


def resolve_sampling(given: Mapping[str, Any], model: ModelInfo, *, max_tokens: int, seed: int) -> SamplingOptions:
    """From checked parameters.

    `do_sample` decides. Without it temperature, top_k or top_p in the request turn sampling on, else the model's
    generation_config.json decides in the same way, else the answer is greedy.
    """
    defaults = model.generation_defaults
    samples = given.get("do_sample")
    if samples is None:
        samples = any(name in given for name in _KNOBS) or _model_samples(defaults)
    values: dict[str, Any] = {
        "repetition_penalty": given.get("repetition_penalty", defaults.get("repetition_penalty", 1.0)),
        "presence_penalty": defaults.get("presence_penalty", 0.0),
        "frequency_penalty": defaults.get("frequency_penalty", 0.0),
        "temperature": 0.0,
    }
    if samples:
        # `do_sample: false` of a model's file reads as a temperature of 0, which must not undo the request's wish to sample.
        own_temperature = 1.0 if defaults.get("do_sample") is False else defaults.get("temperature", 1.0)
        top_k = given.get("top_k", defaults.get("top_k", model.config_defaults.get("top_k", _TOP_K)))
        values |= {
            "temperature": given.get("temperature", own_temperature),
            "top_k": min(max(top_k, 0), model.vocab_size),
            "top_p": given.get("top_p", defaults.get("top_p", 1.0)),
            "min_p": defaults.get("min_p", 0.0),
        }
    return SamplingOptions(**values, max_tokens=max_tokens, seed=seed)


def _model_samples(defaults: Mapping[str, Any]) -> bool:
    """What generation_config.json decides; GGUF files name the values alone."""
    return bool(defaults.get("do_sample", any(name in defaults for name in _KNOBS)))
