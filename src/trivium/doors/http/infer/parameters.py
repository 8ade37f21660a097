"""What `parameters` of `/infer` may hold: one table, from which validation, the JSON schema and the docs are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trivium.doors.http.limits import MAX_PROMPT_CHARS
from trivium.errors import RequestError

__all__ = ["MAX_TOKENS", "MAX_TOKEN_ID", "PARAMETERS", "Parameter", "body_schema", "parameters_table", "read_parameters"]

MAX_TOKENS = 1048576  # of a prompt, whatever the model
MAX_TOKEN_ID = 1048576
_MAX_INT32 = 2**31 - 1
_MAX_UINT64 = 2**64 - 1

_TYPES = {"number": "a number", "integer": "an integer", "boolean": "true or false"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key. `low` and `high` belong to its range, `above` and `below` do not. Null counts as not given."""

    name: str
    kind: Literal["number", "integer", "boolean"]
    default: str
    help: str
    low: int | None = None
    high: int | None = None
    above: float | None = None
    below: float | None = None

    @property
    def allowed(self) -> str:
        """The type and range, in words."""
        limits = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        bounds = [
            f"{sign} {limit:{'g' if isinstance(limit, float) else 'd'}}" for sign, limit in limits.items() if limit is not None
        ]
        return " ".join([_TYPES[self.kind], " and ".join(bounds)]).strip()

    def check(self, value: Any) -> None:
        """Raise `RequestError` naming the key, its range and the value if it is of a wrong type or out of range."""
        if not self._fits(value):
            raise RequestError.out_of_range(f"parameters.{self.name}", self.allowed, value)

    def _fits(self, value: Any) -> bool:
        if self.kind == "boolean" or isinstance(value, bool):
            return self.kind == "boolean" and isinstance(value, bool)
        if not isinstance(value, int if self.kind == "integer" else (int, float)):
            return False
        return (
            (self.low is None or self.low <= value)
            and (self.high is None or value <= self.high)
            and (self.above is None or self.above < value)
            and (self.below is None or value < self.below)
        )

    def schema(self) -> dict[str, Any]:
        """As a JSON schema."""
        limits = {
            "minimum": self.low,
            "maximum": self.high,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
        }
        schema: dict[str, Any] = {"type": [self.kind, "null"], "description": f"{self.help} Default: {self.default}."}
        return schema | {name: limit for name, limit in limits.items() if limit is not None}


# In the order in which they are checked: the first that is wrong is told.
PARAMETERS = (
    Parameter(
        "temperature",
        "number",
        "the model's, else 1.0",
        "Higher values give more varied text; 0.001 to 2 is advised. Turns sampling on, as top_k and top_p do, unless "
        "do_sample says otherwise.",
        above=1e-6,
    ),
    Parameter(
        "top_k",
        "integer",
        "generation_config.json, then config.json, then 1000",
        "Only so many of the most likely tokens are drawn from; more than the vocabulary means all of it.",
        low=1,
        high=_MAX_INT32,
    ),
    Parameter(
        "top_p",
        "number",
        "the model's, else off",
        "Only the most likely tokens whose probabilities add up to this are drawn from.",
        above=1e-6,
        below=1.0,
    ),
    Parameter("typical_p", "number", "1.0", "Checked, without effect.", above=0.0, high=1),
    Parameter(
        "do_sample",
        "boolean",
        "as the other keys and the model say",
        "Whether tokens are drawn; false takes the most likely one each time.",
    ),
    Parameter(
        "seed",
        "integer",
        "a random one",
        "The same request with the same seed gives the same text. details tells the one that was used.",
        low=1,
        high=_MAX_UINT64,
    ),
    Parameter(
        "repetition_penalty",
        "number",
        "the model's, else 1.0",
        "Above 1 what has been there becomes less likely, below 1 more.",
        above=0.0,
    ),
    Parameter("watermark", "boolean", "false", "Checked, without effect."),
    Parameter("priority", "integer", "5", "1 is the most urgent.", low=1, high=5),
    Parameter(
        "max_new_tokens",
        "integer",
        "20",
        "Tokens of the answer at most; the server's max_output_len and the room in the context limit it too.",
        low=1,
        high=_MAX_INT32,
    ),
    Parameter("timeout", "integer", "600", "Seconds from the request's arrival to the end of its answer.", low=1, high=3600),
    Parameter("details", "boolean", "false", "Whether the answer tells finish_reason, generated_tokens and seed."),
)

_NAMES = frozenset(parameter.name for parameter in PARAMETERS)


def read_parameters(given: object) -> tuple[dict[str, Any], list[str]]:
    """The values that are there, and the names of unknown keys. Raises `RequestError` for the first wrong value."""
    if given is None:
        return {}, []
    if not isinstance(given, Mapping):
        raise RequestError.out_of_range("parameters", "an object", given)
    values = {}
    for parameter in PARAMETERS:
        value = given.get(parameter.name)
        if value is not None:
            parameter.check(value)
            values[parameter.name] = value
    return values, [name for name in given if name not in _NAMES]


def parameters_table() -> str:
    """The table as Markdown."""
    rows = [f"| `{p.name}` | {p.allowed} | {p.default} | {p.help} |" for p in PARAMETERS]
    return "\n".join(["| key | allowed | default | |", "|---|---|---|---|", *rows]) + "\n"


def body_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of the body of `/infer` and `/infer_token`, for a model that takes text."""
    part = {
        "type": "object",
        "properties": {"type": {"enum": ["text", None]}, "text": {"type": "string", "minLength": 1}},
        "required": ["text"],
    }
    prompt = {
        "inputs": {
            "description": "The prompt: a text, or a list of parts whose texts are joined.",
            "oneOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT_CHARS},
                {"type": "array", "minItems": 1, "items": part},
            ],
        },
        "input_id": {
            "description": "The prompt as token ids, instead of inputs.",
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_TOKENS,
            "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID},
        },
    }
    return {
        "type": "object",
        "properties": {
            **prompt,
            "stream": {
                "type": ["boolean", "null"],
                "description": "Send the answer as events while it is made. Default: false.",
            },
            "parameters": {
                "type": ["object", "null"],
                "properties": {parameter.name: parameter.schema() for parameter in PARAMETERS},
            },
        },
        "oneOf": [{"required": [name]} for name in prompt],
    }
