"""From the pieces of an answer to a response object, and to the events that tell it while it is made."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

from trivium.doors.http.bodies import dump
from trivium.doors.http.openai.pieces import Piece
from trivium.engine.outputs import TokenLogprobs
from trivium.parsing.tool_calls import ToolCallDelta

__all__ = ["ResponseWriter"]

Kind = Literal["reasoning", "message", "function_call"]

# Events of an item's growth; its text is told again, whole, with the second.
_DELTAS: dict[Kind, str] = {
    "reasoning": "response.reasoning_text.delta",
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
}
_DONES: dict[Kind, str] = {
    "reasoning": "response.reasoning_text.done",
    "message": "response.output_text.done",
    "function_call": "response.function_call_arguments.done",
}
_PREFIXES: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class ResponseWriter:
    """Builds one response from its pieces. Every step returns the events that tell it, whole frames.

    Thought, text and calls are items of `output`, in the order in which they come: only the last may still grow.
    `logprobs` turns rows into their JSON form; None if they were not asked for.
    """

    def __init__(
        self,
        response_id: str,
        fields: dict[str, Any],
        num_prompt_tokens: int,
        logprobs: Callable[[Sequence[TokenLogprobs]], list[Any]] | None = None,
    ) -> None:
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            **fields,
            "usage": None,
        }
        self._logprobs = logprobs
        self._num_prompt_tokens = num_prompt_tokens
        self._num_events = 0
        self._num_tokens = 0
        self._num_thought_tokens = 0
        self._kind: Kind | None = None  # of the item that is open
        self._item: dict[str, Any] = {}
        self._call = -1  # number of the call that is open
        self._texts: list[str] = []  # of the open item
        self._rows: list[Any] = []
        self._delta_head = b""

    def begin(self) -> bytes:
        """The events before anything has come."""
        return self._event("response.created", response=self.response) + self._event(
            "response.in_progress", response=self.response
        )

    def add(self, piece: Piece) -> bytes:
        """The next piece; the one that ends the choice ends the response."""
        events = []
        self._num_tokens += len(piece.token_ids)
        self._num_thought_tokens += piece.num_reasoning_tokens
        if piece.reasoning:
            events += [self._switch("reasoning"), self._grow(piece.reasoning)]
        if piece.content:
            events += [self._switch("message"), self._grow(piece.content, piece.logprobs)]
        for call in piece.tool_calls:
            events.append(self._read_call(call))
        if piece.finish_reason is not None:
            events.append(self._finish(piece))
        return b"".join(events)

    def fail(self, message: str) -> bytes:
        """The answer cannot be completed."""
        events = self._close("incomplete")
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": message}}
        return events + self._event("response.failed", response=self.response)

    def _finish(self, piece: Piece) -> bytes:
        cut = piece.finish_reason == "length"
        events = self._close("incomplete" if cut else "completed")
        if not cut and all(item["type"] == "reasoning" for item in self.response["output"]):
            events += self._switch("message") + self._close("completed")  # an answer without words is one
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "usage": {
                "input_tokens": self._num_prompt_tokens,
                "input_tokens_details": {"cached_tokens": piece.num_cached_tokens, "cache_write_tokens": 0},
                "output_tokens": self._num_tokens,
                "output_tokens_details": {"reasoning_tokens": self._num_thought_tokens},
                "total_tokens": self._num_prompt_tokens + self._num_tokens,
            },
        }
        return events + self._event(f"response.{self.response['status']}", response=self.response)

    def _switch(self, kind: Kind) -> bytes:
        """Have an item of this kind open."""
        if self._kind == kind:
            return b""
        if kind == "message":
            return self._close("completed") + self._open(kind, role="assistant", content=[])
        return self._close("completed") + self._open(kind, summary=[], content=[])

    def _read_call(self, call: ToolCallDelta) -> bytes:
        events = b""
        if self._kind != "function_call" or call.index != self._call:
            self._call = call.index
            events = self._close("completed") + self._open("function_call", call_id=call.id, name=call.name, arguments="")
        return events + self._grow(call.arguments) if call.arguments else events

    def _open(self, kind: Kind, **members: Any) -> bytes:
        self._kind = kind
        self._item = {"id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **members}
        self._texts, self._rows = [], []
        name = _DELTAS[kind]
        begin: dict[str, Any] = {"type": name, **self._place}
        if kind == "message" and self._logprobs is None:
            begin["logprobs"] = []
        self._delta_head = f"event: {name}\ndata: ".encode() + dump(begin)[:-1] + b',"delta":'
        events = self._event("response.output_item.added", output_index=len(self.response["output"]), item=self._item)
        if kind != "function_call":
            events += self._event("response.content_part.added", **self._place, part=self._part(""))
        return events

    def _grow(self, text: str, rows: Sequence[TokenLogprobs] = ()) -> bytes:
        self._texts.append(text)
        head = self._delta_head + dump(text)
        if self._kind == "message" and self._logprobs is not None:
            told = self._logprobs(rows)
            self._rows += told
            head += b',"logprobs":' + dump(told)
        event = head + b',"sequence_number":%d}\n\n' % self._num_events
        self._num_events += 1
        return event

    def _close(self, status: str) -> bytes:
        """The open item, if any, grows no more."""
        kind, item = self._kind, self._item
        if kind is None:
            return b""
        text = "".join(self._texts)
        if kind == "function_call":
            events = self._event(_DONES[kind], **self._place, arguments=text)
            item["arguments"] = text
        else:
            part = self._part(text)
            more = {"logprobs": self._rows} if kind == "message" else {}
            events = self._event(_DONES[kind], **self._place, text=text, **more)
            events += self._event("response.content_part.done", **self._place, part=part)
            item["content"] = [part]
        item["status"] = status
        events += self._event("response.output_item.done", output_index=len(self.response["output"]), item=item)
        self.response["output"].append(item)
        self._kind = None
        return events

    @property
    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._item["id"], "output_index": len(self.response["output"])}
        return place if self._kind == "function_call" else {**place, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._rows}

    def _event(self, name: str, **members: Any) -> bytes:
        data = dump({"type": name, **members, "sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
