"""The thought of a reasoning model: where it begins and ends, and how long it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.models.tokenizer import Tokenizer

__all__ = ["Thought"]

_OPEN = b"<think>"
_CLOSE = b"</think>"


class Thought:
    """Follows one sample's output through `<think> … </think>`.

    `open` tells whether the next token belongs to the thought. It is open from the start when the prompt ends inside a thought,
    or opens when the output begins with `<think>` (after white space); once closed it stays closed. With a `limit`, `push`
    returns the tokens of `</think>` once that many tokens of thought were generated.

    Tags are matched on bytes, because a model may spell them with one token or with several.
    """

    __slots__ = ("_closing_ids", "_count", "_head", "_limit", "_tail", "_tokenizer", "open")

    def __init__(self, tokenizer: Tokenizer, *, is_open: bool, limit: int | None) -> None:
        self.open = is_open
        self._tokenizer = tokenizer
        self._limit = limit
        self._closing_ids = tokenizer.encode(_CLOSE.decode()) if limit is not None else []
        self._count = 0
        self._head: bytes | None = None if is_open else b""  # the output so far, while it may still begin with the tag
        self._tail = b""

    def first_forced(self) -> list[int]:
        """Tokens that must come first: the closing tag, when the prompt's open thought may have no tokens at all."""
        return list(self._closing_ids) if self.open and self._limit == 0 else []

    def push(self, token: int) -> list[int]:
        """Take the next output token; return the tokens that must follow, mostly none."""
        if self._head is not None:
            return self._push_head(self._tokenizer.token_bytes(token))
        if not self.open:
            return []
        self._tail += self._tokenizer.token_bytes(token)
        if _CLOSE in self._tail:
            self.open = False
            return []
        self._tail = self._tail[1 - len(_CLOSE) :]
        self._count += 1
        return list(self._closing_ids) if self._count == self._limit else []

    def _push_head(self, piece: bytes) -> list[int]:
        begin = ((self._head or b"") + piece).lstrip()
        if begin.startswith(_OPEN):
            self.open, self._head = True, None
        elif _OPEN.startswith(begin):
            self._head = begin
        else:
            self._head = None
        return self.first_forced()
