"""Counting the tokens of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.doors.http.openai.pieces import Piece
    from trivium.doors.http.openai.request import OpenAIRequest

__all__ = ["Usage"]


class Usage:
    """Tokens so far. Every prompt counts once, however many samples it has."""

    def __init__(self, asked: OpenAIRequest) -> None:
        self._prompt = sum(len(request.prompt_token_ids) for request in asked.requests)
        self._cached: dict[int, int] = {}  # per prompt, by its first choice
        self._firsts: list[int] = []
        for number, request in enumerate(asked.requests):
            self._firsts += [number] * request.n
        self._completion = 0
        self._reasoning: int | None = None if asked.reasoning is None else 0

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        self._completion += len(piece.token_ids)
        self._cached.setdefault(self._firsts[piece.index], piece.num_cached_tokens)
        if self._reasoning is not None:
            self._reasoning += piece.num_reasoning_tokens

    def body(self) -> dict[str, Any]:
        """The object `usage`."""
        details = {} if self._reasoning is None else {"completion_tokens_details": {"reasoning_tokens": self._reasoning}}
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
            **details,
        }
