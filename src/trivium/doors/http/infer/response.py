"""From the engine's deltas to the replies of `/infer`: one JSON object, or events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from trivium.doors.dispatcher import Generation
from trivium.doors.http.bodies import dump
from trivium.doors.http.errors import InferErrors, failure
from trivium.doors.http.infer.request import InferRequest
from trivium.engine.outputs import OutputDelta
from trivium.errors import DeadlineExceededError, EngineError

__all__ = ["EventWriter", "text_reply", "write_events"]

_ERRORS = InferErrors()
_FINISH_REASONS = {"stop": "eos_token", "length": "length"}

# Templates of events: only what differs is made anew for each token.
_FIRST = b'data: {"prefill_time":%.2f,"decode_time":null,"token":{"id":[%b],"text":%b}}\n\n'
_NEXT = b'data: {"prefill_time":null,"decode_time":%.2f,"token":{"id":[%b],"text":%b}}\n\n'
_LAST_TIMES = (b'data: {"prefill_time":%.2f,"decode_time":null,', b'data: {"prefill_time":null,"decode_time":%.2f,')
_LAST = b'"generated_text":%b,"details":%b,"token":{"id":[%b],"text":null}}\n\n'


def text_reply(asked: InferRequest, deltas: Sequence[OutputDelta]) -> dict[str, Any]:
    """The body that answers a request without `stream`. Raises the `EngineError` it ended with."""
    last = deltas[-1]
    error = _failure(asked, last)
    if error is not None:
        raise error
    body: dict[str, Any] = {"generated_text": "".join([delta.text for delta in deltas])}
    if asked.details:
        body["details"] = _details(last, sum(len(delta.token_ids) for delta in deltas))
    return body


async def write_events(generation: Generation, writer: EventWriter) -> AsyncIterator[bytes]:
    """The events of a stream; those of deltas that came together are sent together, unless each holds all the text so far."""
    while deltas := await generation.take():
        if writer.full_text:
            for delta in deltas:
                yield writer.event(delta)
        else:
            yield b"".join([writer.event(delta) for delta in deltas])


class EventWriter:
    """Writes the events of one stream. With `full_text` each holds all the text so far, else what is new."""

    def __init__(self, asked: InferRequest, full_text: bool) -> None:
        self._asked = asked
        self.full_text = full_text
        self._text = ""
        self._num_tokens = 0
        self._time = asked.handed_over  # of the event before

    def event(self, delta: OutputDelta) -> bytes:
        """The event of a delta. An event of several tokens, as guessing ahead gives them, tells the time of one."""
        error = _failure(self._asked, delta)
        if error is not None:
            return b"data: %b\n\n" % dump(_ERRORS.body(error))
        token_ids = delta.token_ids
        ids = b"%d" % token_ids[0] if len(token_ids) == 1 else b",".join([b"%d" % token for token in token_ids])
        is_first = not self._num_tokens
        milliseconds = max(0.0, delta.time - self._time) * 1000
        if not is_first:
            milliseconds /= len(token_ids)
        self._time = delta.time
        self._num_tokens += len(token_ids)
        self._text += delta.text
        if delta.finish_reason is None:
            text = dump(self._text if self.full_text else delta.text)
            return (_FIRST if is_first else _NEXT) % (milliseconds, ids, text)
        details = dump(_details(delta, self._num_tokens)) if self._asked.details else b"null"
        return (_LAST_TIMES[not is_first] % milliseconds) + _LAST % (dump(self._text), details, ids)


def _details(last: OutputDelta, num_tokens: int) -> dict[str, Any]:
    reason = _FINISH_REASONS[last.finish_reason or "length"]
    return {"finish_reason": reason, "generated_tokens": num_tokens, "seed": last.seed}


def _failure(asked: InferRequest, delta: OutputDelta) -> EngineError | None:
    if delta.finish_reason == "timeout":
        return DeadlineExceededError(
            f"the answer was not complete {asked.request.timeout:g} seconds after the request's arrival"
        )
    return failure(delta)
