"""`trivium bench serve`: a server under load."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivium.cli.bench.lengths import length_option
from trivium.errors import TriviumError

if TYPE_CHECKING:
    from trivium.cli.bench.client import Client
    from trivium.cli.bench.load import Load
    from trivium.cli.bench.outcome import Outcome
    from trivium.cli.bench.prompts import Prompt

__all__ = ["command"]

_GOODPUT = ("ttft", "tpot", "e2el")


def _number(text: str) -> float:
    """NaN, which compares false, for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rate(text: str) -> float:
    rate = _number(text)
    if not rate > 0:
        raise click.BadParameter(f"must be a number of requests per second > 0, or inf, got {text!r}")
    return rate


def _seconds(text: str) -> float:
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"must be a number of seconds > 0, got {text!r}")
    return seconds


def _goodput(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """NAME:MILLISECONDS, several of them with spaces between or the option given several times."""
    limits: dict[str, float] = {}
    for word in " ".join(values).split():
        name, _, text = word.partition(":")
        limit = _number(text)
        if name not in _GOODPUT or not 0 < limit < math.inf:
            raise click.BadParameter(f"must be NAME:MILLISECONDS with a name of {', '.join(_GOODPUT)}, got {word!r}")
        limits[name] = limit
    return limits


@click.command("serve")
@click.option("--base-url", default="http://127.0.0.1:8000", show_default=True, help="Where the server is.")
@click.option(
    "--backend",
    type=click.Choice(["openai", "openai-chat", "infer"]),
    default="openai",
    show_default=True,
    help="API to drive: OpenAI's completions or chat completions, or MindIE's /infer.",
)
@click.option("--endpoint", metavar="PATH", help="Path of the API, where it is not the usual one.")
@click.option("--model", "-m", help="Model (file, folder or name) whose tokenizer counts prompts; without it words count.")
@click.option("--served-model-name", help="Model that requests name; default: the first that the server lists.")
@click.option("--num-prompts", type=click.IntRange(1), default=100, show_default=True, help="Requests in all.")
@click.option(
    "--request-rate",
    type=_rate,
    default="inf",
    show_default=True,
    metavar="RATE",
    help="Requests per second on average, at random (Poisson) times; inf sends all at once.",
)
@click.option("--max-concurrency", type=click.IntRange(1), help="Requests at once; more wait here. Default: no limit.")
@length_option("--input-len", "Tokens of each prompt.")
@length_option("--output-len", "Most tokens of each answer.")
@click.option("--ignore-eos", is_flag=True, help="Have answers go on to their full length (an extension of OpenAI's API).")
@click.option("--seed", default=0, show_default=True, help="Of prompts and times.")
@click.option(
    "--goodput",
    multiple=True,
    callback=_goodput,
    metavar="NAME:MS",
    help="Count requests within limits: ttft:100 tpot:20 e2el:5000, in milliseconds.",
)
@click.option(
    "--timeout", type=_seconds, default="600", show_default=True, metavar="SECONDS", help="The longest a request may take."
)
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key to send; default: OPENAI_API_KEY.")
@click.option("--insecure", is_flag=True, help="Accept any certificate of an https server.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--save-result", type=click.Path(dir_okay=False), metavar="FILE", help="Write figures and every request's times as JSON."
)
def command(
    num_prompts: int,
    input_len: tuple[int, int],
    output_len: tuple[int, int],
    model: str | None,
    seed: int,
    goodput: dict[str, float],
    as_json: bool,
    save_result: str | None,
    **options: Any,
) -> None:
    """How a server answers under load, by the clock of a client.

    TTFT is the time from sending a request to its first token, TPOT the mean time of each further token, ITL the time between
    tokens as they arrive, E2EL the time to the last token. One more request is sent before the others, to see whether the
    server answers.
    """
    from trivium.cli.bench.prompts import load_tokenizer, make_prompts
    from trivium.cli.bench.summary import details, summarise, to_text

    draw = random.Random(seed)
    tokenizer = None if model is None else load_tokenizer(model)
    trial, *prompts = make_prompts(num_prompts + 1, input_len, output_len, draw, tokenizer)
    settings = _settings(options, num_prompts, seed)
    served, outcomes, seconds = asyncio.run(_run(options, trial, prompts, draw))
    summary = summarise(outcomes, seconds, goodput)
    report = {**settings, "model_id": served, **summary}
    click.echo(json.dumps(report, indent=2) if as_json else to_text(summary, settings))
    if save_result is not None:
        Path(save_result).write_text(json.dumps(report | details(outcomes)), encoding="utf-8")
    if not summary["completed"]:
        raise click.exceptions.Exit(1)


def _settings(options: dict[str, Any], num_prompts: int, seed: int) -> dict[str, Any]:
    rate = options["request_rate"]
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": options["backend"],
        "base_url": options["base_url"],
        "num_prompts": num_prompts,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "max_concurrency": options["max_concurrency"],
        "seed": seed,
    }


async def _run(
    options: dict[str, Any], trial: Prompt, prompts: list[Prompt], draw: random.Random
) -> tuple[str | None, list[Outcome], float]:
    """The model's name, what became of each prompt, and the seconds from the first to the last."""
    from trivium.cli.bench.client import Client

    client = Client(options["base_url"], api_key=options["api_key"], verify=not options["insecure"])
    try:
        load = await _prepare(client, options)
        outcome = await load.ask(trial)
        if outcome.error is not None:
            raise TriviumError(f"the server does not answer a first request: {outcome.error}")
        with _Bar(len(prompts)) as bar:
            start = time.perf_counter()
            outcomes = await load.run(prompts, draw, bar.take)
            return load.model, outcomes, time.perf_counter() - start
    finally:
        await client.close()


async def _prepare(client: Client, options: dict[str, Any]) -> Load:
    from trivium.cli.bench.backends import BACKENDS
    from trivium.cli.bench.load import Load, first_model

    backend = BACKENDS[options["backend"]]
    if options["ignore_eos"] and not backend.takes_ignore_eos:
        raise click.UsageError(f"{backend.endpoint} does not know --ignore-eos")
    model = options["served_model_name"]
    if model is None and options["backend"] != "infer":
        model = await first_model(client)
    return Load(
        client,
        backend,
        options["endpoint"] or backend.endpoint,
        model,
        options["ignore_eos"],
        options["request_rate"],
        options["max_concurrency"],
        options["timeout"],
    )


class _Bar:
    """A progress bar, on a terminal."""

    def __init__(self, total: int) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread beside this one
            self._bar = tqdm(total=total, unit="req", dynamic_ncols=True)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def take(self, outcome: Outcome) -> None:
        """A request is over."""
        if self._bar is not None:
            self._bar.update(1)
