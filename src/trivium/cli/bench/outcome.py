"""What becomes of one request: its times and tokens, or its error."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from trivium.cli.bench.backends import Backend, EventReader, StreamError, parse

__all__ = ["Outcome", "StreamReader"]

_MAX_ERROR = 300  # characters of an error's text


@dataclass(slots=True)
class Outcome:
    """Times in seconds: `start` on the time.perf_counter clock, the others from there or from event to event.

    `itl` are the gaps between events that brought tokens. `error` is None if the answer came whole.
    """

    start: float
    prompt_tokens: int
    output_tokens: int = 0
    ttft: float = 0.0
    e2el: float = 0.0
    itl: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def tpot(self) -> float:
        """Mean seconds of a token after the first; 0 where there is none."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class StreamReader:
    """Reads the answer to one request, for `Client.exchange`."""

    def __init__(self, backend: Backend, prompt_tokens: int) -> None:
        self._backend = backend
        self._events = EventReader()
        self._status = 0
        self._refusal = b""  # what came instead of a stream
        self._is_stream = False
        self._is_whole = False
        self._last = 0.0
        self._num_events = 0
        self._outcome = Outcome(time.perf_counter(), prompt_tokens)

    def started(self, status: int, content_type: str) -> None:
        self._status = status
        self._is_stream = status == 200 and content_type.startswith("text/event-stream")

    def received(self, data: bytes, now: float) -> None:
        if not self._is_stream:
            if len(self._refusal) < 4 * _MAX_ERROR:
                self._refusal += data
            return
        if self._outcome.error is not None:
            return
        try:
            for event in self._events.feed(data):
                self._read(event, now)
        except (StreamError, AttributeError, TypeError) as error:  # an event of other shape than this API's
            self._outcome.error = str(error)[:_MAX_ERROR]

    def finish(self, error: Exception | None = None) -> Outcome:
        """The answer is over, or has broken off with an error."""
        outcome = self._outcome
        if outcome.error is None:
            outcome.error = self._failure(error)
        if not outcome.output_tokens:
            outcome.output_tokens = self._num_events
        outcome.e2el = self._last - outcome.start if self._num_events else 0.0
        return outcome

    def _read(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._is_whole = True
            return
        event = parse(data)
        outcome, backend = self._outcome, self._backend
        if backend.brings_tokens(event):
            if self._num_events:
                outcome.itl.append(now - self._last)
            else:
                outcome.ttft = now - outcome.start
            self._num_events += 1
            self._last = now
        prompt_tokens, output_tokens = backend.counts(event)
        outcome.prompt_tokens = prompt_tokens or outcome.prompt_tokens
        if output_tokens is not None:
            outcome.output_tokens = output_tokens
            self._is_whole |= not backend.ends_with_done

    def _failure(self, error: Exception | None) -> str | None:
        if error is not None:
            return str(error)
        if self._status != 200:
            text = self._refusal.decode("utf-8", "replace").strip()
            return f"status {self._status}: {text[:_MAX_ERROR]}"
        if not self._is_stream:
            return "the answer is no event stream"
        if not self._is_whole:
            return "the stream ended before its last event"
        return None if self._num_events else "the answer has no tokens"
