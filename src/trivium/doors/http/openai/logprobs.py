"""Log-probabilities in the forms of the chat, the completions and the prompt."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.doors.http.openai.pieces import Piece
    from trivium.doors.http.openai.request import OpenAIRequest
    from trivium.engine.outputs import TokenLogprobs
    from trivium.engine.request import GenerationRequest
    from trivium.models.tokenizer import Tokenizer

__all__ = ["CompletionLogprobs", "chat_logprobs", "completion_logprobs", "prompt_logprobs"]

_LEAST = -9999.0  # JSON has no infinity
_new_decoder = codecs.getincrementaldecoder("utf-8")


def chat_logprobs(rows: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat: an entry per token, with the bytes that the token has."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, _LEAST), "bytes": list(data)}

    return [
        token(row.token_id, row.logprob) | {"top_logprobs": [token(other, value) for other, value in row.top]} for row in rows
    ]


def prompt_logprobs(rows: Sequence[TokenLogprobs | None], tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """`prompt_logprobs`: per token of the prompt an object from token ids to scores; null for the first."""

    def score(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": _text(tokenizer.token_bytes(token_id))}

    told: list[dict[str, Any] | None] = []
    for row in rows:
        if row is None:
            told.append(None)
            continue
        scores = {str(row.token_id): score(row.token_id, row.logprob, row.rank)}
        for rank, (other, logprob) in enumerate(row.top, 1):
            scores.setdefault(str(other), score(other, logprob, rank))
        told.append(scores)
    return told


class CompletionLogprobs:
    """`logprobs` of one choice of a completion, whole or piece by piece. Offsets count characters of the choice's text."""

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer, echo: str | None) -> None:
        """`echo` is the text of the prompt if the choice begins with it."""
        sampling = request.sampling
        self._prompt_ids = request.prompt_token_ids
        self._count = sampling.logprobs or 0
        self._tokenizer = tokenizer
        self._echo = echo
        self._skipped: frozenset[int] = tokenizer.special_ids if sampling.skip_special_tokens else frozenset()
        self._offset = 0
        self._decoder = _new_decoder("replace")

    def tell(self, piece: Piece) -> dict[str, list[Any]]:
        """What is new; the first piece of all tells of the echo, too."""
        rows: list[TokenLogprobs | None] = [*piece.logprobs]
        offsets: list[int] = []
        if self._echo is not None:
            rows = [*(piece.prompt_logprobs or [None] * len(self._prompt_ids)), *rows]
            offsets = self._prompt_offsets(self._echo)
            self._echo = None
        offsets += [self._advance(row.token_id, self._skipped) for row in piece.logprobs]
        token_ids = [*self._prompt_ids[: len(rows) - len(piece.logprobs)], *(row.token_id for row in piece.logprobs)]
        return {
            "tokens": [_text(self._tokenizer.token_bytes(token_id)) for token_id in token_ids],
            "token_logprobs": [None if row is None else max(row.logprob, _LEAST) for row in rows],
            "top_logprobs": [None if row is None else self._top(row) for row in rows],
            "text_offset": offsets,
        }

    def _prompt_offsets(self, echo: str) -> list[int]:
        """Special tokens of a prompt are part of its text, but for a begin token that was put before it."""
        first = self._prompt_ids[0]
        text = self._tokenizer.token_bytes(first).decode("utf-8", "replace")
        hidden = frozenset() if echo.startswith(text) else self._tokenizer.special_ids & {first}
        offsets = [self._advance(token_id, hidden if index == 0 else ()) for index, token_id in enumerate(self._prompt_ids)]
        self._offset, self._decoder = len(echo), _new_decoder("replace")
        return offsets

    def _advance(self, token_id: int, hidden: Collection[int]) -> int:
        """Where a token begins in the text."""
        begin = self._offset
        if token_id not in hidden:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return begin

    def _top(self, row: TokenLogprobs) -> dict[str, float]:
        """The alternatives by their texts, the token itself among them. Of two with one text the likelier counts."""
        top: dict[str, float] = {}
        for token_id, logprob in (*row.top[: self._count], (row.token_id, row.logprob)):
            top.setdefault(_text(self._tokenizer.token_bytes(token_id)), max(logprob, _LEAST))
        return top


def completion_logprobs(asked: OpenAIRequest) -> list[CompletionLogprobs | None]:
    """One per choice, None without logprobs."""
    return [
        None if request.sampling.logprobs is None else CompletionLogprobs(request, asked.tokenizer, asked.echo_of(number))
        for number, request in enumerate(asked.requests)
        for _ in range(request.n)
    ]


def _text(data: bytes) -> str:
    """A token's text; one that is no whole characters is told by its bytes, so that no two are told alike."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
