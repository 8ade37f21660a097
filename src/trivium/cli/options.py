"""Flags of the commands: made from the fields of `EngineConfig` and the other `Settings`."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

import click

from trivium.config import EngineConfig
from trivium.settings import Settings

__all__ = ["EngineCommand", "engine_options", "read_config", "read_lone_config", "read_settings", "settings_options"]

Function = typing.TypeVar("Function", bound=Callable[..., Any])
Kind = typing.TypeVar("Kind", bound=Settings)

_SHORT = {"model": ["-m"]}
_ENGINE = "Engine options"


class SettingsOption(click.Option):
    """A flag that becomes a field of a `Settings` class; help lists it under `section`."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class EngineCommand(click.Command):
    """A command whose help lists the flags of the engine, and of a door, apart from its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                title = parameter.section if isinstance(parameter, SettingsOption) else "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def settings_options(kind: type[Settings], section: str, *, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Decorator: a flag for every field of `kind` but those of `without`; help lists them under `section`.

    The command gets them as keywords named like the fields, None (or empty) where not given.
    """

    def decorate(function: Function) -> Function:
        for field in reversed(fields(kind)):
            if field.name not in without:
                function = _settings_option(kind, field.name, section)(function)
        return function

    return decorate


def engine_options(*, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Decorator: `--config FILE`, given as `config_file`, and a flag for every field of `EngineConfig` but `without`."""

    def decorate(function: Function) -> Function:
        function = click.option(
            "--config",
            "config_file",
            cls=SettingsOption,
            section=_ENGINE,
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="TOML file of options; TRIVIUM_… variables stand above it, flags above both.",
        )(function)
        return settings_options(EngineConfig, _ENGINE, without=without)(function)

    return decorate


def read_settings(
    kind: type[Kind], flags: dict[str, Any], *, file: str | None = None, base: Mapping[str, Any] | None = None, **fixed: Any
) -> Kind:
    """Take the fields of `kind` out of a command's keywords and build the configuration; `fixed` values stand above all.

    Raises `ConfigError`.
    """
    names = [f.name for f in fields(kind) if f.name in flags]
    return kind.load({name: flags.pop(name) for name in names} | fixed, file=file, base=base)


def read_config(flags: dict[str, Any], **fixed: Any) -> EngineConfig:
    """`read_settings` for the engine, with the file of `--config`."""
    return read_settings(EngineConfig, flags, file=flags.pop("config_file", None), **fixed)


def read_lone_config(flags: dict[str, Any]) -> EngineConfig:
    """The configuration of a command that runs one sequence at a time.

    Such a sequence waits for memory, not for arithmetic, so near exact activations cost it nothing: they are its "auto".
    """
    config = read_config(flags, max_num_seqs=1)
    return replace(config, activation_dtype="int16") if config.activation_dtype == "auto" else config


def _settings_option(settings: type[Settings], name: str, section: str) -> Callable[[Function], Function]:
    flag = f"--{name.replace('_', '-')}"
    kind = _kind(typing.get_type_hints(settings)[name])
    many = typing.get_origin(kind) is list
    declarations = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag, *_SHORT.get(name, ())]
    return click.option(
        *declarations,
        name,
        cls=SettingsOption,
        section=section,
        type=click.Choice(typing.get_args(kind)) if typing.get_origin(kind) is Literal else str if many else kind,
        multiple=many,
        default=() if many else None,
        help=_help(settings, name),
    )


def _kind(hint: Any) -> Any:
    """The type of a field, without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _help(settings: type[Settings], name: str) -> str:
    text = settings.help()[name]
    default = settings.default(name)
    known = default is None or default == [] or isinstance(default, bool) or "default" in text
    return text + ("." if known else f" (default: {default}).")
