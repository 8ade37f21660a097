"""The fields of a body that decide how the next token is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.doors.http.limits import MAX_BAD_WORDS, MAX_STOP_CHARS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from trivium.doors.http.openai.fields import Fields, is_integer, is_number, wrong
from trivium.engine.sampling import MAX_SEED, GuidedOptions, SamplingOptions
from trivium.errors import RequestError

__all__ = ["read_max_tokens", "read_sampling"]

_MAX_ID_DIGITS = 10  # of a token id; Python refuses to read a number of thousands of digits
_MAX_TOP_LOGPROBS = 20

# Fields with the engine's own name; null stands for the model's default, else for this one.
_DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_RANGES = {"temperature": (0.0, 2.0), "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0)}


def read_sampling(
    fields: Fields,
    model_defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    guided: GuidedOptions | None,
) -> SamplingOptions:
    """Raises `RequestError`. What the caller gives has been read by it."""
    for name, (low, high) in _RANGES.items():
        fields.number(name, low, high)
    values = {}
    for name, default in _DEFAULTS.items():
        given = fields.any(name)
        values[name] = model_defaults.get(name, default) if given is None else given
    return SamplingOptions(
        **values,
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0) or 0,
        ignore_eos=fields.boolean("ignore_eos"),
        stop=_stop(fields),
        stop_token_ids=tuple(fields.list("stop_token_ids", "a list of token ids", is_integer, MAX_STOP_TOKEN_IDS)),
        include_stop=fields.boolean("include_stop_str_in_output"),
        bad_words=_words(fields, "bad_words", MAX_BAD_WORDS),
        logit_bias=_logit_bias(fields),
        seed=fields.integer("seed", 0, MAX_SEED),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        guided=guided,
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
    )


def read_max_tokens(fields: Fields, default: int | None, low: int = 1) -> int | None:
    """`max_completion_tokens` is the newer name of `max_tokens`, and stands above it. None: the room left."""
    newer, older = (fields.integer(name, low) for name in ("max_completion_tokens", "max_tokens"))
    return next((value for value in (newer, older) if value is not None), default)


def read_chat_logprobs(fields: Fields) -> int | None:
    """Alternatives to report of each token, None for no logprobs at all."""
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, _MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs", allowed="logprobs: true", value=top)
    return (top or 0) if wanted else None


def _stop(fields: Fields) -> tuple[str, ...]:
    stop = fields.any("stop")
    if not isinstance(stop, str):
        return _words(fields, "stop", MAX_STOP_STRINGS)
    _check_word("stop", stop)
    return (stop,)


def _words(fields: Fields, name: str, most: int) -> tuple[str, ...]:
    words = fields.list(name, "a string or a list of strings", lambda value: isinstance(value, str), most)
    for index, word in enumerate(words):
        _check_word(f"{fields.name(name)}[{index}]", word)
    return tuple(words)


def _check_word(name: str, word: str) -> None:
    if not 1 <= len(word) <= MAX_STOP_CHARS:
        message = f"{name} must have from 1 to {MAX_STOP_CHARS} characters, got {len(word)}"
        raise RequestError(message, field=name, allowed=f"1..{MAX_STOP_CHARS} characters", value=len(word))


def _logit_bias(fields: Fields) -> dict[int, float]:
    bias = fields.mapping("logit_bias", "an object of token ids and numbers") or {}
    for token, value in bias.items():
        if not (token.isdecimal() and len(token) <= _MAX_ID_DIGITS) or not (is_number(value) and -100 <= value <= 100):
            raise wrong("logit_bias", "an object of token ids and numbers from -100 to 100", {token: value})
    return {int(token): float(value) for token, value in bias.items()}
