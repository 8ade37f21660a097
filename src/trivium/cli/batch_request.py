"""From the body of an OpenAI request (`/v1/chat/completions`, `/v1/completions`) to what the engine is asked."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import GuidedOptions, SamplingOptions
from trivium.errors import RequestError

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.parsing import ReasoningParser

__all__ = ["CHAT", "COMPLETIONS", "BodyReader", "OpenAIRequest"]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

log = logging.getLogger(__name__)

_COMPLETION_TOKENS = 16  # of a completion without max_tokens, as OpenAI has it
_MAX_SAMPLES = 128
_MAX_ID_DIGITS = 10  # of a token id; Python refuses to read a number of thousands of digits

# Sampling fields with the engine's own name; None stands for the model's default, else for this one.
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
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}

# Of no effect on the answer: the loaded model answers, whoever asks.
_NOTED = {"model", "user", "metadata"}
_SHARED = {
    *_DEFAULTS,
    *_GUIDED,
    *_NOTED,
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "seed",
    "n",
    "best_of",
    "logprobs",
    "response_format",
    "stream",
}
_FIELDS = {
    CHAT: _SHARED | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "chat_template_kwargs"},
    COMPLETIONS: _SHARED | {"prompt"},
}
_KNOWN = _FIELDS[CHAT] | _FIELDS[COMPLETIONS]

# OpenAI's fields that would change the answer and cannot be honoured: what they may be is what has no effect.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
}


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """One body, read. A completion with several prompts is several requests; `n` samples of each are choices, in order."""

    kind: str  # CHAT or COMPLETIONS
    requests: tuple[GenerationRequest, ...]
    has_tools: bool = False

    @property
    def num_samples(self) -> int:
        return sum(request.n for request in self.requests)


class BodyReader:
    """Reads bodies for one engine. `reasoning` tells whether a prompt ends inside an open thought."""

    def __init__(self, engine: Engine, reasoning: ReasoningParser | None = None) -> None:
        self._engine = engine
        self._reasoning = reasoning
        self._ignored: set[str] = set()

    def read(self, kind: str, body: Mapping[str, Any], request_id: str) -> OpenAIRequest:
        """Check a body and make its requests, whose ids begin with `request_id`.

        Null counts as not given. Unknown fields are ignored, and logged the first time. Raises `RequestError` naming the field.
        """
        given = {name: value for name, value in body.items() if value is not None}
        self._check_names(kind, given)
        if given.get("stream", False) is not False:
            raise RequestError.out_of_range("stream", "false in a batch", given["stream"])
        sampling = _read_sampling(kind, given, self._engine.model_info.generation_defaults)
        n = _integer(given, "n", 1, _MAX_SAMPLES) or 1
        _integer(given, "best_of", 1, n)  # the best of no more than all of them: all
        tools = _read_tools(given)
        prompts = self._conversation(given, tools) if kind == CHAT else self._prompts(given)
        requests = tuple(
            GenerationRequest(
                request_id=f"{request_id}-{i}",
                prompt_token_ids=token_ids,
                sampling=sampling,
                n=n,
                thinking=thinking,
                arrival_time=time.monotonic(),
            )
            for i, (token_ids, thinking) in enumerate(prompts)
        )
        for request in requests:
            self._engine.validate(request)
        return OpenAIRequest(kind, requests, has_tools=bool(tools))

    def _check_names(self, kind: str, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in _FIELDS[kind]:
                continue
            if name in _KNOWN:
                raise RequestError(f"{name!r} is no field of {kind}", field=name, value=given[name])
            if name in _WITHOUT_EFFECT:
                if given[name] not in _WITHOUT_EFFECT[name]:
                    allowed = " or ".join(json.dumps(value) for value in _WITHOUT_EFFECT[name])
                    raise RequestError.out_of_range(name, allowed, given[name])
            elif name not in self._ignored:
                self._ignored.add(name)
                log.warning("unknown field %.80r of %s: ignored", name, kind)

    def _conversation(self, given: Mapping[str, Any], tools: Any) -> list[tuple[list[int], bool | None]]:
        template = self._engine.chat_template
        if template is None:
            raise RequestError(f"the model has no chat template; use {COMPLETIONS}, or give it one", field="messages")
        if "messages" not in given:
            raise RequestError("messages must be given", field="messages", allowed="a list of messages")
        variables = _typed(given, "chat_template_kwargs", dict, "an object") or {}
        rendered = template.render(given["messages"], tools=tools, variables=variables)
        thinking = None if self._reasoning is None else self._reasoning.prompt_opens_thought(rendered.text)
        return [(rendered.tokens(self._engine.tokenizer), thinking)]

    def _prompts(self, given: Mapping[str, Any]) -> list[tuple[list[int], bool | None]]:
        """A text, token ids, or a list of texts or of lists of token ids."""
        prompt: Any = given.get("prompt")
        single = isinstance(prompt, str) or (_is_list(prompt) and bool(prompt) and all(map(_is_integer, prompt)))
        prompts = [prompt] if single else prompt
        if not _is_list(prompts) or not prompts:
            raise RequestError.out_of_range("prompt", "a string, token ids, or a list of these", prompt)
        return [(self._encode(item), None) for item in prompts]

    def _encode(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self._engine.tokenizer.encode_prompt(prompt)
        if _is_list(prompt) and all(map(_is_integer, prompt)):
            return list(prompt)
        raise RequestError.out_of_range("prompt", "a string, token ids, or a list of these", prompt)


def _read_sampling(kind: str, given: Mapping[str, Any], model_defaults: Mapping[str, Any]) -> SamplingOptions:
    values = {name: given.get(name, model_defaults.get(name, default)) for name, default in _DEFAULTS.items()}
    for name, (low, high) in _RANGES.items():
        if name in given and not (_is_number(given[name]) and low <= given[name] <= high):
            raise RequestError.out_of_range(name, f"a number from {low:g} to {high:g}", given[name])
    return SamplingOptions(
        **values,
        max_tokens=_max_tokens(kind, given),
        min_tokens=_integer(given, "min_tokens", 0, None) or 0,
        ignore_eos=_typed(given, "ignore_eos", bool, "true or false") or False,
        stop=_stop(given),
        stop_token_ids=_list_of(given, "stop_token_ids", _is_integer, "a list of token ids"),
        logit_bias=_logit_bias(given),
        seed=_integer(given, "seed", 0, None),
        logprobs=_chat_logprobs(given) if kind == CHAT else _integer(given, "logprobs", 0, None),
        guided=_guided(given),
    )


def _max_tokens(kind: str, given: Mapping[str, Any]) -> int | None:
    """`max_completion_tokens` is the newer name of `max_tokens`, and stands above it. None: the room left."""
    limits = [_integer(given, name, 1, None) for name in ("max_completion_tokens", "max_tokens")]
    return limits[0] or limits[1] or (_COMPLETION_TOKENS if kind == COMPLETIONS else None)


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted = _typed(given, "logprobs", bool, "true or false")
    top = _integer(given, "top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs", allowed="logprobs: true", value=top)
    return (top or 0) if wanted else None


def _stop(given: Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(given.get("stop"), str):
        return (given["stop"],)
    return _list_of(given, "stop", lambda value: isinstance(value, str), "a string or a list of strings")


def _logit_bias(given: Mapping[str, Any]) -> dict[int, float]:
    bias = _typed(given, "logit_bias", dict, "an object of token ids and numbers") or {}
    for token, value in bias.items():
        if not (token.isdecimal() and len(token) <= _MAX_ID_DIGITS) or not (_is_number(value) and -100 <= value <= 100):
            raise RequestError.out_of_range("logit_bias", "an object of token ids and numbers from -100 to 100", bias)
    return {int(token): float(value) for token, value in bias.items()}


def _guided(given: Mapping[str, Any]) -> GuidedOptions | None:
    """Structured output, from `response_format` or one of the fields `guided_…`."""
    kinds = {kind: given[name] for name, kind in _GUIDED.items() if name in given}
    if "choice" in kinds:
        kinds["choice"] = _list_of(given, "guided_choice", lambda value: isinstance(value, str), "a list of strings")
    for name in ("guided_regex", "guided_grammar"):
        _typed(given, name, str, "a string")
    if "json" in kinds and not isinstance(kinds["json"], (str, dict)):
        raise RequestError.out_of_range("guided_json", "a JSON schema", kinds["json"])
    kinds |= _response_format(given)
    return GuidedOptions(**kinds) if kinds else None


def _response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    wanted = _typed(given, "response_format", dict, "an object with a type") or {"type": "text"}
    kind = wanted.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    described = wanted.get("json_schema")
    if kind == "json_schema" and isinstance(described, dict) and isinstance(described.get("schema"), dict):
        return {"json": described["schema"]}
    allowed = "of type text, json_object, or json_schema with json_schema.schema"
    raise RequestError.out_of_range("response_format", allowed, wanted)


def _read_tools(given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools for the template; none with the choice "none"."""
    tools = _list_of(given, "tools", _is_tool, "a list of {'type': 'function', 'function': {'name': …}}")
    choice = given.get("tool_choice", "auto")
    if choice not in ("none", "auto"):
        raise RequestError.out_of_range("tool_choice", "'none' or 'auto'", choice)
    return list(tools) if tools and choice == "auto" else None


def _is_tool(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _integer(given: Mapping[str, Any], name: str, low: int, high: int | None) -> int | None:
    value = given.get(name)
    if value is None or (_is_integer(value) and low <= value and (high is None or value <= high)):
        return value
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    raise RequestError.out_of_range(name, allowed, value)


def _typed(given: Mapping[str, Any], name: str, kind: type, allowed: str) -> Any:
    value = given.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise RequestError.out_of_range(name, allowed, value)


def _list_of(given: Mapping[str, Any], name: str, fits: Callable[[Any], bool], allowed: str) -> tuple[Any, ...]:
    values = given.get(name, [])
    if _is_list(values) and all(map(fits, values)):
        return tuple(values)
    raise RequestError.out_of_range(name, allowed, values)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
