"""Flags of the commands: those of the engine are made from the fields of `EngineConfig`."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, Literal

import click

from trivium.config import EngineConfig

__all__ = ["EngineCommand", "engine_options", "read_config", "read_lone_config"]

Function = typing.TypeVar("Function", bound=Callable[..., Any])

_SHORT = {"model": ["-m"]}
_HINTS = typing.get_type_hints(EngineConfig)


class EngineOption(click.Option):
    """A flag that becomes a field of `EngineConfig`."""


class EngineCommand(click.Command):
    """A command whose help lists the engine's flags apart from its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Engine options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections["Engine options" if isinstance(parameter, EngineOption) else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def engine_options(*, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Decorator: `--config FILE` and a flag for every field of `EngineConfig` but those of `without`.

    The command gets them as keywords named like the fields, None where not given, and `config_file`.
    """

    def decorate(function: Function) -> Function:
        function = click.option(
            "--config",
            "config_file",
            cls=EngineOption,
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="TOML file of engine options; TRIVIUM_… variables stand above it, flags above both.",
        )(function)
        for field in reversed(fields(EngineConfig)):
            if field.name not in without:
                function = _engine_option(field.name)(function)
        return function

    return decorate


def read_config(flags: dict[str, Any], **fixed: Any) -> EngineConfig:
    """Take the engine's flags out of a command's keywords and build the configuration; `fixed` values stand above everything.

    Raises `ConfigError`.
    """
    names = [f.name for f in fields(EngineConfig) if f.name in flags]
    file = flags.pop("config_file", None)
    return EngineConfig.load({name: flags.pop(name) for name in names} | fixed, file=file)


def read_lone_config(flags: dict[str, Any]) -> EngineConfig:
    """The configuration of a command that runs one sequence at a time.

    Such a sequence waits for memory, not for arithmetic, so near exact activations cost it nothing: they are its "auto".
    """
    config = read_config(flags, max_num_seqs=1)
    return replace(config, activation_dtype="int16") if config.activation_dtype == "auto" else config


def _engine_option(name: str) -> Callable[[Function], Function]:
    flag = f"--{name.replace('_', '-')}"
    kind = _kind(_HINTS[name])
    declarations = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag, *_SHORT.get(name, ())]
    return click.option(
        *declarations,
        name,
        cls=EngineOption,
        type=click.Choice(typing.get_args(kind)) if typing.get_origin(kind) is Literal else kind,
        default=None,
        help=_help(name),
    )


def _kind(hint: Any) -> Any:
    """The type of a field, without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _help(name: str) -> str:
    text = EngineConfig.help()[name]
    default = EngineConfig.default(name)
    known = default is None or isinstance(default, bool) or "default" in text
    return text + ("." if known else f" (default: {default}).")
