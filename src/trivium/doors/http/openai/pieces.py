"""From the engine's deltas to what an answer is made of: thought, content, tool calls. All chat APIs are written from these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trivium.engine.outputs import OutputDelta, TokenLogprobs
from trivium.parsing.tool_calls import ToolCallDelta

if TYPE_CHECKING:
    from trivium.doors.http.openai.request import OpenAIRequest

__all__ = ["Piece", "PieceReader"]


@dataclass(slots=True)
class Piece:
    """What is new of one choice. `finish_reason` and `stop_reason` come with its last piece, `error` if it has failed."""

    index: int  # of the choice: samples of the first prompt first
    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class PieceReader:
    """Reads the answers to one `OpenAIRequest`, delta by delta."""

    def __init__(self, asked: OpenAIRequest) -> None:
        raise NotImplementedError

    def read(self, deltas: Iterable[OutputDelta]) -> list[Piece]:
        """Pieces in the order of the deltas; a delta without anything to show gives none, the last of a choice always one.

        Raises the `EngineError` that a sample ended with (`errors.failure`).
        """
        raise NotImplementedError

    @staticmethod
    def joined(pieces: Sequence[Piece]) -> Piece:
        """All pieces of one choice as one: texts joined, and of each tool call one delta with its id, name and arguments."""
        raise NotImplementedError
