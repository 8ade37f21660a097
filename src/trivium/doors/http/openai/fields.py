"""`Fields`: reading the members of a JSON object by type, with errors that name the member, what is allowed and what came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from trivium.errors import RequestError

__all__ = ["Fields", "is_integer", "is_list", "is_number", "is_one_of", "renamed", "too_many", "wrong"]

_SHOWN_CHARS = 80  # of a wrong value in an error's message


def wrong(field: str, allowed: str, value: object) -> RequestError:
    """An error that names the field, what was allowed and what came, cut short if that is long."""
    shown = value[:_SHOWN_CHARS] if isinstance(value, str) else value
    return RequestError(f"{field} must be {allowed}, got {shown!r:.{_SHOWN_CHARS}}", field=field, allowed=allowed, value=value)


def renamed(error: RequestError, field: str) -> RequestError:
    """An error of the engine, told of the field that the client knows."""
    message, old = str(error), str(error.field)
    message = field + message[len(old) :] if message.startswith(f"{old} must ") else f"{field}: {message}"
    return RequestError(message, field=field, allowed=error.allowed, value=error.value)


class Fields:
    """A JSON object from a client. Null counts as not given. What is never read is unknown: `unread` tells it.

    Every method that reads raises `RequestError` for a value of a wrong type or outside of its range, and gives None for a
    member that is not there.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._given = {name: value for name, value in values.items() if value is not None}
        self._prefix = prefix
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def name(self, name: str) -> str:
        """A member's name as errors tell it."""
        return self._prefix + name

    def any(self, *names: str) -> Any:
        """A member of any type; with several names, all are read and the first that is there counts."""
        self._read.update(names)
        return next((self._given[name] for name in names if name in self._given), None)

    def wrong(self, name: str, allowed: str) -> RequestError:
        """The error for a member."""
        return wrong(self.name(name), allowed, self._given.get(name))

    def required(self, name: str, allowed: str) -> Any:
        """A member of any type that must be there."""
        if name not in self._given:
            raise RequestError(f"{self.name(name)} must be given", field=self.name(name), allowed=allowed)
        return self.any(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.any(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false")

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        value = self.any(name)
        if value is None:
            return None
        if is_integer(value) and (low is None or low <= value) and (high is None or value <= high):
            return int(value)
        if low is None:
            raise self.wrong(name, "an integer")
        if low == high:
            raise self.wrong(name, f"{low}")
        raise self.wrong(name, f"an integer >= {low}" if high is None else f"an integer from {low} to {high}")

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.any(name)
        if value is None:
            return None
        if is_number(value) and low <= value <= high:
            return float(value)
        raise self.wrong(name, f"a number from {low:g} to {high:g}")

    def string(self, name: str, allowed: str = "a string") -> str | None:
        value = self.any(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, allowed)

    def choice(self, name: str, *allowed: str) -> str | None:
        """One of several words."""
        value = self.any(name)
        if value is None or (isinstance(value, str) and value in allowed):
            return value
        raise self.wrong(name, " or ".join(map(repr, allowed)))

    def list(
        self, name: str, allowed: str, fits: Callable[[Any], bool] = lambda value: True, most: int | None = None
    ) -> list[Any]:
        """A list whose members all fit; an empty one if it is not there."""
        values = self.any(name)
        if values is None:
            return []
        if not is_list(values) or not all(map(fits, values)):
            raise self.wrong(name, allowed)
        if most is not None and len(values) > most:
            raise too_many(self.name(name), most, len(values))
        return list(values)

    def mapping(self, name: str, allowed: str = "an object") -> dict[str, Any] | None:
        value = self.any(name)
        if value is None or isinstance(value, dict):
            return value
        raise self.wrong(name, allowed)

    def object(self, name: str, allowed: str = "an object") -> Fields | None:
        """An object whose members are read in turn."""
        value = self.mapping(name, allowed)
        if value is None:
            return None
        inner = Fields(value, f"{self.name(name)}.")
        self._inner.append(inner)
        return inner

    def unread(self) -> Iterator[str]:
        """Names of the members that nothing has asked for."""
        for name in self._given:
            if name not in self._read:
                yield self.name(name)
        for inner in self._inner:
            yield from inner.unread()


def too_many(field: str, most: int, count: int) -> RequestError:
    """The error for a list that is too long."""
    return RequestError(
        f"{field} must have at most {most} entries, got {count}", field=field, allowed=f"at most {most}", value=count
    )


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_one_of(value: object, allowed: Iterable[object]) -> bool:
    """Whether a value of a body is among these; true and false are no numbers."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)
