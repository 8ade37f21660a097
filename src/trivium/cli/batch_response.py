"""From the engine's deltas to the body of an OpenAI response."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trivium.cli.batch_request import CHAT, OpenAIRequest

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.engine.outputs import OutputDelta, TokenLogprobs
    from trivium.models.tokenizer import Tokenizer
    from trivium.parsing import ReasoningParser, ToolParser

__all__ = ["ResponseWriter", "error_body"]

_LEAST_LOGPROB = -9999.0


class ResponseWriter:
    """Writes the bodies of one engine's answers."""

    def __init__(self, engine: Engine, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None) -> None:
        self._model = engine.model_info.name
        self._tokenizer = engine.tokenizer
        self._reasoning = reasoning
        self._tools = tools

    def write(self, asked: OpenAIRequest, samples: Sequence[Sequence[OutputDelta]]) -> dict[str, Any]:
        """The body for a finished request. `samples` holds the deltas of every sample: those of the first prompt first."""
        is_chat = asked.kind == CHAT
        requests = [request for request in asked.requests for _ in range(request.n)]
        write = self._message if is_chat else self._completion
        choices = []
        for index, (request, deltas) in enumerate(zip(requests, samples, strict=True)):
            text = "".join(delta.text for delta in deltas)
            rows = [row for delta in deltas for row in delta.logprobs]
            choices.append(
                {
                    "index": index,
                    **write(asked, text, bool(request.thinking)),
                    "logprobs": None if request.sampling.logprobs is None else self._logprobs(rows, is_chat),
                    "stop_reason": deltas[-1].stop_reason,
                }
            )
            choices[-1].setdefault("finish_reason", deltas[-1].finish_reason)
        first_id = asked.requests[0].request_id.rpartition("-")[0]
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{first_id}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": choices,
            "usage": _usage(asked, samples),
        }

    def _completion(self, asked: OpenAIRequest, text: str, thinking: bool) -> dict[str, Any]:
        return {"text": text}

    def _message(self, asked: OpenAIRequest, text: str, thinking: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self._reasoning is not None:
            thought, text = self._reasoning.parse(text, thinking=thinking)
            message |= {"content": text, "reasoning_content": thought}
        if self._tools is None or not asked.has_tools:
            return {"message": message}
        text, calls = self._tools.parse(text)
        if not calls:
            return {"message": message}
        message["content"] = text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
        return {"message": message, "finish_reason": "tool_calls"}

    def _logprobs(self, rows: Sequence[TokenLogprobs], is_chat: bool) -> dict[str, Any]:
        return _chat_logprobs(rows, self._tokenizer) if is_chat else _completion_logprobs(rows, self._tokenizer)


def error_body(message: str, *, status: int, param: str | None = None) -> dict[str, Any]:
    """The body of a request that failed with an HTTP status."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _usage(asked: OpenAIRequest, samples: Sequence[Sequence[OutputDelta]]) -> dict[str, Any]:
    """Tokens: every prompt counts once, however many samples it has."""
    prompt = sum(len(request.prompt_token_ids) for request in asked.requests)
    completion = sum(len(delta.token_ids) for deltas in samples for delta in deltas)
    firsts, position = [], 0
    for request in asked.requests:
        firsts.append(samples[position])
        position += request.n
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(deltas[-1].num_cached_tokens for deltas in firsts)},
    }


def _chat_logprobs(rows: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    def token(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}

    content = [
        token(row.token_id, row.logprob) | {"top_logprobs": [token(other, value) for other, value in row.top]} for row in rows
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(rows: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    def text(token_id: int) -> str:
        return tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    tokens = [text(row.token_id) for row in rows]
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(row.logprob) for row in rows],
        "top_logprobs": [{text(other): _finite(value) for other, value in row.top} for row in rows],
        "text_offset": list(itertools.accumulate(map(len, tokens), initial=0))[:-1],
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, _LEAST_LOGPROB)
