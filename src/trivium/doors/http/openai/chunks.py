"""From the pieces of an answer to the events of an OpenAI stream.

What all chunks of a stream have in common is written once; a chunk is that and the little that is new.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from trivium.doors.http.bodies import dump
from trivium.doors.http.errors import OpenAIErrors
from trivium.doors.http.openai.logprobs import chat_logprobs, completion_logprobs
from trivium.doors.http.openai.pieces import Piece, joined_calls
from trivium.doors.http.openai.request import CHAT, OpenAIRequest
from trivium.doors.http.openai.usage import Usage
from trivium.parsing.tool_calls import ToolCallDelta

__all__ = ["DONE", "ChunkWriter", "chunk_writer", "error_event"]

DONE = b"data: [DONE]\n\n"
_REASONS = {reason: dump(reason) for reason in (None, "stop", "length", "tool_calls")}


def error_event(error: Exception) -> bytes:
    """The event of an error that comes when the stream has begun."""
    return b"data: " + dump(OpenAIErrors().body(error)) + b"\n\n"


def chunk_writer(asked: OpenAIRequest, model: str) -> ChunkWriter:
    """The writer of one stream."""
    return _ChatChunks(asked, model) if asked.kind == CHAT else _CompletionChunks(asked, model)


class ChunkWriter(ABC):
    """Writes the events of one stream."""

    kind: str

    def __init__(self, asked: OpenAIRequest, model: str) -> None:
        about = {"id": asked.id, "object": self.kind, "created": int(time.time()), "model": model}
        self._asked = asked
        self._begin = b"data: " + dump(about)[:-1] + b',"choices":['
        self._heads = [b'%s{"index":%d,' % (self._begin, index) for index in range(asked.num_samples)]
        self._usage = Usage(asked) if asked.include_usage or asked.continuous_usage else None
        self._end = b'}],"usage":null}\n\n' if asked.include_usage else b"}]}\n\n"

    def last(self) -> bytes:
        """What comes when all choices have ended."""
        if not self._asked.include_usage or self._usage is None:
            return DONE
        return b'%s],"usage":%s}\n\n%s' % (self._begin, dump(self._usage.body()), DONE)

    def add(self, piece: Piece) -> bytes:
        """The events of the next piece."""
        if self._usage is not None:
            self._usage.add(piece)
            if self._asked.continuous_usage:
                self._end = b'}],"usage":%s}\n\n' % dump(self._usage.body())
        new = self._new(piece)
        reason = piece.finish_reason
        if reason is None:
            return b'%s,"finish_reason":null%s' % (new, self._end)
        return b'%s,"finish_reason":%s,"stop_reason":%s%s' % (new, _REASONS[reason], dump(piece.stop_reason), self._end)

    @abstractmethod
    def _new(self, piece: Piece) -> bytes:
        """A chunk's beginning, up to and with its logprobs."""


class _ChatChunks(ChunkWriter):
    kind = "chat.completion.chunk"

    def __init__(self, asked: OpenAIRequest, model: str) -> None:
        super().__init__(asked, model)
        self._heads = [head + b'"delta":' for head in self._heads]
        self._begun = [False] * len(self._heads)
        self._has_logprobs = asked.requests[0].sampling.logprobs is not None

    def _new(self, piece: Piece) -> bytes:
        index = piece.index
        head = self._heads[index]
        if not self._begun[index]:
            self._begun[index] = True
            role = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
            head = b"%s%s%s%s" % (head, role, self._end, head)
        if piece.reasoning or piece.tool_calls or self._has_logprobs:
            return head + self._rich(piece)
        if piece.content:
            return b'%s{"content":%s},"logprobs":null' % (head, dump(piece.content))
        return head + b'{},"logprobs":null'

    def _rich(self, piece: Piece) -> bytes:
        """The delta and the logprobs of a piece that has more than content."""
        delta: dict[str, Any] = {}
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.content:
            delta["content"] = piece.content
        if piece.tool_calls:
            delta["tool_calls"] = [_call_delta(call) for call in joined_calls(piece.tool_calls)]
        logprobs = None
        if self._has_logprobs:
            logprobs = {"content": chat_logprobs(piece.logprobs, self._asked.tokenizer), "refusal": None}
        return b'%s,"logprobs":%s' % (dump(delta), dump(logprobs))


class _CompletionChunks(ChunkWriter):
    kind = "text_completion"

    def __init__(self, asked: OpenAIRequest, model: str) -> None:
        super().__init__(asked, model)
        self._logprobs = completion_logprobs(asked)

    def _new(self, piece: Piece) -> bytes:
        writer = self._logprobs[piece.index]
        rows = b"null" if writer is None else dump(writer.tell(piece))
        return b'%s"text":%s,"logprobs":%s' % (self._heads[piece.index], dump(piece.content), rows)


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
