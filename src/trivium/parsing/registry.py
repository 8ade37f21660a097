"""Parsers by name, and what a parser needs from the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from trivium.errors import ConfigError

__all__ = ["MissingTokenError", "ParserRegistry", "ParserTokenizer", "UnknownParserError", "require_tokens"]

Parser = TypeVar("Parser")


class UnknownParserError(ConfigError, KeyError):
    """No parser has this name."""

    # KeyError shows the repr of its argument; the message itself is what a user needs.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class MissingTokenError(ConfigError, RuntimeError):
    """The model's vocabulary lacks a token that the parser looks for."""


class ParserTokenizer(Protocol):
    """What parsers use of `trivium.models.tokenizer.Tokenizer`."""

    def token_id(self, text: str) -> int | None:
        """The id of the token with this text, None if there is none."""


class ParserRegistry(Generic[Parser]):
    """Parser classes under one or several names. In names, `_` and `-` are the same."""

    def __init__(self, option: str, base: type[Parser]) -> None:
        self._option = option
        self._base = base
        self._classes: dict[str, type[Parser]] = {}

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._classes)

    def register(self, *names: str) -> Callable[[type[Parser]], type[Parser]]:
        """Class decorator. Raises TypeError for a class that is not derived from the registry's base."""

        def add(parser: type[Parser]) -> type[Parser]:
            if not (isinstance(parser, type) and issubclass(parser, self._base)):
                raise TypeError(f"{self._option} must be a subclass of {self._base.__name__}, got {parser!r}")
            for name in names:
                self._classes[_normalise(name)] = parser
            return parser

        return add

    def get(self, name: str) -> type[Parser]:
        """The class of this name. Raises UnknownParserError, which lists the names."""
        parser = self._classes.get(_normalise(name))
        if parser is None:
            raise UnknownParserError(f"{self._option} must be one of {', '.join(self.names)}; got {name!r}")
        return parser


def require_tokens(parser: str, tokenizer: ParserTokenizer, tokens: Sequence[str]) -> None:
    """Raise MissingTokenError if one of `tokens` is not in the vocabulary."""
    for token in tokens:
        if tokenizer.token_id(token) is None:
            raise MissingTokenError(f"the parser {parser} needs the token {token!r}, which this model's vocabulary lacks")


def _normalise(name: str) -> str:
    return name.replace("_", "-")
