"""`Setup`: the data of a setup command, read with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from trivium.doors.unit.errors import Code, UnitError

__all__ = ["MAX_NAME", "Setup"]

MAX_NAME = 256  # characters of a model's name, a format or an input
_MAX_INPUTS = 64

Value = TypeVar("Value")


@dataclass(slots=True)
class Setup:
    """What every unit's setup has, and all fields under `values` for those that only some have, until the task is made.

    `inputs` are as given: texts like "llm.utf-8", "asr.1001", "sys.pcm".
    """

    model: str
    response_format: str
    enoutput: bool
    inputs: list[str]
    values: dict[str, Any]

    @classmethod
    def read(cls, data: Any) -> Setup:
        """Raises `UnitError`: JSON if `data` is no object (nor the text of one), MODEL for a field that is missing or wrong."""
        values = _object(data)
        given = cls("", "", True, [], values)
        given.model = _name("model", given.text("model"))
        given.response_format = _name("response_format", given.text("response_format"))
        given.enoutput = given.flag("enoutput")
        inputs = values["input"] if given.has("input") else []
        names = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(names, list) or len(names) > _MAX_INPUTS or not all(isinstance(name, str) for name in names):
            raise _wrong("input", f"a string or an array of at most {_MAX_INPUTS} strings", inputs)
        given.inputs = [_name("input", name) for name in names]
        return given

    @property
    def streams(self) -> bool:
        """Whether the answer is wanted in pieces."""
        return "stream" in self.response_format

    # Each of these raises `UnitError` MODEL for a value of another kind; without a default the field must be there.

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return self._get(name, default, "a string", lambda value: value if isinstance(value, str) else None)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """A boolean."""
        return self._get(name, default, "true or false", lambda value: value if isinstance(value, bool) else None)

    def integer(self, name: str, default: int | None = None, *, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""

        def read(value: Any) -> int | None:
            number = _finite(value)
            return int(number) if number is not None and number == int(number) and low <= number <= high else None

        return self._get(name, default, f"an integer from {low} to {high}", read)

    def number(self, name: str, default: float | None = None, *, low: float, high: float) -> float:
        """A number from `low` to `high`."""

        def read(value: Any) -> float | None:
            number = _finite(value)
            return number if number is not None and low <= number <= high else None

        return self._get(name, default, f"a number from {low:g} to {high:g}", read)

    def has(self, name: str) -> bool:
        """Whether a field is given, and not null."""
        return self.values.get(name) is not None

    def _get(self, name: str, default: Value | None, allowed: str, read: Callable[[Any], Value | None]) -> Value:
        if not self.has(name):
            if default is None:
                raise UnitError(Code.MODEL, f"{name} is missing; it must be {allowed}")
            return default
        value = read(self.values[name])
        if value is None:
            raise _wrong(name, allowed, self.values[name])
        return value


def _object(data: Any) -> dict[str, Any]:
    if isinstance(data, str):
        try:
            data = orjson.loads(data)
        except ValueError:
            raise UnitError(Code.JSON) from None
    if not isinstance(data, dict):
        raise UnitError(Code.JSON)
    return data


def _finite(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None


def _name(field: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise _wrong(field, f"at most {MAX_NAME} characters", text)
    return text


def _wrong(name: str, allowed: str, value: Any) -> UnitError:
    return UnitError(Code.MODEL, f"{name} must be {allowed}, got {value!r:.80}")
