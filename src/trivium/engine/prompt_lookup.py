"""Prompt lookup: guesses what an answer goes on with from what its prompt, and the answer itself, have said before.

The idea is Apoorv Saxena's (https://github.com/apoorvumang/prompt-lookup-decoding). A guess costs a row of a step, and saves a
step if it is right: how many are made follows from how often they have been right and how many sequences share the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

from trivium.engine.sequence import Sequence

__all__ = ["PromptLookup"]

_GRAM = 3  # tokens that must have occurred before, in this order
_TOKEN_BITS = 32
_GRAM_MASK = (1 << _GRAM * _TOKEN_BITS) - 1
_LONGEST = 12  # tokens of an occurrence that tell how good it is
_COMPARED = 32  # tokens that are compared to find the best of several occurrences
_OCCURRENCES = 8  # the latest ones, that are compared
_MOST = 24  # guesses a step
_BUSY = 12  # sequences that share a step: with more a guess saves little of what its row and looking for it cost

# An answer that has left the text which it repeats, as an edit does, is likely to come back to it soon.
_FOLLOWED = 3  # guesses that were right at once: it does repeat a text
_NEAR = 6  # tokens around where it would be by now, among which its last one is looked for
_STRAYED = 1  # the kind of guesses that go on from there

# What a further row costs, as a part of the step of a single sequence, whose time is that of reading the weights.
_ROW_COST = 0.25

# How likely a guess is right, by the length of the occurrence, before anything is known; it counts as so many observations.
_PRIOR = {_STRAYED: 0.35, 3: 0.35, 4: 0.45, 6: 0.6, 9: 0.75, _LONGEST: 0.85}
_PRIOR_WEIGHT = 3.0
_FORGIVENESS = 0.01  # how much nearer to the prior a chance comes for each time that it was too low
_MEMORY = 0.9  # share of what was observed that still counts one proposal later


class PromptLookup:
    """A `Proposer`. Its state is kept with each sequence; it runs on the engine's thread."""

    def __call__(self, sequence: Sequence, limit: int, num_decoding: int) -> Series[int]:
        """At most `limit` tokens that may come next, when `num_decoding` sequences share the step."""
        if num_decoding > _BUSY:
            return ()
        history: _History | None = sequence.drafting
        if history is None:
            history = sequence.drafting = _History()
        tokens = sequence.tokens
        history.settle(tokens)
        start, kind = history.find(tokens)
        if start is None:
            return ()
        count = min(limit, history.worthwhile(kind, num_decoding))
        if count:
            history.proposed, history.kind, history.at = _continuation(tokens, start, count), kind, len(tokens)
            history.distance = len(tokens) - start
        return history.proposed


@dataclass(slots=True)
class _History:
    """What a sequence has said, and how well guesses have done.

    `ends` maps the last `_GRAM` tokens before a position, as one number, to the latest such positions, or to the only one: most
    stand alone, and a number takes a fifth of the memory. It covers `indexed` tokens, the last of which are `gram`.
    """

    ends: dict[int, int | deque[int]] = field(default_factory=dict)
    indexed: int = 0
    gram: int = 0
    proposed: tuple[int, ...] = ()
    kind: int = _GRAM
    at: int = 0  # where the first of `proposed` would stand
    distance: int = 0  # how far before that its like stands
    followed: int = 0  # the same of the text that the answer has last repeated, if any
    right: dict[int, float] = field(default_factory=lambda: {kind: _PRIOR_WEIGHT * p for kind, p in _PRIOR.items()})
    seen: dict[int, float] = field(default_factory=lambda: dict.fromkeys(_PRIOR, _PRIOR_WEIGHT))

    def settle(self, tokens: list[int]) -> None:
        """See which of the last guesses came true: those after the first wrong one, or the last token, were never tried."""
        if not self.proposed:
            return
        right = 0
        wrong = False
        for guess, token in zip(self.proposed, tokens[self.at :], strict=False):
            wrong = guess != token
            if wrong:
                break
            right += 1
        if right >= _FOLLOWED:
            self.followed = self.distance
        kind = self.kind
        self.right[kind] = _MEMORY * self.right[kind] + right
        self.seen[kind] = _MEMORY * self.seen[kind] + right + wrong
        self.proposed = ()

    def find(self, tokens: list[int]) -> tuple[int | None, int]:
        """The position after the occurrence of the last tokens that has most before it in common, and its kind."""
        starts = self.index(tokens)
        if not starts:
            return self.find_again(tokens), _STRAYED
        best, longest = 0, 0
        for start in reversed(starts):
            overlap = _overlap(tokens, start)
            if overlap > longest:
                best, longest = start, overlap
            if longest == _COMPARED:
                break
        return best, max(kind for kind in _PRIOR if kind <= longest)

    def index(self, tokens: list[int]) -> Series[int]:
        """Enter what ended before the last token; returns where the last `_GRAM` tokens have ended before."""
        ends, gram = self.ends, self.gram
        for end in range(self.indexed, len(tokens)):
            if end >= _GRAM:
                found = ends.get(gram)
                if found is None:
                    ends[gram] = end
                elif isinstance(found, int):
                    ends[gram] = deque((found, end), _OCCURRENCES)
                else:
                    found.append(end)
            gram = (gram << _TOKEN_BITS | tokens[end]) & _GRAM_MASK
        self.indexed, self.gram = len(tokens), gram
        starts = ends.get(gram, ()) if len(tokens) >= _GRAM else ()
        return (starts,) if isinstance(starts, int) else starts

    def find_again(self, tokens: list[int]) -> int | None:
        """Where the text may go on that the answer has repeated before it said something else: after its last token, nearby."""
        if not self.followed:
            return None
        expected = len(tokens) - self.followed
        for distance in sorted(range(-_NEAR, _NEAR + 1), key=abs):
            start = expected + distance
            if 0 < start < len(tokens) and tokens[start - 1] == tokens[-1]:
                return start
        return None

    def worthwhile(self, kind: int, num_decoding: int) -> int:
        """How many guesses pay: the n-th is tried if all before it are right too, and must be worth its row."""
        chance = self.right[kind] / self.seen[kind]
        # A right guess saves a row of a later step, and with it the sequence's share of reading the weights.
        price = _ROW_COST * num_decoding / (1.0 + _ROW_COST * (num_decoding - 1))
        if chance <= price:
            # What is not tried cannot do better, so a bad name is forgotten in time.
            self.right[kind] += _FORGIVENESS * (_PRIOR[kind] * self.seen[kind] - self.right[kind])
            return 0
        return _MOST if chance >= 1.0 else min(_MOST, int(math.log(price) / math.log(chance)))


def _overlap(tokens: list[int], start: int) -> int:
    """How many tokens before `start` equal those at the end."""
    length = _GRAM
    while length < min(start, _COMPARED) and tokens[start - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def _continuation(tokens: list[int], start: int, count: int) -> tuple[int, ...]:
    """The tokens from `start` on; past the end it goes on with what it has given, as a loop would."""
    found = tokens[start : start + count]
    period = len(tokens) - start
    while len(found) < count:
        found.append(found[len(found) - period])
    return tuple(found)
