"""From sampled tokens to what a door is told: text, logprobs, and whether the sample has ended."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from trivium.engine.outputs import FinishReason, OutputDelta, TokenLogprobs
from trivium.engine.sample import Sample
from trivium.engine.stopping import Ending
from trivium.errors import EngineError

if TYPE_CHECKING:
    from trivium._native import LogprobRow

__all__ = ["accept_tokens", "collect_prompt_logprobs", "gather", "last_delta"]

log = logging.getLogger("trivium")

_LENGTH = Ending("length")
_STOP = Ending("stop")


def accept_tokens(sample: Sample, tokens: list[int], rows: list[LogprobRow] | None, now: float) -> OutputDelta:
    """Append the tokens that a step sampled, up to one that ends the sample, and say what is new.

    Raises `EngineError` when the grammar refuses a token that its mask allowed, and whatever detokenizer and matcher raise.
    """
    times = sample.times
    times.last_token = now
    if not times.first_token:
        times.first_token = now
    ending: Ending | None = None
    accepted: list[int] = []
    text = ""
    for token in tokens:
        piece, ending = _advance(sample, token)
        accepted.append(token)
        text += piece
        if ending is not None:
            break
    return OutputDelta(
        sample.request.request_id,
        sample.index,
        accepted,
        text,
        [] if rows is None else [_logprobs(token, row) for token, row in zip(accepted, rows, strict=False)],
        None if sample.plain else _take_prompt_logprobs(sample),
        None if ending is None else ending.reason,
        None if ending is None else ending.stop_reason,
        None,
        sample.num_prompt_tokens,
        sample.num_cached_tokens,
        sample.seed,
        times,
        now,
    )


def collect_prompt_logprobs(sample: Sample, rows: list[LogprobRow]) -> None:
    """Keep the scores of the next prompt tokens."""
    found = sample.prompt_rows
    if found is not None:
        for row in rows:
            found.append(_logprobs(sample.tokens[len(found)], row))


def gather(sample: Sample, delta: OutputDelta, turn: int) -> OutputDelta:
    """Join a delta to the one that the sample holds; it goes on holding what has too few tokens, or no text yet.

    The first is given out at once, later ones in every n-th turn of the engine: so doors are woken for all samples together.
    """
    held = sample.held
    if held is not None:
        held.token_ids += delta.token_ids
        held.text += delta.text
        held.logprobs += delta.logprobs
        held.finish_reason, held.stop_reason, held.error = delta.finish_reason, delta.stop_reason, delta.error
        held.time = delta.time
        delta = held
    count = sample.request.delta_tokens
    full = len(delta.token_ids) >= count and delta.text and (sample.num_gathered == 0 or turn % count == 0)
    if full or delta.finish_reason is not None:
        sample.held = None
        sample.num_gathered += 1
    else:
        sample.held = delta
    return delta


def last_delta(sample: Sample, reason: FinishReason, error: Exception | None = None) -> OutputDelta:
    """The delta that ends a sample from outside, with whatever text was still held back."""
    return OutputDelta(
        sample.request.request_id,
        sample.index,
        text=_remaining_text(sample),
        prompt_logprobs=_take_prompt_logprobs(sample),
        finish_reason=reason,
        error=error,
        num_prompt_tokens=sample.num_prompt_tokens,
        num_cached_tokens=sample.num_cached_tokens,
        seed=sample.seed,
        times=sample.times,
        time=time.monotonic(),
    )


def _advance(sample: Sample, token: int) -> tuple[str, Ending | None]:
    """Append one token: the text it adds, and how it ends the sample, if it does."""
    tokens = sample.tokens
    tokens.append(token)
    num_output = len(tokens) - sample.num_prompt_tokens
    rule = sample.active.stop_rule
    ending = rule.check(tokens, num_output) if token in rule.single_ids or rule.sequences else None
    if not sample.plain:
        ending = _follow(sample, token, ending)
    if ending is None and num_output >= sample.max_tokens:
        ending = _LENGTH
    detokenizer = sample.detokenizer
    if detokenizer is None:
        raise EngineError("a token was sampled before its sequence was prepared")
    if ending is None and not rule.sequences:
        text = detokenizer.push([token])
        sample.num_shown = num_output
    else:
        hidden = rule.held(tokens, num_output) if ending is None else ending.hidden
        shown = max(sample.num_shown, num_output - hidden)
        first = sample.num_prompt_tokens
        text = detokenizer.push(tokens[first + sample.num_shown : first + shown], final=ending is not None)
        sample.num_shown = shown
    if detokenizer.stopped is not None:
        ending = Ending("stop", detokenizer.stopped)
    return text, ending


def _follow(sample: Sample, token: int, ending: Ending | None) -> Ending | None:
    """Move grammar and thought on by one token. A finished grammar ends the sample."""
    if ending is None and sample.constrained and sample.matcher is not None:
        if not sample.matcher.accept(token):
            raise EngineError(f"structured output: token {token} was sampled but the grammar does not allow it")
        if sample.matcher.is_finished():
            ending = _STOP
    if sample.forced and sample.forced[0] == token:
        del sample.forced[0]
    if sample.thought is not None:
        sample.forced += sample.thought.push(token)
    return ending


def _remaining_text(sample: Sample) -> str:
    if sample.detokenizer is None:
        return ""
    try:
        return sample.detokenizer.push(sample.tokens[sample.num_prompt_tokens + sample.num_shown :], final=True)
    except Exception:  # the sample must end whatever state a fault has left its text in
        log.exception("the last text of request %s is lost", sample.request.request_id)
        return ""


def _take_prompt_logprobs(sample: Sample) -> list[TokenLogprobs | None] | None:
    """The prompt's logprobs, once, when they are complete."""
    rows = sample.prompt_rows
    if rows is None or len(rows) < sample.num_prompt_tokens:
        return None
    sample.prompt_rows = None
    return rows


def _logprobs(token: int, row: LogprobRow) -> TokenLogprobs:
    logprob, rank, ids, values = row
    return TokenLogprobs(token, logprob, rank, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
