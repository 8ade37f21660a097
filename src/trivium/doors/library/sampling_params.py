"""`SamplingParams`: how the library's callers say which token comes next."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from trivium.doors.library.hints import suggest_names, unknown_name
from trivium.engine.sampling import GuidedOptions, LogprobsMode, SamplingOptions
from trivium.errors import RequestError

__all__ = ["GuidedDecodingParams", "ParameterTypeError", "SamplingParams"]

MAX_SEED = 922337203685477580
OPTIONAL_MAX_TOKENS = 8192


class ParameterTypeError(RequestError, TypeError):
    """A parameter has a wrong type: caught by `except TypeError` and by `except ValueError`."""


@suggest_names
@dataclass
class GuidedDecodingParams:
    """Structured output: at most one of these kinds.

    `json`: a JSON schema, as a dict or its text. `regex`: a regular expression the whole answer matches. `choice`: the allowed
    answers. `grammar`: a Lark grammar. `json_object`: any JSON object. `structural_tag` is refused.

    Raises `ValueError` if several are set.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        self.to_options()

    def to_options(self) -> GuidedOptions | None:
        """The engine's form; None when no kind is set."""
        if self.structural_tag is not None:
            raise RequestError(
                "guided_decoding.structural_tag is not supported: describe the whole answer with json, regex or grammar",
                field="guided_decoding",
            )
        _require_type("guided_decoding.json", self.json, (str, Mapping), "a JSON schema as dict or str")
        _require_type("guided_decoding.regex", self.regex, (str,), "a str")
        _require_type("guided_decoding.choice", self.choice, (list, tuple), "a list of str")
        _require_type("guided_decoding.grammar", self.grammar, (str,), "a str")
        _require_type("guided_decoding.json_object", self.json_object, (bool,), "a bool")
        for answer in self.choice or ():
            _require_type("guided_decoding.choice", answer, (str,), "a list of str")
        if self.choice is not None and not self.choice:
            raise RequestError.out_of_range("guided_decoding.choice", "a list of at least one answer", self.choice)
        if not self.json_object and all(v is None for v in (self.json, self.regex, self.choice, self.grammar)):
            return None
        return GuidedOptions(
            json=self.json,
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
            json_object=bool(self.json_object),
        )


