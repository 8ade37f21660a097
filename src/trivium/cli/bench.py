"""`trivium bench`: how fast a model runs on this machine."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trivium.cli.options import EngineCommand, engine_options, read_config

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.engine.outputs import OutputDelta
    from trivium.engine.request import GenerationRequest

__all__ = ["command"]

Function = TypeVar("Function", bound=Callable[..., Any])

_MAX_NUM_SEQS = 4096  # the most that EngineConfig allows

_NOT_HERE = (
    "seed",
    "enable_prefix_caching",
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

    @property
    def per_token(self) -> float:
        """Mean seconds between tokens; 0 for a single one."""
        return (self.total - self.first_token) / (self.num_tokens - 1) if self.num_tokens > 1 else 0.0


@click.group("bench")
def command() -> None:
    """Measure latency or throughput, with prompts of random tokens and without the prefix cache."""


def _lengths(text: str) -> tuple[int, int]:
    """A number of tokens, or a range MIN:MAX from which each prompt draws its own."""
    low, colon, high = text.partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()) or not 1 <= int(low) <= int(high or low):
        raise click.BadParameter(f"must be a number of tokens >= 1, or MIN:MAX, got {text!r}")
    return int(low), int(high or low)


def _length_option(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, type=_lengths, default="128", show_default=True, metavar="N|MIN:MAX", help=text)


def _common(function: Function) -> Function:
    function = engine_options(without=_NOT_HERE)(function)
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)
    return click.option("--seed", default=0, show_default=True, help="Of the random tokens.")(function)


@command.command("latency", cls=EngineCommand)
@click.option("--input-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Prompts at once.")
@click.option("--iters", type=click.IntRange(1), default=5, show_default=True, help="Measured runs.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Runs before them.")
@_common
def latency(
    input_len: int, output_len: int, batch_size: int, iters: int, warmup: int, seed: int, as_json: bool, **flags: Any
) -> None:
    """How long a batch of equal prompts takes.

    TTFT is the time to an answer's first token, TPOT the mean time of each further token.
    """
    flags["max_num_seqs"] = flags["max_num_seqs"] or min(batch_size, _MAX_NUM_SEQS)  # the rest waits
    with _open(flags, batch_size) as engine:
        draw = random.Random(seed)
        runs: list[list[Timing]] = []
        for i in range(warmup + iters):
            timings = _run(engine, [_request(engine, draw, input_len, output_len) for _ in range(batch_size)])
            if i >= warmup:
                runs.append(timings)
    answers = [timing for run in runs for timing in run]
    totals = [max(timing.total for timing in run) for run in runs]
    report = {
        "input_len": input_len,
        "output_len": output_len,
        "batch_size": batch_size,
        "iters": iters,
        "ttft_seconds": _spread([timing.first_token for timing in answers]),
        "tpot_seconds": _spread([timing.per_token for timing in answers]),
        "total_seconds": _spread(totals),
        "output_tokens_per_second": _spread([batch_size * output_len / total for total in totals]),
    }
    _show(report, as_json)


@command.command("throughput", cls=EngineCommand)
@click.option("--num-prompts", type=click.IntRange(1), default=64, show_default=True, help="Prompts, all sent at once.")
@_length_option("--input-len", "Tokens of each prompt.")
@_length_option("--output-len", "Tokens of each answer.")
@_common
def throughput(
    num_prompts: int, input_len: tuple[int, int], output_len: tuple[int, int], seed: int, as_json: bool, **flags: Any
) -> None:
    """How many prompts and tokens per second a big batch gets through."""
    with _open(flags, num_prompts) as engine:
        draw = random.Random(seed)
        requests = [_request(engine, draw, draw.randint(*input_len), draw.randint(*output_len)) for _ in range(num_prompts)]
        start = time.monotonic()
        timings = _run(engine, requests)
        seconds = time.monotonic() - start
    tokens_in = sum(len(request.prompt_token_ids) for request in requests)
    tokens_out = sum(timing.num_tokens for timing in timings)
    report = {
        "num_prompts": num_prompts,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "seconds": seconds,
        "requests_per_second": num_prompts / seconds,
        "input_tokens_per_second": tokens_in / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "ttft_seconds": _spread([timing.first_token for timing in timings]),
        "tpot_seconds": _spread([timing.per_token for timing in timings]),
    }
    _show(report, as_json)


def _open(flags: dict[str, Any], max_waiting: int) -> Engine:
    from trivium.cli.answer import open_engine

    return open_engine(read_config(flags, enable_prefix_caching=False, max_waiting=max_waiting))


def _request(engine: Engine, draw: random.Random, input_len: int, output_len: int) -> GenerationRequest:
    from trivium.engine.request import GenerationRequest
    from trivium.engine.sampling import SamplingOptions

    vocab_size = engine.model_info.vocab_size
    return GenerationRequest(
        f"bench-{draw.getrandbits(64):x}",
        [draw.randrange(vocab_size) for _ in range(input_len)],
        SamplingOptions(temperature=0.0, max_tokens=output_len, min_tokens=output_len, ignore_eos=True),
    )


def _run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Timing]:
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


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, and the values that 90 and 99 of 100 do not exceed (nearest rank)."""
    ordered = sorted(values)

    def percentile(percent: int) -> float:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return {
        "mean": statistics.fmean(ordered),
        "median": statistics.median(ordered),
        "p90": percentile(90),
        "p99": percentile(99),
    }


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        label = name.removesuffix("_seconds").replace("_", " ")
        unit = " ms" if name.endswith("_seconds") else ""
        if isinstance(value, dict):
            scale = 1000 if unit else 1
            figures = "  ".join(f"{key} {scale * figure:.2f}{unit}" for key, figure in value.items())
        else:
            figures = f"{value:.2f}" if isinstance(value, float) else str(value)
        click.echo(f"{label:<26} {figures}")
