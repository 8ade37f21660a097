"""From the pieces of an answer to the body of an OpenAI response."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trivium.doors.http.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from trivium.doors.http.openai.pieces import Piece, PieceReader
from trivium.doors.http.openai.request import CHAT
from trivium.doors.http.openai.usage import Usage

if TYPE_CHECKING:
    from trivium.doors.http.openai.request import OpenAIRequest
    from trivium.engine.outputs import OutputDelta

__all__ = ["response_body"]


def response_body(asked: OpenAIRequest, deltas: Iterable[OutputDelta], model: str) -> dict[str, Any]:
    """The body for an answer that is complete. Raises the `EngineError` that a sample ended with."""
    pieces: list[list[Piece]] = [[] for _ in range(asked.num_samples)]
    for piece in PieceReader(asked).read(deltas):
        pieces[piece.index].append(piece)
    choices = [PieceReader.joined(own) for own in pieces]
    usage = Usage(asked)
    for choice in choices:
        usage.add(choice)
    is_chat = asked.kind == CHAT
    body: dict[str, Any] = {
        "id": asked.id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": _chat_choices(asked, choices) if is_chat else _completion_choices(asked, choices),
        "usage": usage.body(),
    }
    if is_chat and asked.prompt_logprobs and choices[0].prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs(choices[0].prompt_logprobs, asked.tokenizer)
    return body


def _chat_choices(asked: OpenAIRequest, choices: Sequence[Piece]) -> list[dict[str, Any]]:
    has_logprobs = asked.requests[0].sampling.logprobs is not None
    return [
        {
            "index": choice.index,
            "message": _message(asked, choice),
            "logprobs": {"content": chat_logprobs(choice.logprobs, asked.tokenizer), "refusal": None} if has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in choices
    ]


def _message(asked: OpenAIRequest, choice: Piece) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if asked.reasoning is not None:
        message["reasoning_content"] = choice.reasoning or None
    if choice.tool_calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.tool_calls
        ]
    return message


def _completion_choices(asked: OpenAIRequest, choices: Sequence[Piece]) -> list[dict[str, Any]]:
    told = []
    for choice, writer in zip(choices, completion_logprobs(asked), strict=True):
        told.append(
            {
                "index": choice.index,
                "text": choice.content,
                "logprobs": None if writer is None else writer.tell(choice),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
        )
        if asked.prompt_logprobs and choice.prompt_logprobs is not None:
            told[-1]["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs, asked.tokenizer)
    return told
