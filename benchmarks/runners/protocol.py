"""What every runner shares: JSON lines on stdin and stdout, prompts, and how rates come from times.

A runner is started by the Python of its engine's own environment, so this module needs the standard library only.

One request per line, one reply per line, in order:

    {"command": "load", "model": PATH, "threads": 2, "max_batch": 32}
        ->  {"ok": true, "version": …, "details": …, "seconds": …}
    {"command": "run", "kind": "decode", "batch": 8, "prompt_tokens": 128, "output_tokens": 128, "seed": 0}
        ->  {"ok": true, "tokens_per_second": …, "seconds": …}
    {"command": "exit"}

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
from dataclasses import dataclass
from typing import Any

__all__ = ["Case", "GeneratingRunner", "Job", "Runner", "random_prompts", "serve"]


@dataclass(frozen=True)
class Job:
    """What to load: a GGUF file, for so many threads and sequences at once."""

    model: str
    threads: int
    max_batch: int


@dataclass(frozen=True)
class Case:
    """What to run: `kind` "decode" or "prefill"; `seed` makes the prompts."""

    kind: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    seed: int


class Runner(ABC):
    """One engine."""

    @abstractmethod
    def load(self, job: Job) -> dict[str, str]:
        """Load and warm up. Returns the engine's `version` and `details` worth printing."""

    @abstractmethod
    def measure(self, case: Case) -> float:
        """Run a case and return its rate in tokens per second."""


class GeneratingRunner(Runner):
    """An engine with a Python interface that takes token ids: both kinds of case follow from timing whole calls."""

    vocab_size: int  # set by `load`

    @abstractmethod
    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[int]:
        """Continue all prompts greedily, past any end token. Returns how many tokens each got."""

    def warm_up(self) -> None:
        self.generate(random_prompts(2, 32, self.vocab_size, seed=1), 8)

    def measure(self, case: Case) -> float:
        """Prefill: prompt tokens / time to one output token. Decode: the tokens after each first one / the time they add."""
        prompts = random_prompts(case.batch, case.prompt_tokens, self.vocab_size, case.seed)
        first = self._time(prompts, 1)
        if case.kind == "prefill":
            return case.batch * case.prompt_tokens / first
        whole = self._time(prompts, case.output_tokens)
        return case.batch * (case.output_tokens - 1) / (whole - first)

    def _time(self, prompts: list[list[int]], output_tokens: int) -> float:
        start = time.perf_counter()
        counts = self.generate(prompts, output_tokens)
        seconds = time.perf_counter() - start
        if counts != [output_tokens] * len(prompts):
            raise RuntimeError(f"wanted {output_tokens} tokens for each of {len(prompts)} prompts, got {counts}")
        return seconds


def random_prompts(batch: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `length` token ids each, from the middle of the vocabulary: no control tokens, no rare leftovers."""
    numbers = random.Random(f"{seed} {batch} {length}")
    return [[numbers.randrange(vocab_size // 16, vocab_size // 2) for _ in range(length)] for _ in range(batch)]


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
        answer = {"tokens_per_second": runner.measure(Case(**request))}
    else:
        raise ValueError(f"command must be load, run or exit, got {command!r}")
    return {**answer, "seconds": time.perf_counter() - start}
