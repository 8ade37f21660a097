"""`trivium bench throughput`."""

from __future__ import annotations

import random
import time
from typing import Any

import click

from trivium.cli.bench.lengths import length_option
from trivium.cli.bench.local import common_options, make_request, open_engine, run, tpot
from trivium.cli.bench.report import show, spread
from trivium.cli.options import EngineCommand

__all__ = ["command"]


@click.command("throughput", cls=EngineCommand)
@click.option("--num-prompts", type=click.IntRange(1), default=64, show_default=True, help="Prompts, all sent at once.")
@length_option("--input-len", "Tokens of each prompt.")
@length_option("--output-len", "Tokens of each answer.")
@common_options
def command(
    num_prompts: int, input_len: tuple[int, int], output_len: tuple[int, int], seed: int, as_json: bool, **flags: Any
) -> None:
    """How many prompts and tokens per second a big batch gets through, without prefix cache and prompt lookup.

    One short request more is answered before.
    """
    with open_engine(flags, num_prompts) as engine:
        run(engine, [make_request(engine, random.Random(seed), 1, 2)])
        draw = random.Random(seed)
        requests = [make_request(engine, draw, draw.randint(*input_len), draw.randint(*output_len)) for _ in range(num_prompts)]
        start = time.monotonic()
        timings = run(engine, requests)
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
        "ttft_seconds": spread([timing.first_token for timing in timings]),
        "tpot_seconds": spread(tpot(timings)),
    }
    show(report, as_json)
