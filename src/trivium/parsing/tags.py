"""Finding tags in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["first_tag", "partial_tag"]


def first_tag(text: str, tags: Iterable[str]) -> tuple[int, str] | None:
    """Position and name of the tag that begins first, None if there is none."""
    found = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
    return min(found, default=None)


def partial_tag(text: str, tags: Iterable[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a tag; a whole tag does not count."""
    longest = 0
    for tag in tags:
        for length in range(min(len(tag) - 1, len(text)), longest, -1):
            if text.endswith(tag[:length]):
                longest = length
                break
    return longest
