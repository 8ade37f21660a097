"""Whether a request can be served by this model and this engine."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trivium.config import EngineConfig
from trivium.engine.request import EmbeddingSpan, GenerationRequest
from trivium.errors import PromptTooLongError, RequestError
from trivium.models.spec import DecoderSpec

__all__ = ["RequestValidator"]


class RequestValidator:
    """Checks requests against one model, whose context and KV cache hold `max_model_len` tokens, prompt and output together."""

    def __init__(self, config: EngineConfig, spec: DecoderSpec, max_model_len: int) -> None:
        self._config = config
        self._spec = spec
        self._max_model_len = max_model_len

    def check(self, request: GenerationRequest) -> None:
        """Raise `RequestError` for what can never be served; PromptTooLongError for lengths."""
        self._check_ids("prompt_token_ids", request.prompt_token_ids)
        self._check_length(request)
        if request.n > self._config.max_waiting:
            raise RequestError.out_of_range("n", f"at most {self._config.max_waiting} (max_waiting)", request.n)
        sampling = request.sampling
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        for name in ("stop_token_sequences", "bad_words_token_ids"):
            for ids in getattr(sampling, name):
                self._check_ids(name, ids)
        self._check_logprobs("logprobs", sampling.logprobs)
        self._check_logprobs("prompt_logprobs", sampling.prompt_logprobs)
        for span in request.embeddings:
            self._check_embeddings(span, len(request.prompt_token_ids))
        self._check_positions(request)

    def max_tokens(self, request: GenerationRequest) -> int:
        """Output tokens the request may have: what it asks for, at most the room left."""
        room = self._max_model_len - len(request.prompt_token_ids)
        return room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)

    def _check_length(self, request: GenerationRequest) -> None:
        prompt, output = len(request.prompt_token_ids), max(1, request.sampling.min_tokens)
        if prompt + output > self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens and asks for at least {output} more, "
                f"but prompt and output together may have {self._max_model_len}",
                field="prompt",
                allowed=f"at most {self._max_model_len - output} tokens",
                value=prompt,
            )

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        vocab_size = self._spec.vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise RequestError.out_of_range(name, f"token ids from 0 to {vocab_size - 1}", token)

    def _check_logprobs(self, name: str, value: int | None) -> None:
        limit = self._config.max_logprobs
        if value is None or limit == -1:
            return
        if not 0 <= value <= limit:
            raise RequestError.out_of_range(name, f"an integer from 0 to {limit} (max_logprobs)", value)

    def _check_embeddings(self, span: EmbeddingSpan, prompt_length: int) -> None:
        if not isinstance(span.digest, bytes):
            raise RequestError.out_of_range("embeddings", "a digest of bytes", span.digest)
        hidden = self._spec.hidden_size
        values = span.values
        if values.dtype != np.float32 or values.ndim != 2 or values.shape[1] != hidden:
            raise RequestError.out_of_range("embeddings", f"float32 [positions, {hidden}]", f"{values.dtype} {values.shape}")
        if span.start < 0 or span.start + len(values) > prompt_length:
            place = f"{span.start}..{span.start + len(values) - 1}"
            raise RequestError.out_of_range("embeddings", f"inside the prompt's {prompt_length} positions", place)
        for layer, added in span.layer_additions.items():
            if not 0 <= layer < self._spec.num_layers:
                raise RequestError.out_of_range("layer_additions", f"layers from 0 to {self._spec.num_layers - 1}", layer)
            if added.dtype != np.float32 or added.shape != values.shape:
                raise RequestError.out_of_range("layer_additions", f"float32 {values.shape}", f"{added.dtype} {added.shape}")

    def _check_positions(self, request: GenerationRequest) -> None:
        ids = request.position_ids
        if ids is None:
            return
        if self._spec.rope.sections is None:
            raise RequestError.out_of_range("position_ids", "unset: this model's positions have one component", ids.shape)
        if ids.dtype != np.int32 or ids.shape != (3, len(request.prompt_token_ids)) or int(ids.min()) < 0:
            allowed = f"int32 [3, {len(request.prompt_token_ids)}] without negative values"
            raise RequestError.out_of_range("position_ids", allowed, f"{ids.dtype} {ids.shape}")