@suggest_names
@dataclass
class SamplingParams:
    """How to choose tokens and when to stop. `None` means the model's `generation_config.json`, else the default named below.

    - `n`: samples per prompt (>= 1). `best_of` selects nothing: None, or the value of `n`.
    - `presence_penalty`, `frequency_penalty`: -2..2, of the output's tokens (0). `repetition_penalty`: > 0, of prompt and
      output (1.0). `penalty_window`: only the latest so many tokens count.
    - `temperature`: >= 0 (1.0); `top_p`: 0..1 (0.7); `top_k`: >= -1, 0 and -1 are off; `min_p`: 0..1, relative to the most
      likely token. Temperature or top_p below 1e-5, or `do_sample=False`: the most likely token is taken.
    - `seed`: 0..922337203685477580; without one the engine draws one.
    - `max_tokens`: generated tokens (None: as many as the context has room for); `min_tokens`: end tokens are suppressed until
      then.
    - `stop`: strings that end the text and are not part of it (unless `include_stop_str_in_output`); `stop_token_ids`: ids, or
      lists of ids, that end it. `ignore_eos`: end-of-text tokens do not.
    - `reasoning_max_tokens`: at most so many tokens of thought; needs `max_tokens`.
    - `logprobs`, `prompt_logprobs`: alternatives to report per token (>= -1; -1 is the whole vocabulary); `logprobs_mode`:
      raw_logprobs, processed_logprobs, raw_logits, processed_logits (None: what the `LLM` was built with).
    - `bad_words`, `bad_words_token_ids`: text and ids (or sequences of ids) that never come.
    - `guided_decoding`: a `GuidedDecodingParams`. `logits_processors_args`: `{"logit_bias": {token id: bias}}`.
    - `skip_special_tokens`: leave special tokens out of the text. `timeout`: seconds until the answer must be complete.
      `priority`: lower runs first.
    - `stop_seqs_len` is derived from `stop` by FastDeploy; it is carried and has no effect of its own.

    Raises `ValueError` (a `RequestError`) for values out of range and `TypeError` for wrong types and unknown names.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | list[list[int]] | None = None
    stop_seqs_len: list[int] | None = None
    max_tokens: int | None = None
    reasoning_max_tokens: int | None = None
    min_tokens: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    temp_scaled_logprobs: bool = False
    top_p_normalized_logprobs: bool = False
    bad_words: list[str] | None = None
    bad_words_token_ids: list[int] | list[list[int]] | None = None
    guided_decoding: GuidedDecodingParams | None = None
    logits_processors_args: dict[str, Any] | None = None
    do_sample: bool | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    penalty_window: int | None = None
    logprobs_mode: LogprobsMode | None = None
    timeout: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        self.to_options({})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping of field names; `guided_decoding` may be a mapping too. Unknown names raise `TypeError`."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name("SamplingParams.from_dict", str(name), known)
        given = dict(values)
        if isinstance(given.get("guided_decoding"), Mapping):
            given["guided_decoding"] = GuidedDecodingParams(**given["guided_decoding"])
        return cls(**given)

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Build from values where None means "not given": penalties 0/0/1, temperature 1, at most 8192 tokens."""
        defaults = {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "max_tokens": OPTIONAL_MAX_TOKENS,
        }
        return cls.from_dict(defaults | {name: value for name, value in values.items() if value is not None})

    def to_options(self, model_defaults: Mapping[str, Any], logprobs_mode: LogprobsMode = "raw_logprobs") -> SamplingOptions:
        """Check every field and give the engine's form, unset values taken from `model_defaults` (generation_config.json)."""
        self._check_numbers()
        self._check_switches()
        if self.do_sample and model_defaults.get("do_sample") is False:
            model_defaults = {**model_defaults, "temperature": None}  # the model's is that of a greedy one

        def resolve(name: str, otherwise: float) -> float:
            value = getattr(self, name)
            if value is None:
                value = model_defaults.get(name)
            return otherwise if value is None else float(value)

        return SamplingOptions(
            temperature=0.0 if self.do_sample is False else resolve("temperature", 1.0),
            top_k=int(self.top_k),
            top_p=resolve("top_p", 0.7),
            min_p=float(self.min_p),
            repetition_penalty=resolve("repetition_penalty", 1.0),
            presence_penalty=resolve("presence_penalty", 0.0),
            frequency_penalty=resolve("frequency_penalty", 0.0),
            penalty_window=_optional_int(self.penalty_window),
            max_tokens=_optional_int(self.max_tokens),
            min_tokens=int(self.min_tokens),
            ignore_eos=self.ignore_eos,
            stop=_texts("stop", [self.stop] if isinstance(self.stop, str) else self.stop),
            stop_token_ids=_single_ids("stop_token_ids", self.stop_token_ids),
            stop_token_sequences=tuple(s for s in _id_sequences("stop_token_ids", self.stop_token_ids) if len(s) > 1),
            include_stop=self.include_stop_str_in_output,
            bad_words=_texts("bad_words", self.bad_words),
            bad_words_token_ids=_id_sequences("bad_words_token_ids", self.bad_words_token_ids),
            logit_bias=self._logit_bias(),
            seed=_optional_int(self.seed),
            logprobs=_optional_int(self.logprobs),
            prompt_logprobs=_optional_int(self.prompt_logprobs),
            logprobs_mode=self.logprobs_mode or logprobs_mode,
            guided=None if self.guided_decoding is None else self.guided_decoding.to_options(),
            skip_special_tokens=self.skip_special_tokens,
            reasoning_max_tokens=_optional_int(self.reasoning_max_tokens),
        )

    def _check_numbers(self) -> None:
        _require_int("n", self.n, 1)
        _require_number("presence_penalty", self.presence_penalty, "from -2 to 2", lambda v: -2 <= v <= 2)
        _require_number("frequency_penalty", self.frequency_penalty, "from -2 to 2", lambda v: -2 <= v <= 2)
        _require_number("repetition_penalty", self.repetition_penalty, "above 0", lambda v: 0 < v < math.inf)
        _require_number("temperature", self.temperature, ">= 0", lambda v: 0 <= v < math.inf)
        _require_number("top_p", self.top_p, "from 0 to 1", lambda v: 0 <= v <= 1)
        _require_int("top_k", self.top_k, -1)
        _require_number("min_p", self.min_p, "from 0 to 1", lambda v: 0 <= v <= 1, optional=False)
        _require_int("seed", self.seed, 0, MAX_SEED, optional=True)
        _require_int("max_tokens", self.max_tokens, 1, optional=True)
        _require_int("min_tokens", self.min_tokens, 0, self.max_tokens, high_name="max_tokens")
        _require_int(
            "reasoning_max_tokens", self.reasoning_max_tokens, 0, self.max_tokens, high_name="max_tokens", optional=True
        )
        if self.reasoning_max_tokens is not None and self.max_tokens is None:
            raise ParameterTypeError("reasoning_max_tokens needs max_tokens to be set, got max_tokens=None", field="max_tokens")
        _require_int("logprobs", self.logprobs, -1, optional=True)
        _require_int("prompt_logprobs", self.prompt_logprobs, -1, optional=True)
        _require_int("penalty_window", self.penalty_window, 1, optional=True)
        _require_number("timeout", self.timeout, "of seconds above 0", lambda v: v > 0)
        _require_int("priority", self.priority, None)
        if self.best_of is not None and self.best_of != self.n:
            raise RequestError(
                f"best_of selects nothing here and must be None or n ({self.n}), got {self.best_of!r}",
                field="best_of",
                allowed="None or n",
                value=self.best_of,
            )

    def _check_switches(self) -> None:
        for name in ("temp_scaled_logprobs", "top_p_normalized_logprobs"):
            _require_bool(name, getattr(self, name))
            if getattr(self, name):
                raise RequestError(
                    f"{name} is not supported; logprobs_mode='processed_logprobs' reports values after temperature and filters",
                    field=name,
                    allowed="False",
                    value=True,
                )
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _require_bool(name, getattr(self, name))
        if self.do_sample is not None:
            _require_bool("do_sample", self.do_sample)
        if self.logprobs_mode is not None and self.logprobs_mode not in get_args(LogprobsMode):
            raise RequestError.out_of_range("logprobs_mode", f"one of {', '.join(get_args(LogprobsMode))}", self.logprobs_mode)
        _require_type("guided_decoding", self.guided_decoding, (GuidedDecodingParams,), "a GuidedDecodingParams")

    def _logit_bias(self) -> dict[int, float]:
        args = self.logits_processors_args
        _require_type("logits_processors_args", args, (Mapping,), "a dict")
        for name in args or ():
            if name != "logit_bias":
                hint = "; use reasoning_max_tokens instead" if name == "thinking_budget" else ""
                raise RequestError(
                    f"logits_processors_args takes only 'logit_bias', got {name!r}{hint}",
                    field="logits_processors_args",
                    allowed="logit_bias",
                    value=name,
                )
        bias = (args or {}).get("logit_bias")
        _require_type("logit_bias", bias, (Mapping,), "a dict of token id to number")
        try:
            return {int(token): float(value) for token, value in (bias or {}).items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise ParameterTypeError(
                f"logit_bias must be a dict of token id to number: {error}", field="logit_bias", value=bias
            ) from error


def _require_int(
    name: str, value: Any, low: int | None, high: int | None = None, *, high_name: str = "", optional: bool = False
) -> None:
    if value is None and optional:
        return
    allowed = "an integer" if low is None else f"an integer >= {low}"
    if high is not None:
        allowed += f" and <= {high_name or high}" + (f" ({high})" if high_name else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ParameterTypeError.out_of_range(name, allowed, value)
    if (low is not None and int(value) < low) or (high is not None and int(value) > high):
        raise RequestError.out_of_range(name, allowed, value)


def _require_number(name: str, value: Any, allowed: str, inside: Any, *, optional: bool = True) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterTypeError.out_of_range(name, f"a number {allowed}", value)
    try:
        number = float(value)
    except OverflowError as error:
        message = f"{name} must be a number {allowed}, got an integer that no float can hold"
        raise RequestError(message, field=name, allowed=allowed, value=value) from error
    if not inside(number):  # NaN is inside no range
        raise RequestError.out_of_range(name, f"a number {allowed}", value)


def _require_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ParameterTypeError.out_of_range(name, "True or False", value)


def _require_type(name: str, value: Any, types: tuple[type, ...], allowed: str) -> None:
    if value is not None and not isinstance(value, types):
        raise ParameterTypeError.out_of_range(name, allowed, value)


def _optional_int(value: int | None) -> int | None:
    return None if value is None else int(value)


def _texts(name: str, values: Sequence[str] | None) -> tuple[str, ...]:
    _require_type(name, values, (list, tuple), "a list of str")
    for value in values or ():
        if not isinstance(value, str):
            raise ParameterTypeError.out_of_range(name, "a list of str", value)
    return tuple(values or ())


def _id_sequences(name: str, values: Sequence[Any] | None) -> tuple[tuple[int, ...], ...]:
    """Ids and lists of ids alike as tuples of ids."""
    _require_type(name, values, (list, tuple), "a list of token ids, or of lists of token ids")
    sequences = tuple(tuple(v) if isinstance(v, (list, tuple)) else (v,) for v in values or ())
    for ids in sequences:
        if not ids:
            raise RequestError.out_of_range(name, "token ids or non-empty lists of token ids", [])
        for token in ids:
            _require_int(name, token, 0)
    return tuple(tuple(int(token) for token in ids) for ids in sequences)


def _single_ids(name: str, values: Sequence[Any] | None) -> tuple[int, ...]:
    return tuple(ids[0] for ids in _id_sequences(name, values) if len(ids) == 1)
