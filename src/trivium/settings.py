"""`Settings`: dataclasses whose fields are at once flags, `TRIVIUM_…` variables and TOML keys."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from trivium.errors import ConfigError

__all__ = ["Settings", "option", "require"]

Kind = TypeVar("Kind", bound="Settings")


def option(default: Any, help: str) -> Any:
    """A field of a `Settings` class: its default and its line in `--help` and the docs."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def require(condition: bool, name: str, allowed: str, value: object) -> None:
    """Raise `ConfigError` naming the field, what is allowed and what came, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")


@dataclass(slots=True)
class Settings:
    """Base of configurations. Types are int, float, bool, str, list[str], Literal, each perhaps with None.

    A TOML file may serve several configurations: the keys of `table` (None: those at its top) belong to this class.
    """

    table: ClassVar[str | None] = None

    def coerce(self) -> None:
        """Bring every field to its type, or raise `ConfigError`: for `__post_init__`, before the checks of ranges."""
        hints = _hints(type(self))
        for f in fields(self):
            setattr(self, f.name, _coerce(f.name, getattr(self, f.name), hints[f.name]))

    @classmethod
    def help(cls) -> dict[str, str]:
        """Field name -> one line of help."""
        return {f.name: str(f.metadata["help"]) for f in fields(cls)}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a field."""
        f = next(f for f in fields(cls) if f.name == name)
        return f.default_factory() if f.default_factory is not MISSING else f.default

    @classmethod
    def load(
        cls: type[Kind],
        flags: Mapping[str, Any] | None = None,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> Kind:
        """Merge options: flags stand above `TRIVIUM_…` variables, above the TOML file, above `base`, above the defaults.

        None, and an empty list, in `flags` count as not given.
        """
        hints = _hints(cls)
        names = [f.name for f in fields(cls)]
        values: dict[str, Any] = dict(base or {})
        if file is not None:
            values.update(_read_toml(Path(file), names, cls.table))
        for name in names:
            text = (os.environ if environ is None else environ).get(f"TRIVIUM_{name.upper()}")
            if text is not None:
                values[name] = _parse(name, text, hints[name])
        for name, value in (flags or {}).items():
            if name not in names:
                raise ConfigError(f"unknown option {name!r}")
            if value is not None and value != [] and value != ():
                values[name] = value
        return cls(**values)


def _hints(cls: type[Settings]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    for kind in _alternatives(hint):
        if kind is type(None) and value is None:
            return None
        if typing.get_origin(kind) is Literal and value in typing.get_args(kind):
            return value
        if typing.get_origin(kind) is list and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
            return list(value)
        if kind is str and isinstance(value, (str, os.PathLike)):
            return os.fspath(value)
        if kind is int and number and (isinstance(value, int) or (math.isfinite(value) and value == int(value))):
            return int(value)
        if kind is float and number and abs(value) <= sys.float_info.max:  # isfinite() cannot take integers above that
            return float(value)
        if kind is bool and isinstance(value, bool):
            return value
    raise ConfigError(f"{name} must be {_describe(hint)}, got {value!r}")


def _parse(name: str, text: str, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if kind is bool and text.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            return text.lower() in ("1", "true", "yes", "on")
        if kind is int and re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            return int(text)
        if kind is float and re.fullmatch(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?", text):
            return float(text)
        # A variable that is set but empty is a mistake, and a dangerous one where the list is of keys.
        if typing.get_origin(kind) is list and (words := [word for word in re.split(r"[\s,]+", text) if word]):
            return words
        if kind is str or (typing.get_origin(kind) is Literal and text in typing.get_args(kind)):
            return text
    raise ConfigError(f"TRIVIUM_{name.upper()} must be {_describe(hint)}, got {text!r}")


def _describe(hint: Any) -> str:
    known = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    words = []
    for kind in _alternatives(hint):
        if kind is type(None):
            words.append("unset")
        elif typing.get_origin(kind) is Literal:
            words += [repr(v) for v in typing.get_args(kind)]
        else:
            words.append("a list of strings" if typing.get_origin(kind) is list else known[kind])
    return " or ".join(words)


def _read_toml(path: Path, names: list[str], table: str | None) -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        with path.open("rb") as file:
            content: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from error
    if table is None:
        values = {name: value for name, value in content.items() if name not in _TABLES}
    else:
        values = content.get(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {table} must be a table, got {values!r}")
    for name in values:
        if name not in names:
            raise ConfigError(f"{path}: unknown option {name!r}; known are {', '.join(names)}")
    return values


# Tables of a TOML file that belong to the configuration of a door, and not to the engine.
_TABLES = frozenset({"server", "unit"})
