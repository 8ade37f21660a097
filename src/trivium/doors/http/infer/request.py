"""From the body of `/infer` to what the engine is asked."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.doors.http.door import HttpDoor
from trivium.doors.http.infer.parameters import MAX_TOKEN_ID, MAX_TOKENS, read_parameters
from trivium.doors.http.infer.sampling import resolve_sampling
from trivium.doors.http.limits import MAX_PROMPT_CHARS
from trivium.doors.prompt_size import check_size
from trivium.engine.request import GenerationRequest
from trivium.errors import PromptTooLongError, RequestError
from trivium.media import TextPart, parse_parts

__all__ = ["InferReader", "InferRequest"]

log = logging.getLogger("trivium.http")

_KEYS = frozenset({"inputs", "input_id", "stream", "parameters"})
_MAX_NEW_TOKENS = 20
_TIMEOUT = 600  # seconds
_LEAST_PRIORITY = 5  # that of the engine's 0
_MAX_IGNORED = 1000  # names that are remembered, so that a hostile client cannot fill memory or log
_SHOWN_CHARS = 80  # of such a name

_LARGE_SEED = 2**63  # from here on the log warns: such a seed is no signed 64-bit integer
_MAX_DRAWN_SEED = 2**32 - 1  # fits every client's integers


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One body, read. `handed_over` is when the engine gets it, on the time.monotonic clock."""

    request: GenerationRequest
    stream: bool
    details: bool
    handed_over: float


class InferReader:
    """Reads bodies for one door, whose model is loaded. May be used from several threads."""

    def __init__(self, door: HttpDoor) -> None:
        self._config = door.config
        self._engine = door.engine
        self._random = random.Random(door.engine.config.seed)
        self._ignored: set[str] = set()

    def read(self, body: Mapping[str, Any], request_id: str, arrival: float) -> InferRequest:
        """Check a body that arrived at `arrival`, and make its request.

        The order of checks is the vendor's. Null counts as not given. Unknown keys are ignored, and logged the first time.
        Raises `RequestError` naming the key, `PromptTooLongError`.
        """
        self._ignore(name for name in body if name not in _KEYS)
        token_ids = self._prompt(body)
        given, unknown = read_parameters(body.get("parameters"))
        self._ignore(f"parameters.{name}" for name in unknown)
        stream = body.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise RequestError.out_of_range("stream", "true or false", stream)
        request = GenerationRequest(
            request_id=request_id,
            prompt_token_ids=self._checked(token_ids),
            sampling=resolve_sampling(
                given, self._engine.model_info, max_tokens=self._max_tokens(given), seed=self._seed(given)
            ),
            priority=given.get("priority", _LEAST_PRIORITY) - _LEAST_PRIORITY,
            timeout=self._timeout(given),
            streamed=bool(stream),
            arrival_time=arrival,
        )
        return InferRequest(request, bool(stream), given.get("details", False), handed_over=time.monotonic())

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt's token ids, from `inputs` or `input_id`."""
        inputs, ids = body.get("inputs"), body.get("input_id")
        if (inputs is None) == (ids is None):
            got = "neither" if inputs is None else "both"
            raise RequestError(f"exactly one of inputs and input_id must be given, got {got}", field="inputs")
        if inputs is not None:
            text = self._text(inputs)
            if self._config.infer_truncation == "none":
                check_size(self._engine, text, "inputs", self._config.max_input_len)
            ids = self._engine.tokenizer.encode_prompt(text)
            if len(ids) > MAX_TOKENS:
                raise _wrong_size("inputs", f"a prompt of at most {MAX_TOKENS} tokens", len(ids))
            return ids
        if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_TOKENS:
            raise RequestError.out_of_range("input_id", f"a list of 1 to {MAX_TOKENS} token ids", ids)
        for i, token in enumerate(ids):
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise RequestError.out_of_range(f"input_id[{i}]", f"an integer from 0 to {MAX_TOKEN_ID}", token)
        return ids

    def _text(self, inputs: object) -> str:
        """A string as it is, even one that looks like JSON; of a list the texts, joined with nothing between."""
        if isinstance(inputs, list):
            parts = parse_parts(inputs, "inputs", lambda name: self._ignore([f"inputs[].{name}"]))
            texts = [part.text for part in parts if isinstance(part, TextPart)]
            if len(texts) < len(parts):
                kinds = sorted({part.kind for part in parts if not isinstance(part, TextPart)})
                raise RequestError(
                    f"inputs must be text alone, got {', '.join(kinds)}: the model {self._engine.model_info.name!r} "
                    "takes text only",
                    field="inputs",
                    allowed="text",
                )
            inputs = "".join(texts)
        if not isinstance(inputs, str):
            raise RequestError.out_of_range("inputs", "a string, or a list of parts", inputs)
        if not 0 < len(inputs) <= MAX_PROMPT_CHARS:
            raise _wrong_size("inputs", f"a text of 1 to {MAX_PROMPT_CHARS} characters (4 MB)", len(inputs))
        return inputs

    def _checked(self, token_ids: list[int]) -> list[int]:
        """What the model can take: cut, if the configuration wants that, or refused."""
        vocab_size = self._engine.model_info.vocab_size
        worst = max(token_ids, default=0)
        if worst >= vocab_size:
            allowed = f"token ids from 0 to {vocab_size - 1}, which the model knows"
            raise RequestError(
                f"the prompt must be of {allowed}, got {worst}", field="prompt_token_ids", allowed=allowed, value=worst
            )
        most = self._engine.model_info.max_model_len - 1
        most = min(most, self._config.max_input_len or most)
        if len(token_ids) <= most:
            return token_ids
        if self._config.infer_truncation == "none":
            raise PromptTooLongError(
                f"the prompt must have at most {most} tokens, got {len(token_ids)}",
                field="prompt",
                allowed=f"at most {most} tokens",
                value=len(token_ids),
            )
        return token_ids[:most] if self._config.infer_truncation == "right" else token_ids[-most:]

    def _max_tokens(self, given: Mapping[str, Any]) -> int:
        wanted: int = given.get("max_new_tokens", _MAX_NEW_TOKENS)
        return min(wanted, self._config.max_output_len or wanted)

    def _timeout(self, given: Mapping[str, Any]) -> float:
        wanted: float = given.get("timeout", _TIMEOUT)
        return min(wanted, self._config.request_timeout or wanted)

    def _seed(self, given: Mapping[str, Any]) -> int:
        seed: int | None = given.get("seed")
        if seed is None:
            return self._random.randint(1, _MAX_DRAWN_SEED)
        if seed >= _LARGE_SEED:
            log.warning("seed %d is near the maximum of 2^64 - 1: it is used, but may be read wrongly as a signed number", seed)
        return seed

    def _ignore(self, names: Iterable[str]) -> None:
        for name in names:
            shown = name[:_SHOWN_CHARS]
            if shown not in self._ignored and len(self._ignored) < _MAX_IGNORED:
                self._ignored.add(shown)
                log.warning("unknown key %r of /infer: ignored", shown)


def _wrong_size(field: str, allowed: str, size: int) -> RequestError:
    return RequestError(f"{field} must be {allowed}, got {size}", field=field, allowed=allowed, value=size)
