"""`trivium generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from trivium.cli.options import EngineCommand, engine_options, read_lone_config
from trivium.cli.sampling import resolve_sampling, sampling_options, take_sampling

if TYPE_CHECKING:
    from trivium.cli.answer import Answer
    from trivium.engine.engine import Engine

__all__ = ["command"]

_NOT_HERE = ("seed", "max_num_seqs", "max_waiting", "max_logprobs", "served_model_name", "reasoning_parser", "tool_call_parser")


@click.command("generate", cls=EngineCommand)
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the model's chat template.")
@click.option("--system", help="System message before the prompt.")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text, usage and timings.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line of timings on stderr.")
@engine_options(without=_NOT_HERE)
def command(prompt: str, raw: bool, system: str | None, as_json: bool, verbose: bool, **flags: Any) -> None:
    """Answer PROMPT; "-" reads it from stdin.

    The text goes to stdout as it is made. A model without a chat template continues PROMPT, as --raw does.
    """
    if raw and system is not None:
        raise click.UsageError("--system has no place with --raw: put everything into the prompt")
    text = _read_stdin() if prompt == "-" else prompt
    given = take_sampling(flags)
    config = read_lone_config(flags)
    start = time.monotonic()
    from trivium.cli import answer as answers

    with answers.open_engine(config) as engine:
        load_seconds = time.monotonic() - start
        sampling = resolve_sampling(given, engine.model_info.generation_defaults)
        answer = answers.Answer()
        with closing(answers.stream(engine, _encode(engine, text, raw, system), sampling, answer)) as pieces:
            for piece in pieces:
                if not as_json:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
    if as_json:
        click.echo(json.dumps(_report(answer, config.model, load_seconds), ensure_ascii=False))
    elif not answer.text.endswith("\n"):
        click.echo()
    if verbose:
        click.echo(f"{answer.summary()}, model loaded in {load_seconds:.2f} s", err=True)


def _read_stdin() -> str:
    """All of stdin without the line break that ends it."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt on stdin must be UTF-8: {error}") from error


def _encode(engine: Engine, text: str, raw: bool, system: str | None) -> list[int]:
    from trivium.cli.answer import encode_messages

    if raw or (engine.chat_template is None and system is None):
        return engine.tokenizer.encode_prompt(text)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return encode_messages(engine, [*messages, {"role": "user", "content": text}])


def _report(answer: Answer, model: str, load_seconds: float) -> dict[str, Any]:
    return {
        "model": model,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "completion_tokens": answer.num_tokens,
            "total_tokens": answer.num_prompt_tokens + answer.num_tokens,
        },
        "timings": {
            "load_seconds": load_seconds,
            "first_token_seconds": answer.first_token_seconds,
            "total_seconds": answer.seconds,
            "tokens_per_second": answer.tokens_per_second,
        },
    }
