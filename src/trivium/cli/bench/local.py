"""What `latency` and `throughput` share: an engine of their own, requests of random tokens, and the times of their answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trivium.cli.options import engine_options, read_config

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.engine.outputs import OutputDelta
    from trivium.engine.request import GenerationRequest

__all__ = ["Timing", "common_options", "make_request", "open_engine", "run", "tpot"]

Function = TypeVar("Function", bound=Callable[..., Any])

_NOT_HERE = (
    "seed",
    "enable_prefix_caching",
    "prompt_lookup",
    "max_waiting",
    "max_logprobs",
    "served_model_name",
    "reasoning_parser",
    "tool_call_parser",
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer: seconds from its request to the first and to the last token, and the number of its tokens."""

    first_token: float
    total: float
    num_tokens: int


def tpot(timings: Sequence[Timing]) -> list[float]:
    """Mean seconds between the tokens of each answer that has more than one; a 0 if none has."""
    longer = [timing for timing in timings if timing.num_tokens > 1]
    return [(timing.total - timing.first_token) / (timing.num_tokens - 1) for timing in longer] or [0.0]


def common_options(function: Function) -> Function:
    """Decorator: `--seed`, `--json` (as `as_json`) and the engine's options."""
    function = engine_options(without=_NOT_HERE)(function)
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)
    return click.option("--seed", default=0, show_default=True, help="Of the random tokens.")(function)


def open_engine(flags: dict[str, Any], max_waiting: int) -> Engine:
    """Load the model of a command's keywords.

    Without the prefix cache, from which repeated runs would profit, and without prompt lookup: greedy text after random tokens
    falls into loops, which guesses would turn into speed that nobody sees elsewhere.
    """
    from trivium.cli import answer

    config = read_config(flags, enable_prefix_caching=False, prompt_lookup=False, max_waiting=max_waiting)
    return answer.open_engine(config)


def make_request(engine: Engine, draw: random.Random, input_len: int, output_len: int) -> GenerationRequest:
    """A greedy request of random tokens, whose answer has exactly so many."""
    from trivium.engine.request import GenerationRequest
    from trivium.engine.sampling import SamplingOptions

    vocab_size = engine.model_info.vocab_size
    return GenerationRequest(
        f"bench-{draw.getrandbits(64):x}",
        [draw.randrange(vocab_size) for _ in range(input_len)],
        SamplingOptions(temperature=0.0, max_tokens=output_len, min_tokens=output_len, ignore_eos=True),
        streamed=False,
    )


def run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Timing]:
    """Send all requests at once and wait for the last; raises what a request failed with."""
    outputs: SimpleQueue[Sequence[OutputDelta]] = SimpleQueue()
    counts = dict.fromkeys((request.request_id for request in requests), 0)
    timings: list[Timing] = []
    now = time.monotonic()
    for request in requests:
        request.arrival_time = now
    engine.submit(requests, lambda deltas: outputs.put(deltas))
    while len(timings) < len(requests):
        for delta in outputs.get():
            if delta.error is not None:
                raise delta.error
            counts[delta.request_id] += len(delta.token_ids)
            if delta.finished:
                times = delta.times
                first, last = times.first_token - times.arrival, times.last_token - times.arrival
                timings.append(Timing(first, last, counts[delta.request_id]))
    return timings
