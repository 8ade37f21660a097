"""How the next token is chosen: one validated description for all doors.

The ranges here are the union of what the doors allow; each door narrows them in its own form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from trivium.errors import RequestError

__all__ = ["GuidedOptions", "LogprobsMode", "SamplingOptions"]

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
MAX_SEED = 2**64 - 1
MAX_BIAS = (2 - 2**-23) * 2.0**127  # the largest float32


@dataclass(frozen=True, slots=True)
class GuidedOptions:
    """Structured output: exactly one of the kinds is set.

    `json` is a JSON schema (mapping, or its text), `regex` a regular expression, `choice` the allowed answers, `grammar` a
    Lark grammar as llguidance reads it, `json_object` any JSON object.
    """

    json: Mapping[str, Any] | str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        given = [k for k in ("json", "regex", "choice", "grammar") if getattr(self, k) is not None]
        given += ["json_object"] if self.json_object else []
        if len(given) != 1:
            raise RequestError(
                f"guided decoding takes exactly one of json, regex, choice, grammar, json_object; got {given or 'none'}",
                field="guided_decoding",
                allowed="exactly one kind",
                value=given,
            )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Everything that decides the next token. All values are resolved: a door has already filled in its defaults.

    Order of the logit pipeline: logit_bias; min_tokens; repetition, frequency, presence penalties; temperature; bad words;
    structured-output mask; softmax; min_p; top_k; top_p; draw. Penalties count as FastDeploy defines them: repetition looks at
    prompt and output, frequency and presence at the output only; `penalty_window` limits all three to the latest tokens.
    """

    temperature: float = 1.0  # below 1e-5 is greedy
    top_k: int = 0  # 0 and -1: off
    top_p: float = 1.0  # below 1e-5 is greedy
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int | None = None
    max_tokens: int | None = None  # generated tokens; None: as many as fit
    min_tokens: int = 0  # until then end tokens (and stop_token_ids) are suppressed, stop strings are text
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # matched on text, across tokens
    stop_token_ids: tuple[int, ...] = ()
    stop_token_sequences: tuple[tuple[int, ...], ...] = ()
    include_stop: bool = False  # keep the stop string in the text
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: the engine draws one and keeps it
    logprobs: int | None = None  # alternatives beside the sampled token; None: none reported; -1: the whole vocabulary
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw_logprobs"
    guided: GuidedOptions | None = None
    skip_special_tokens: bool = True
    reasoning_max_tokens: int | None = None  # after so many tokens of thought the end-of-thought text is forced

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf, open_high=True)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True, open_high=True)
        _check_number("presence_penalty", self.presence_penalty, -math.inf, math.inf, open_low=True, open_high=True)
        _check_number("frequency_penalty", self.frequency_penalty, -math.inf, math.inf, open_low=True, open_high=True)
        _check_int("top_k", self.top_k, -1, None)
        _check_int("penalty_window", self.penalty_window, 1, None, optional=True)
        _check_int("max_tokens", self.max_tokens, 1, None, optional=True)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_int("seed", self.seed, 0, MAX_SEED, optional=True)
        _check_int("logprobs", self.logprobs, -1, None, optional=True)
        _check_int("prompt_logprobs", self.prompt_logprobs, -1, None, optional=True)
        _check_int("reasoning_max_tokens", self.reasoning_max_tokens, 0, None, optional=True)
        for word in self.stop:
            if not isinstance(word, str) or not word:
                raise RequestError.out_of_range("stop", "non-empty strings", word)
        for word in self.bad_words:
            if not isinstance(word, str) or not word:
                raise RequestError.out_of_range("bad_words", "non-empty strings", word)
        for name in ("stop_token_sequences", "bad_words_token_ids"):
            for ids in getattr(self, name):
                if not ids:
                    raise RequestError.out_of_range(name, "non-empty lists of token ids", ids)
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias", token, 0, None)
            if not isinstance(bias, Real) or not (bias == -math.inf or abs(bias) <= MAX_BIAS):
                raise RequestError.out_of_range("logit_bias", f"-inf or a number up to ±{MAX_BIAS:g} per token id", bias)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken without drawing."""
        return self.temperature < 1e-5 or self.top_p < 1e-5 or self.top_k == 1


def _check_number(name: str, value: Any, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> None:
    allowed = f"a number in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError.out_of_range(name, allowed, value)
    inside = (low < value if open_low else low <= value) and (value < high if open_high else value <= high)
    if not inside:  # NaN compares false and ends here too
        raise RequestError.out_of_range(name, allowed, value)


def _check_int(name: str, value: Any, low: int, high: int | None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise RequestError.out_of_range(name, allowed + (" or None" if optional else ""), value)
