"""From the pieces of an answer to a message, and to the events that tell it while it is made."""

from __future__ import annotations

import uuid
from typing import Any, Literal

import orjson

from trivium.doors.http.bodies import dump
from trivium.doors.http.errors import AnthropicErrors
from trivium.doors.http.openai.pieces import Piece
from trivium.parsing.tool_calls import ToolCallDelta

__all__ = ["MessageWriter", "error_event"]

Kind = Literal["thinking", "text", "tool_use"]

# The delta that makes a block of each kind grow, and its member that holds the text.
_DELTAS: dict[Kind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def error_event(error: Exception) -> bytes:
    """The event of an error that comes when the stream has begun."""
    return b"event: error\ndata: " + dump(AnthropicErrors().body(error)) + b"\n\n"


class MessageWriter:
    """Builds one message from its pieces. Every step returns the events that tell it, whole frames.

    Thought, text and uses of tools are blocks, in the order in which they come: only the last may still grow.
    """

    def __init__(self, message_id: str, model: str, num_prompt_tokens: int, *, shows_thought: bool) -> None:
        self.message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},
        }
        self._num_prompt_tokens = num_prompt_tokens
        self._shows_thought = shows_thought
        self._begun = False
        self._num_tokens = 0
        self._num_thought_tokens = 0
        self._kind: Kind | None = None  # of the block that is open
        self._block: dict[str, Any] = {}
        self._texts: list[str] = []  # of the open block
        self._call = -1  # number of the call that is open
        self._delta_head = b""

    def add(self, piece: Piece) -> bytes:
        """The next piece; the one that ends the choice ends the message."""
        events = [] if self._begun else [self._begin(piece)]
        self._num_tokens += len(piece.token_ids)
        self._num_thought_tokens += piece.num_reasoning_tokens
        if piece.reasoning:
            events.append(self._switch("thinking", thinking="", signature=""))
            if self._shows_thought:
                events.append(self._grow(piece.reasoning))
        if piece.content:
            events += [self._switch("text", text=""), self._grow(piece.content)]
        for call in piece.tool_calls:
            events.append(self._read_call(call))
        if piece.finish_reason is not None:
            events.append(self._finish(piece))
        return b"".join(events)

    def _begin(self, piece: Piece) -> bytes:
        self._begun = True
        self.message["usage"] = {**self._usage(piece), "service_tier": "standard"}
        return _event("message_start", message=self.message)

    def _finish(self, piece: Piece) -> bytes:
        events = self._close()
        used_tools = any(block["type"] == "tool_use" for block in self.message["content"])
        reason, sequence = "end_turn", None
        if piece.finish_reason == "length":
            reason = "max_tokens"
        elif used_tools:
            reason = "tool_use"
        elif isinstance(piece.stop_reason, str):
            reason, sequence = "stop_sequence", piece.stop_reason
        usage = {**self._usage(piece), "output_tokens_details": {"thinking_tokens": self._num_thought_tokens}}
        stopped = {"stop_reason": reason, "stop_sequence": sequence}
        self.message |= stopped
        self.message["usage"] |= usage
        return events + _event("message_delta", delta=stopped, usage=usage) + _STOP

    def _usage(self, piece: Piece) -> dict[str, Any]:
        return {
            "input_tokens": self._num_prompt_tokens - piece.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": piece.num_cached_tokens,
            "output_tokens": self._num_tokens,
        }

    def _switch(self, kind: Kind, **members: Any) -> bytes:
        """Have a block of this kind open."""
        return b"" if self._kind == kind else self._close() + self._open(kind, members)

    def _read_call(self, call: ToolCallDelta) -> bytes:
        events = b""
        if self._kind != "tool_use" or call.index != self._call:
            self._call = call.index
            members: dict[str, Any] = {"id": f"toolu_{uuid.uuid4().hex}", "name": call.name, "input": {}}
            events = self._close() + self._open("tool_use", members)
        return events + self._grow(call.arguments) if call.arguments else events

    def _open(self, kind: Kind, members: dict[str, Any]) -> bytes:
        self._kind, self._block, self._texts = kind, {"type": kind, **members}, []
        index = len(self.message["content"])
        delta, member = _DELTAS[kind]
        head = 'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
        self._delta_head = (head % (index, delta, member)).encode()
        return _event("content_block_start", index=index, content_block=self._block)

    def _grow(self, text: str) -> bytes:
        self._texts.append(text)
        return self._delta_head + dump(text) + b"}}\n\n"

    def _close(self) -> bytes:
        """The open block, if any, grows no more."""
        if self._kind is None:
            return b""
        text = "".join(self._texts)
        if self._kind == "tool_use":
            self._block["input"] = _input(text)
        else:
            self._block[self._kind] = text
        event = _event("content_block_stop", index=len(self.message["content"]))
        self.message["content"].append(self._block)
        self._kind = None
        return event


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call; none if the answer was cut before they were complete."""
    try:
        value = orjson.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(name: str, **members: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dump({"type": name, **members}))
