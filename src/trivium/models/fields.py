"""Typed, range-checked access to a model's untrusted metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.errors import ModelLoadError

__all__ = ["Fields"]


class Fields:
    """A config.json object or GGUF metadata; `label` says which in errors.

    A value that is missing or null takes the default; without a default it is an error. Every error is a
    `ModelLoadError` that names the field, what is allowed and what came.
    """

    __slots__ = ("label", "values")

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self.values = values
        self.label = label

    def name(self, key: str) -> str:
        """How errors call a field."""
        return f"{self.label}: {key}"

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value; null counts as missing."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._error(key, f"an integer {low}..{high}", value)
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.get(key, default)
        # Comparing as they are: float() of a huge integer would raise, and NaN fails the comparison.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise self._error(key, f"a number {low:g}..{high:g}", value)
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Like `number`, None when missing."""
        return None if self.get(key) is None else self.number(key, low, high)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._error(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self._error(key, "a string", value)
        return value

    def _error(self, key: str, allowed: str, value: object) -> ModelLoadError:
        came = "nothing" if value is None else f"{value!r:.80}"
        return ModelLoadError(f"{self.name(key)} must be {allowed}, got {came}")
