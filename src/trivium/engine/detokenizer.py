"""Token ids to text as they come, never showing half a character or the beginning of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from trivium.engine.stop_strings import StopMatch, StopPatterns, StopStrings
from trivium.models.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one answer.

    Without stop strings the pieces, put together, are `tokenizer.decode` of all tokens. With them the text ends before the
    first match, or after it with `include_stop`. Matches that are complete before token number `min_tokens` are text.

    Attributes:
        stopped: the stop string that was found, None until then.
        num_tokens: tokens pushed, up to and including the one that completed the stop string.
    """

    __slots__ = (
        "_decoder",
        "_finished",
        "_include_stop",
        "_matcher",
        "_min_tokens",
        "_parts",
        "_skipped",
        "_strip",
        "_token_bytes",
        "num_tokens",
        "stopped",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: StopPatterns | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._strip = tokenizer.strips_leading_space
        self._decoder = _new_decoder("replace")
        self._matcher = None if stop is None else StopStrings(stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._parts: list[str] = []
        self._finished = False
        self.stopped: str | None = None
        self.num_tokens = 0

    @property
    def text(self) -> str:
        """All text given out so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, token_ids: Sequence[int], final: bool = False) -> str:
        """Add tokens; returns the text that may be shown now.

        `final` says that these are the last ones: what was held back comes, an incomplete character as U+FFFD. After a stop
        string, or after the end, tokens are ignored.
        """
        if self._finished:
            return ""
        shown = ""
        for token_id in token_ids:
            self.num_tokens += 1
            if token_id in self._skipped:
                continue
            shown += self._add(self._decoder.decode(self._token_bytes(token_id)))
            if self._finished:
                break
        if final and not self._finished:
            shown += self._end()
        if shown:
            self._parts.append(shown)
        return shown

    def flush(self) -> str:
        """The answer has ended: what was held back."""
        return self.push((), final=True)

    def _add(self, text: str) -> str:
        if not text:
            return ""
        if self._strip:
            self._strip = False
            text = text[1:] if text[0] == " " else text
        if self._matcher is None:
            return text
        safe = self._matcher.push(text, may_match=self.num_tokens >= self._min_tokens)
        if isinstance(safe, StopMatch):
            self.stopped = safe.stop
            self._finished = True
            return safe.before + safe.stop if self._include_stop else safe.before
        return safe

    def _end(self) -> str:
        shown = self._add(self._decoder.decode(b"", True))
        if self._matcher is not None and not self._finished:
            shown += self._matcher.flush()
        self._finished = True
        return shown
