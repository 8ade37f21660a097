"""From `SamplingOptions` to the native core's `Sampler`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.engine.sampling import SamplingOptions
from trivium.engine.stop_strings import StopPatterns
from trivium.engine.stopping import StopRule
from trivium.errors import RequestError

if TYPE_CHECKING:
    from trivium._native import Sampler
    from trivium.models.tokenizer import Tokenizer

__all__ = ["ResolvedSampling", "SamplerFactory", "sample_seed"]


_MAX_WINDOW = 2**31 - 1  # tokens; no text is longer

# The sampler's arguments under their names in a request, where they differ.
_FIELDS = {"suppressed": "stop_token_ids", "bias_ids": "logit_bias", "bias_values": "logit_bias"}


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a request: `seed` itself for the first, a 64-bit hash (BLAKE2b) of both for the others."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """What all requests with the same `SamplingOptions` object share. `arguments` are the sampler's."""

    sampling: SamplingOptions
    arguments: dict[str, Any]
    stop_rule: StopRule
    stop_patterns: StopPatterns | None


class SamplerFactory:
    """Makes samplers for one model. `sampler_type` is `trivium._native.Sampler`, or a stand-in with the same arguments."""

    def __init__(
        self, sampler_type: type[Sampler], tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._sampler_type = sampler_type
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._last = threading.local()

    def resolve(self, sampling: SamplingOptions) -> ResolvedSampling:
        """What follows from sampling options. RequestError if no sampler can be made of them. Called from any thread.

        Hundreds of prompts may share one object with hundreds of bad words to encode, and each is validated and then submitted,
        on one thread. So each thread remembers its last result.
        """
        last: ResolvedSampling | None = getattr(self._last, "resolved", None)
        if last is None or last.sampling is not sampling:
            last = self._last.resolved = ResolvedSampling(
                sampling,
                self._checked_arguments(sampling),
                StopRule(sampling, self._eos_token_ids),
                StopPatterns(sampling.stop) if sampling.stop else None,
            )
        return last

    def forget(self) -> None:
        """What this thread remembers is not needed any more; bad words may be megabytes."""
        self._last.resolved = None

    def _checked_arguments(self, sampling: SamplingOptions) -> dict[str, Any]:
        arguments = self._arguments(sampling)
        try:
            self.make(arguments, [], 0)
        except (TypeError, ValueError) as error:
            name, wrong, rest = str(error).partition(" must be ")
            if not wrong:
                raise RequestError(f"the sampling options cannot be used: {error}") from error
            field = _FIELDS.get(name, name)
            raise RequestError(f"{field} must be {rest}", field=field, allowed=rest.rpartition(", got ")[0]) from error
        return arguments

    def _arguments(self, sampling: SamplingOptions) -> dict[str, Any]:
        bias = sorted(sampling.logit_bias.items())
        return {
            "vocab_size": self._vocab_size,
            "temperature": sampling.temperature,
            "top_k": min(max(sampling.top_k, 0), self._vocab_size),
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "penalty_window": min(sampling.penalty_window or 0, _MAX_WINDOW),
            "min_tokens": sampling.min_tokens,
            "suppressed": np.array(self._suppressed(sampling), np.int32),
            "bad_words": self._bad_words(sampling),
            "bias_ids": np.array([token for token, _ in bias], np.int32),
            "bias_values": np.array([value for _, value in bias], np.float32),
            "logprobs": -2 if sampling.logprobs is None else min(sampling.logprobs, self._vocab_size),
            "logprobs_mode": sampling.logprobs_mode,
        }

    def make(self, arguments: dict[str, Any], prompt: list[int], seed: int) -> Sampler:
        """A sampler with no output yet."""
        return self._sampler_type(prompt=np.array(prompt, np.int32), seed=seed, **arguments)

    def _suppressed(self, sampling: SamplingOptions) -> list[int]:
        """What must not come before `min_tokens`: whatever would end the sample with one token."""
        if not sampling.min_tokens:
            return []
        single = (ids[0] for ids in sampling.stop_token_sequences if len(ids) == 1)
        return sorted({*self._eos_token_ids, *sampling.stop_token_ids, *single})

    def _bad_words(self, sampling: SamplingOptions) -> list[list[int]]:
        """Token sequences of each word at the start of a text and after a space, which tokenizers spell differently."""
        spellings: Iterable[tuple[int, ...]] = sampling.bad_words_token_ids
        for word in sampling.bad_words:
            bare = word.lstrip() or word
            spellings = (*spellings, tuple(self._tokenizer.encode(bare)), tuple(self._tokenizer.encode(" " + bare)))
        return [list(ids) for ids in dict.fromkeys(spellings) if ids]
