"""`trivium bench latency`."""

from __future__ import annotations

import random
from typing import Any

import click

from trivium.cli.bench.local import Timing, common_options, make_request, open_engine, run, tpot
from trivium.cli.bench.report import rates, show, spread
from trivium.cli.options import EngineCommand

__all__ = ["command"]

_MAX_NUM_SEQS = 4096  # the most that EngineConfig allows


@click.command("latency", cls=EngineCommand)
@click.option("--input-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Prompts at once.")
@click.option("--iters", type=click.IntRange(1), default=5, show_default=True, help="Measured runs.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Runs before them.")
@common_options
def command(
    input_len: int, output_len: int, batch_size: int, iters: int, warmup: int, seed: int, as_json: bool, **flags: Any
) -> None:
    """How long a batch of equal prompts takes, without prefix cache and prompt lookup.

    TTFT is the time to an answer's first token, TPOT the mean time of each further token.
    """
    flags["max_num_seqs"] = flags["max_num_seqs"] or min(batch_size, _MAX_NUM_SEQS)  # the rest waits
    with open_engine(flags, batch_size) as engine:
        draw = random.Random(seed)
        runs: list[list[Timing]] = []
        for i in range(warmup + iters):
            timings = run(engine, [make_request(engine, draw, input_len, output_len) for _ in range(batch_size)])
            if i >= warmup:
                runs.append(timings)
    answers = [timing for timings in runs for timing in timings]
    totals = [max(timing.total for timing in timings) for timings in runs]
    report = {
        "input_len": input_len,
        "output_len": output_len,
        "batch_size": batch_size,
        "iters": iters,
        "ttft_seconds": spread([timing.first_token for timing in answers]),
        "tpot_seconds": spread(tpot(answers)),
        "total_seconds": spread(totals),
        "output_tokens_per_second": rates([batch_size * output_len / total for total in totals]),
    }
    show(report, as_json)
