"""Numbers of tokens on the command line: one, or a range from which each prompt draws its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["length_option"]

Function = TypeVar("Function", bound=Callable[..., Any])


def length_option(name: str, text: str) -> Callable[[Function], Function]:
    """Decorator: the option `name` takes N or MIN:MAX; the command gets both ends."""
    return click.option(name, type=_lengths, default="128", show_default=True, metavar="N|MIN:MAX", help=text)


def _lengths(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()) or not 1 <= int(low) <= int(high or low):
        raise click.BadParameter(f"must be a number of tokens >= 1, or MIN:MAX, got {text!r}")
    return int(low), int(high or low)
