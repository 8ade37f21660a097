"""Flags that say how tokens are chosen, for commands that answer one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from trivium.engine.sampling import SamplingOptions

__all__ = ["resolve_sampling", "sampling_options", "take_sampling"]

Function = TypeVar("Function", bound=Callable[..., Any])

# What neither a flag nor the model's generation_config.json says: calmer than the library door, for people who ask one thing
# at a time, and bounded, since a small model may repeat itself until the context is full.
_DEFAULTS = {"temperature": 0.3, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_MAX_TOKENS = 1024

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "Most tokens of the answer; default: 1024, or what the context has room for."),
    ("temperature", float, "0 takes the most likely token; default: the model's, else 0.3."),
    ("top_p", float, "Sample among the likeliest tokens of this total probability; default: the model's, else 0.9."),
    ("top_k", int, "Sample among so many likeliest tokens, 0 for all; default: the model's, else 0."),
    ("min_p", float, "Least probability relative to the likeliest token; default: the model's, else 0."),
    ("repetition_penalty", float, "Above 1 discourages tokens that were there before; default: the model's, else 1."),
    ("seed", int, "Same seed, same answer; default: random."),
)


def sampling_options(function: Function) -> Function:
    """Decorator: the flags above and `--stop`, as keywords that are None where not given."""
    function = click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")(function)
    for name, kind, text in reversed(_FLAGS):
        function = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(function)
    return function


def take_sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the flags that were given out of a command's keywords, checked: `RequestError` for a value out of its range."""
    from trivium.engine.sampling import SamplingOptions

    given = {name: flags.pop(name) for name, _, _ in _FLAGS}
    given = {name: value for name, value in given.items() if value is not None}
    given["stop"] = tuple(flags.pop("stop"))
    SamplingOptions(**given)
    return given


def resolve_sampling(given: Mapping[str, Any], model_defaults: Mapping[str, Any]) -> SamplingOptions:
    """What is not given comes from the model's generation_config.json, else it is the default."""
    from trivium.engine.sampling import SamplingOptions

    values = {name: model_defaults.get(name, default) for name, default in _DEFAULTS.items()}
    return SamplingOptions(**{**values, "max_tokens": _MAX_TOKENS, **given})
