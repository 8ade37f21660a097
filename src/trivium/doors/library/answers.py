"""From the engine's deltas to `RequestOutput`s: whole answers and streamed pieces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.doors.library.outputs import CompletionOutput, Logprob, LogprobsLists, RequestMetrics, RequestOutput
from trivium.engine.outputs import OutputDelta, RequestTimes, TokenLogprobs
from trivium.engine.request import GenerationRequest
from trivium.errors import DeadlineExceededError, EngineDeadError, EngineError
from trivium.parsing import ReasoningParser, ToolParser

__all__ = ["Answer", "Asked", "Reader", "TokenText"]

TokenText = Callable[[int], str]

_CLOSE = b"</think>"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, what the caller passed as its prompt, and when (time.monotonic) the prompt was ready for the engine."""

    request: GenerationRequest
    prompt: Any
    prepared: float


@dataclass(frozen=True, slots=True)
class Reader:
    """How a model's output is read: tokens as text and bytes, and the parsers that were asked for."""

    token_text: TokenText
    token_bytes: Callable[[int], bytes]
    reasoning: ReasoningParser | None = None
    tools: ToolParser | None = None


class Answer:
    """One sample of one request. `whole` gives it at its end; `piece`, called again and again, gives what is new."""

    def __init__(self, asked: Asked, index: int, reader: Reader) -> None:
        self._asked = asked
        self._index = index
        self._reader = reader
        self._pieces = 0
        self._token_ids: list[int] = []
        self._answer = ""  # everything after the thought, tool calls included
        self._thought = None if reader.reasoning is None else reader.reasoning.stream(bool(asked.request.thinking))
        self._content = None if reader.tools is None else reader.tools.stream()

    def whole(self, deltas: Sequence[OutputDelta]) -> RequestOutput:
        """The complete answer from all of its deltas."""
        return self._output(deltas, streamed=False)

    def piece(self, deltas: Sequence[OutputDelta]) -> RequestOutput:
        """What the next deltas bring: token ids, text, thought and logprobs are the new ones, counts are totals."""
        return self._output(deltas, streamed=True)

    def _output(self, deltas: Sequence[OutputDelta], *, streamed: bool) -> RequestOutput:
        last = deltas[-1]
        prompt_rows = next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None)
        code, message = _error(last)
        output = RequestOutput(
            request_id=self._asked.request.request_id,
            prompt=self._asked.prompt,
            prompt_token_ids=list(self._asked.request.prompt_token_ids),
            prompt_logprobs=None if prompt_rows is None else [None if r is None else self._row(r) for r in prompt_rows],
            outputs=self._completion(deltas),
            finished=last.finished,
            metrics=_metrics(last, self._asked, streamed=streamed),
            num_cached_tokens=last.num_cached_tokens,
            error_code=code,
            error_msg=message,
            prompt_token_ids_len=len(self._asked.request.prompt_token_ids),
        )
        self._pieces += 1
        if output.finished and self._reader.tools is not None:
            output.outputs.tool_calls = self._reader.tools.parse(self._answer)[1] or None
            output.accumulate_tool_calls = output.outputs.tool_calls
        return output

    def _completion(self, deltas: Sequence[OutputDelta]) -> CompletionOutput:
        last = deltas[-1]
        token_ids = [token for d in deltas for token in d.token_ids]
        self._token_ids += token_ids
        thought, text = self._split("".join(d.text for d in deltas), finished=last.finished)
        output = CompletionOutput(
            index=self._index,
            send_idx=self._pieces,
            token_ids=token_ids,
            text=text,
            reasoning_content=thought,
            reasoning_token_num=self._count_thought() if last.finished else 0,
            completion_tokens=len(self._token_ids),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            enable_parser=self._reader.reasoning is not None or self._reader.tools is not None,
        )
        if self._asked.request.sampling.logprobs is not None:
            rows = [row for d in deltas for row in d.logprobs]
            output.logprobs = [self._row(row) for row in rows]
            output.logprob = rows[-1].logprob if rows else None
            output.top_logprobs = LogprobsLists(
                [[row.token_id, *(token for token, _ in row.top)] for row in rows],
                [[row.logprob, *(value for _, value in row.top)] for row in rows],
                [row.rank for row in rows],
            )
        return output

    def _row(self, row: TokenLogprobs) -> dict[int, Logprob]:
        """The most likely tokens by rank, and the token itself wherever it ranks."""
        text = self._reader.token_text
        result = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(row.top, 1)}
        result.setdefault(row.token_id, Logprob(row.logprob, row.rank, text(row.token_id)))
        return result

    def _split(self, text: str, *, finished: bool) -> tuple[str | None, str]:
        """New text as thought (None if there is none so far) and answer without tool calls."""
        thought: str | None = None
        if self._thought is not None:
            new_thought, text = self._thought.push(text)
            if finished:
                last_thought, last_text = self._thought.finish()
                new_thought, text = new_thought + last_thought, text + last_text
            thought = new_thought if self._thought.has_thought else None
        self._answer += text
        if self._content is not None:
            text = self._content.push(text)[0]
            if finished:
                text += self._content.finish()[0]
        return thought, text

    def _count_thought(self) -> int:
        """Tokens before the one that completes the closing tag, or all if it never comes after a thought began."""
        if self._thought is None or not self._thought.has_thought:
            return 0
        seen = b""
        for count, token in enumerate(self._token_ids):
            seen += self._reader.token_bytes(token)
            if _CLOSE in seen:
                return count
            seen = seen[1 - len(_CLOSE) :]
        return len(self._token_ids)


def _error(last: OutputDelta) -> tuple[int, str | None]:
    """Error code and message of an answer that did not end by itself."""
    if last.error is not None:
        return getattr(last.error, "error_code", EngineError.error_code), str(last.error)
    if last.finish_reason == "error":
        return EngineError.error_code, "the engine failed; the answer is incomplete"
    if last.finish_reason == "timeout":
        return DeadlineExceededError.error_code, "the deadline passed; the answer is incomplete"
    if last.finish_reason == "abort":
        return EngineDeadError.error_code, "the request was aborted; the answer is incomplete"
    return 200, None


def _metrics(last: OutputDelta, asked: Asked, *, streamed: bool) -> RequestMetrics:
    """The request's moments on the wall clock, and the durations between them."""
    wall = time.time() - time.monotonic()
    times: RequestTimes = last.times
    called = asked.request.arrival_time
    scheduled, first, latest = times.scheduled or None, times.first_token or None, times.last_token or None
    return RequestMetrics(
        arrival_time=wall + (time.monotonic() if streamed else called),
        request_start_time=wall + called,
        preprocess_start_time=wall + called,
        preprocess_end_time=wall + asked.prepared,
        preprocess_cost_time=asked.prepared - called,
        inference_start_time=scheduled and wall + scheduled,
        engine_recv_first_token_time=first and wall + first,
        engine_recv_latest_token_time=latest and wall + latest,
        first_token_time=_between(scheduled, first),
        time_in_queue=_between(asked.prepared, scheduled),
        model_forward_time=_between(scheduled, latest),
        model_execute_time=_between(called, latest),
        preempted_count=times.preemptions,
        gpu_cache_token_num=last.num_cached_tokens,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0)
