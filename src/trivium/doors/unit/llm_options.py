"""From an llm setup to how tokens are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.setup import Setup
from trivium.engine.sampling import SamplingOptions
from trivium.errors import RequestError

__all__ = ["read_sampling"]

_MAX_TOKENS = 2**24


def read_sampling(setup: Setup, model_defaults: Mapping[str, Any]) -> SamplingOptions:
    """The options of every answer of a task.

    A value in the setup counts unless its `enable_…` flag is false, which turns the step off; then the model's
    generation_config.json; then the protocol's default. With top-k and top-p both turned off by flags the most likely token is
    taken. `max_token_len` limits the answer. Raises `UnitError` MODEL naming a field.
    """
    temperature = _Knob(setup, "enable_temperature", "temperature", model_defaults, unset=0.7, enabled=0.7, off=1.0)
    top_p = _Knob(setup, "enable_top_p_sampling", "top_p", model_defaults, unset=1.0, enabled=0.7, off=1.0)
    top_k = _Knob(setup, "enable_top_k_sampling", "top_k", model_defaults, unset=10, enabled=10, off=0)
    repetition = _Knob(
        setup, "enable_repetition_penalty", "repetition_penalty", model_defaults, unset=1.0, enabled=1.2, off=1.0
    )
    greedy = top_p.flag is False and top_k.flag is False
    window = setup.integer("penalty_window", 50, low=1, high=2**31 - 1) if repetition.asked else None
    try:
        return SamplingOptions(
            temperature=0.0 if greedy else temperature.number(0.0, 1e6),
            top_p=top_p.number(0.0, 1.0),
            top_k=int(top_k.whole()),
            min_p=float(model_defaults.get("min_p", 0.0)),
            repetition_penalty=repetition.number(1e-6, 1e6),
            penalty_window=window,
            max_tokens=setup.integer("max_token_len", 127, low=1, high=_MAX_TOKENS),
        )
    except RequestError as error:
        raise UnitError(Code.MODEL, str(error)) from None


class _Knob:
    """One step of sampling: its flag, its value, and where the value comes from if it is not given."""

    def __init__(
        self,
        setup: Setup,
        flag: str,
        name: str,
        model_defaults: Mapping[str, Any],
        *,
        unset: float,
        enabled: float,
        off: float,
    ) -> None:
        self._setup = setup
        self._name = name
        self._off = off
        self.flag = setup.flag(flag, True) if setup.has(flag) else None
        self.asked = self.flag is not False and (self.flag is True or setup.has(name))
        self._default = model_defaults.get(name, enabled if self.flag else unset)

    def number(self, low: float, high: float) -> float:
        value = self._setup.number(self._name, self._default, low=low, high=high)
        return self._off if self.flag is False else value

    def whole(self) -> float:
        value = self._setup.integer(self._name, int(self._default), low=-1, high=2**31 - 1)
        return self._off if self.flag is False else value
