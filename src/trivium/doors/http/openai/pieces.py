"""From the engine's deltas to what an answer is made of: thought, content, tool calls. All chat APIs are written from these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trivium.doors.http.errors import failure
from trivium.doors.http.openai.forced_calls import CallListStream, CallReader, NamedCallStream
from trivium.engine.outputs import OutputDelta, TokenLogprobs
from trivium.engine.thought import Thought
from trivium.parsing.tool_calls import ToolCallDelta

if TYPE_CHECKING:
    from trivium.doors.dispatcher import Generation
    from trivium.doors.http.openai.request import OpenAIRequest

__all__ = ["Piece", "PieceReader", "joined_calls"]


@dataclass(slots=True)
class Piece:
    """What is new of one choice. `finish_reason` and `stop_reason` come with its last piece.

    With `echo`, the first piece's content begins with the prompt.
    `prompt_logprobs` come with the first piece: an entry per prompt token, None for the first. `num_reasoning_tokens` are those
    of `token_ids` that belong to the thought, its tags included.
    """

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
    num_reasoning_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class PieceReader:
    """Reads the answers to one `OpenAIRequest`, delta by delta. An answer that is not streamed is all of its pieces, joined."""

    def __init__(self, asked: OpenAIRequest) -> None:
        self._choices: dict[tuple[str, int], _Choice] = {}
        for number, request in enumerate(asked.requests):
            prompt = _Prompt(asked.echo_of(number) or "", request.sampling.prompt_logprobs is not None)
            for sample in range(request.n):
                choice = _Choice(len(self._choices), asked, prompt, thinking=bool(request.thinking))
                self._choices[request.request_id, sample] = choice

    def read(self, deltas: Iterable[OutputDelta]) -> Iterator[Piece]:
        """Pieces in the order of the deltas; a delta without anything to show gives none, the last of a choice always one.

        Raises the `EngineError` that a sample ended with (`errors.failure`), once the pieces before it have been taken.
        """
        for delta in deltas:
            piece = self._choices[delta.request_id, delta.index].read(delta)
            if piece is not None:
                yield piece

    async def stream(self, generation: Generation, write: Callable[[Piece], bytes]) -> AsyncIterator[bytes]:
        """The answer as events; those of deltas that came together are given together, also before an error is raised.

        Raises what `Generation.take` and `read` raise.
        """
        while deltas := await generation.take():
            events: list[bytes] = []
            error: Exception | None = None
            try:
                for delta in deltas:
                    piece = self._choices[delta.request_id, delta.index].read(delta)
                    if piece is not None:
                        events.append(write(piece))
            except Exception as failure:
                error = failure
            if told := b"".join(events):
                yield told
            if error is not None:
                raise error

    @staticmethod
    def joined(pieces: Sequence[Piece]) -> Piece:
        """All pieces of one choice as one: texts joined, and of each tool call one delta with its id, name and arguments."""
        last = pieces[-1]
        return Piece(
            last.index,
            "".join([piece.reasoning for piece in pieces]),
            "".join([piece.content for piece in pieces]),
            joined_calls([call for piece in pieces for call in piece.tool_calls]),
            [token for piece in pieces for token in piece.token_ids],
            [row for piece in pieces for row in piece.logprobs],
            last.finish_reason,
            last.stop_reason,
            last.num_prompt_tokens,
            last.num_cached_tokens,
            sum(piece.num_reasoning_tokens for piece in pieces),
            pieces[0].prompt_logprobs,
        )


@dataclass(slots=True)
class _Prompt:
    """What the choices of one prompt give back of it."""

    text: str
    has_logprobs: bool
    logprobs: list[TokenLogprobs | None] | None = None  # come with a delta of its first sample


class _Choice:
    """Reads one choice."""

    def __init__(self, index: int, asked: OpenAIRequest, prompt: _Prompt, *, thinking: bool) -> None:
        self._index = index
        self._prompt: _Prompt | None = prompt if prompt.text or prompt.has_logprobs else None  # until it has been given back
        self._reasoning = None if asked.reasoning is None else asked.reasoning.stream(thinking)
        self._thought = None if asked.reasoning is None else Thought(asked.tokenizer, is_open=thinking, limit=None)
        self._calls = _call_reader(asked)
        self._one_call = not asked.tool_use.parallel
        self._prompt_only = asked.prompt_only
        self._has_calls = False
        self._held: Piece | None = None  # has nothing to show yet

    def read(self, delta: OutputDelta) -> Piece | None:
        last = delta.finish_reason is not None
        if last and (error := failure(delta)) is not None:
            raise error
        piece = self._held or Piece(self._index)
        if not self._prompt_only:
            self._add(piece, delta, last)
        piece.num_prompt_tokens = delta.num_prompt_tokens
        piece.num_cached_tokens = delta.num_cached_tokens
        begun = self._prompt is None or self._give_back(self._prompt, piece, delta)
        if last:
            self._end(piece, delta)
        elif not begun or not (piece.content or piece.reasoning or piece.tool_calls):
            self._held = piece
            return None
        self._held = None
        return piece

    def _add(self, piece: Piece, delta: OutputDelta, last: bool) -> None:
        piece.token_ids += delta.token_ids
        piece.logprobs += delta.logprobs
        text = delta.text
        if self._reasoning is not None and self._thought is not None:
            thought, text = self._reasoning.push(text)
            if last:
                rest, more = self._reasoning.finish()
                thought, text = thought + rest, text + more
            piece.reasoning += thought
            piece.num_reasoning_tokens += _count(self._thought, delta.token_ids)
        if self._calls is not None:
            text = self._without_calls(self._calls, piece, text, last)
        piece.content += text

    def _without_calls(self, reader: CallReader, piece: Piece, text: str, last: bool) -> str:
        text, calls = reader.push(text)
        if last:
            rest, more = reader.finish()
            text, calls = text + rest, calls + more
        if self._one_call:
            calls = [call for call in calls if call.index == 0]
        piece.tool_calls += calls
        self._has_calls = self._has_calls or bool(calls)
        return text

    def _give_back(self, prompt: _Prompt, piece: Piece, delta: OutputDelta) -> bool:
        """Put what is asked for of the prompt before the choice's first text; False if that is not there yet."""
        if delta.prompt_logprobs is not None:
            prompt.logprobs = delta.prompt_logprobs
        if prompt.has_logprobs and prompt.logprobs is None and delta.finish_reason is None:
            return False
        piece.content = prompt.text + piece.content
        piece.prompt_logprobs = prompt.logprobs
        self._prompt = None
        return True

    def _end(self, piece: Piece, delta: OutputDelta) -> None:
        if self._prompt_only:
            piece.finish_reason = "length"
        elif delta.finish_reason == "stop":
            piece.finish_reason = "tool_calls" if self._has_calls else "stop"
            piece.stop_reason = delta.stop_reason
        else:
            piece.finish_reason = "length"


def _call_reader(asked: OpenAIRequest) -> CallReader | None:
    use = asked.tool_use
    if use.mode == "named":
        return NamedCallStream(use.name)
    if use.mode == "required":
        return CallListStream()
    return None if asked.tool_parser is None else asked.tool_parser.stream()


def _count(thought: Thought, token_ids: Iterable[int]) -> int:
    """How many of the next tokens belong to the thought."""
    count = 0
    for token in token_ids:
        before = thought.open
        thought.push(token)
        count += before or thought.open
    return count


def joined_calls(deltas: Iterable[ToolCallDelta]) -> list[ToolCallDelta]:
    """One delta per call."""
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        calls.setdefault(delta.index, []).append(delta)
    return [
        ToolCallDelta(index, own[0].id, own[0].name, "".join([delta.arguments for delta in own]))
        for index, own in calls.items()
    ]
