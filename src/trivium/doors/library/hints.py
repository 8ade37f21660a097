"""Errors for misspelt keyword names, with the name that was probably meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

__all__ = ["suggest_names", "unknown_name"]

T = TypeVar("T")


def unknown_name(owner: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for keyword `name` that `owner` does not take, with the nearest known name if there is one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{owner} got an unexpected keyword argument {name!r}{hint}")


def suggest_names(cls: type[T]) -> type[T]:
    """Class decorator: an unknown keyword of `__init__` raises `TypeError` with a suggestion."""
    original: Any = cls.__init__
    known = [name for name in inspect.signature(original).parameters if name != "self"]

    @functools.wraps(original)
    def init(self: T, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise unknown_name(cls.__name__, name, known)
        original(self, *args, **kwargs)

    setattr(cls, "__init__", init)  # noqa: B010  mypy forbids assigning to a method
    return cls
