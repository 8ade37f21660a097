"""What every runner shares: JSON lines on stdin and stdout, prompts, and how rates come from times.

A runner is started by the Python of its engine's own environment, so this module needs the standard library only.

One request per line, one reply per line, in order:

    {"command": "load", "model": PATH, "threads": 2, "max_batch": 32, "kv_tokens": 8192, "settings": {}}
        ->  {"ok": true, "version": …, "details": …, "seconds": …}
    {"command": "run", "kind": "decode", "batch": 8, "prompt_tokens": 128, "output_tokens": 128, "shortest": 0, "seed": 0}
        ->  {"ok": true, "rates": {"": …}, "seconds": …}
    {"command": "exit"}

Rates are in tokens per second; a case with one rate calls it "", "long" has "prefill" and "decode".
A request that fails is answered by {"ok": false, "error": …}.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Case", "GeneratingRunner", "Job", "Runner", "offline_prompts", "phases", "random_prompts", "serve"]


@dataclass(frozen=True)
class Job:
    """What to load: a GGUF file, for so many threads, sequences at once and tokens of KV cache.

    `settings` are further ones of the engine, by its own names.
    """

    model: str
    threads: int
    max_batch: int
    kv_tokens: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What to run: `kind` "decode", "prefill", "long" or "offline"; `seed` makes the prompts.

    The lengths of an offline case are uniform between `shortest` and `prompt_tokens` or `output_tokens`.
    """

    kind: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    shortest: int
    seed: int


class Runner(ABC):
    """One engine."""

    @abstractmethod
    def load(self, job: Job) -> dict[str, str]:
        """Load and warm up. Returns the engine's `version` and `details` worth printing."""

    @abstractmethod
    def measure(self, case: Case) -> dict[str, float]:
        """Run a case and return its rates in tokens per second."""


class GeneratingRunner(Runner):
    """An engine with a Python interface that takes token ids: the rates follow from timing it from outside."""

    vocab_size: int  # set by `load`

    @abstractmethod
    def generate(self, prompts: list[list[int]], output_tokens: list[int]) -> list[int]:
        """Continue all prompts greedily, past any end token, each to its own length. Returns how many tokens each got."""

    def token_times(self, prompts: list[list[int]], output_tokens: int) -> list[list[float]]:
        """As `generate`, but returns when each token of each sequence was there, in seconds of any clock that began before
        the call. For engines whose offline interface does not tell, long cases are an error."""
        raise RuntimeError(f"{type(self).__name__} cannot tell when its tokens come; leave long cases out of --cases")

    def warm_up(self) -> None:
        self.generate(random_prompts([32, 32], self.vocab_size, seed=1), [8, 8])

    def measure(self, case: Case) -> dict[str, float]:
        """Prefill: prompt tokens / time to one output token. Decode: the tokens after each first one / the time they add.

        Long: `phases`. Offline: all tokens in and out / time.
        """
        if case.kind == "offline":
            prompts, lengths = offline_prompts(case, self.vocab_size)
            return {"": (sum(map(len, prompts)) + sum(lengths)) / self._time(prompts, lengths)}
        prompts = random_prompts([case.prompt_tokens] * case.batch, self.vocab_size, case.seed)
        if case.kind == "long":
            return phases(case, *self._token_times(prompts, case.output_tokens))
        first = self._time(prompts, [1] * case.batch)
        if case.kind == "prefill":
            return {"": case.batch * case.prompt_tokens / first}
        whole = self._time(prompts, [case.output_tokens] * case.batch)
        if whole <= first:
            raise RuntimeError(
                f"{case.output_tokens} tokens took {whole:.3f} s and one took {first:.3f} s: is the machine busy?"
            )
        return {"": case.batch * (case.output_tokens - 1) / (whole - first)}

    def _time(self, prompts: list[list[int]], output_tokens: list[int]) -> float:
        start = time.perf_counter()
        counts = self.generate(prompts, output_tokens)
        seconds = time.perf_counter() - start
        _check(counts, output_tokens)
        return seconds

    def _token_times(self, prompts: list[list[int]], output_tokens: int) -> tuple[float, list[list[float]]]:
        start = time.perf_counter()
        times = self.token_times(prompts, output_tokens)
        _check([len(own) for own in times], [output_tokens] * len(prompts))
        return start, times


def phases(case: Case, start: float, times: Sequence[Sequence[float]]) -> dict[str, float]:
    """The two rates of a long case, from the moments of every sequence's tokens.

    Prefill: all prompt tokens / the time until every sequence has its first token. Decode: the tokens of the time in which all
    sequences decode, after the last first token and up to the first last one, / that time.
    """
    begin, end = max(own[0] for own in times), min(own[-1] for own in times)
    decoded = sum(begin < moment <= end for own in times for moment in own)
    if not decoded:
        raise RuntimeError(f"no time in which all {len(times)} sequences decode; give them more output tokens")
    return {"prefill": case.batch * case.prompt_tokens / (begin - start), "decode": decoded / (end - begin)}


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int) -> list[list[int]]:
    """A prompt of token ids for each length, from the middle of the vocabulary: no control tokens, no rare leftovers."""
    numbers = random.Random(f"{seed} {len(lengths)} {lengths[0]}")
    return [[numbers.randrange(vocab_size // 16, vocab_size // 2) for _ in range(length)] for length in lengths]


def offline_lengths(case: Case) -> tuple[list[int], list[int]]:
    """How many tokens go into and come out of each request of an offline case."""
    numbers = random.Random(f"offline {case.seed}")
    inputs = [numbers.randint(case.shortest, case.prompt_tokens) for _ in range(case.batch)]
    return inputs, [numbers.randint(case.shortest, case.output_tokens) for _ in range(case.batch)]


def offline_prompts(case: Case, vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """The prompts of an offline case, and the lengths of their outputs."""
    inputs, outputs = offline_lengths(case)
    return random_prompts(inputs, vocab_size, case.seed), outputs


def serve(runner: Runner) -> None:
    """Answer requests until "exit" or the end of stdin."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print must not come between the replies
    for line in sys.stdin:
        request = json.loads(line)
        command = request.pop("command")
        if command == "exit":
            break
        try:
            reply = {"ok": True, **_answer(runner, command, request)}
        except Exception as error:
            traceback.print_exc()
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _answer(runner: Runner, command: str, request: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    answer: dict[str, Any]
    if command == "load":
        answer = {**runner.load(Job(**request))}
    elif command == "run":
        answer = {"rates": runner.measure(Case(**request))}
    else:
        raise ValueError(f"command must be load, run or exit, got {command!r}")
    return {**answer, "seconds": time.perf_counter() - start}


def _check(counts: list[int], wanted: list[int]) -> None:
    if counts != wanted:
        raise RuntimeError(f"wanted {wanted} tokens for the prompts, got {counts}")
