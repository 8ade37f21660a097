"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["StopMatch", "StopPatterns", "StopStrings"]


class StopMatch(NamedTuple):
    """`stop` was found; `before` is the text that had not been given out yet and stands before it."""

    stop: str
    before: str


class StopPatterns:
    """The stop strings of a request, with what watching for them needs: worked out once, for all its samples."""

    __slots__ = ("failures", "first", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings."""
        self.stops = tuple(stops)
        self.failures = [_failure_function(stop) for stop in self.stops]
        self.first = frozenset(stop[0] for stop in self.stops)


class StopStrings:
    """Watches one text for several stop strings.

    The match that is complete first counts; of those that are complete at the same character, the longest. So the result
    does not depend on how the text is cut. Each string has its own Knuth-Morris-Pratt automaton: a character costs amortised
    constant time per stop string, however the strings repeat themselves.
    """

    __slots__ = ("_held", "_patterns", "_states")

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._states = [0] * len(patterns.stops)
        self._held = ""

    def push(self, text: str, may_match: bool = True) -> str | StopMatch:
        """The text that is safe to show after adding `text`, or the match; after a match nothing more may be pushed.

        Held back is the longest end of the text that is the beginning of a stop string. Stop strings that are complete inside
        a text that may not match are text like any other.
        """
        if not self._held and self._patterns.first.isdisjoint(text):
            return text
        waiting = self._held + text
        offset = len(self._held)
        for index, char in enumerate(text):
            found = self._step(char)
            if found is not None and may_match:
                return StopMatch(found, waiting[: offset + index + 1 - len(found)])
        keep = max(self._states)
        safe = len(waiting) - keep
        self._held = waiting[safe:]
        return waiting[:safe]

    def flush(self) -> str:
        """What was held back: the text has ended."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._states)
        return held

    def _step(self, char: str) -> str | None:
        """Advance all automata; the longest stop string that ends with this character."""
        found: str | None = None
        failures = self._patterns.failures
        for i, stop in enumerate(self._patterns.stops):
            state = self._states[i]
            while state and stop[state] != char:
                state = failures[i][state - 1]
            if stop[state] == char:
                state += 1
                if state == len(stop):
                    if found is None or state > len(found):
                        found = stop
                    state = failures[i][state - 1]
            self._states[i] = state
        return found


def _failure_function(pattern: str) -> list[int]:
    """Per position, the length of the longest proper beginning of `pattern` that ends there (Knuth, Morris, Pratt 1977)."""
    failures = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = failures[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        failures[i] = length
    return failures
