"""Structured output: what `response_format`, `structured_outputs` and the fields `guided_…` ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.doors.http.openai.fields import Fields
from trivium.engine.sampling import GuidedOptions
from trivium.errors import RequestError

__all__ = ["STRUCTURES", "Structure", "read_structure"]

STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")  # as the engine calls them, also in its errors
_FORMATS = "of type text, json_object, or json_schema with json_schema.schema"


@dataclass(frozen=True, slots=True)
class Structure:
    """What an answer must fit, and the field that says so."""

    field: str
    options: GuidedOptions


def read_structure(fields: Fields) -> Structure | None:
    """At most one of the fields may ask for a structure. Raises `RequestError`."""
    found = [*_guided(fields), *_structured_outputs(fields), *_response_format(fields)]
    if len(found) > 1:
        names = " and ".join(structure.field for structure in found)
        raise RequestError(f"exactly one structure can be asked for, got {names}", field=found[-1].field, allowed="exactly one")
    return found[0] if found else None


def _guided(fields: Fields) -> list[Structure]:
    names = {kind: f"guided_{kind}" for kind in STRUCTURES}
    return [Structure(fields.name(names[kind]), options) for kind, options in _read_kinds(fields, names)]


def _structured_outputs(fields: Fields) -> list[Structure]:
    inner = fields.object("structured_outputs")
    if inner is None:
        return []
    found = _read_kinds(inner, {kind: kind for kind in STRUCTURES})
    for name in ("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"):
        if inner.any(name):
            raise inner.wrong(name, "unset")
    if len(found) != 1:
        raise fields.wrong("structured_outputs", f"an object with exactly one of {', '.join(STRUCTURES)}")
    return [Structure("structured_outputs", options) for _, options in found]


def _read_kinds(fields: Fields, names: dict[str, str]) -> list[tuple[str, GuidedOptions]]:
    """The kinds that an object asks for; `names` are those of its members."""
    values: dict[str, Any] = {
        "regex": fields.string(names["regex"]),
        "grammar": fields.string(names["grammar"]),
        "json_object": fields.boolean(names["json_object"]) or None,
        "choice": tuple(fields.list(names["choice"], "a list of strings", lambda value: isinstance(value, str))) or None,
        "json": fields.any(names["json"]),
    }
    if names["choice"] in fields and values["choice"] is None:
        raise fields.wrong(names["choice"], "a non-empty list of strings")
    if not (values["json"] is None or isinstance(values["json"], (str, dict))):
        raise fields.wrong(names["json"], "a JSON schema: an object, or its text")
    return [(kind, GuidedOptions(**{kind: value})) for kind, value in values.items() if value is not None]


def _response_format(fields: Fields) -> list[Structure]:
    wanted = fields.object("response_format", "an object with a type")
    if wanted is None:
        return []
    kind = wanted.any("type")
    if kind == "json_object" and "schema" not in wanted:
        return [Structure("response_format", GuidedOptions(json_object=True))]
    if kind == "json_schema":
        described = wanted.object("json_schema", "an object with a schema")
        schema = None if described is None else described.mapping("schema", "a JSON schema")
        if described is not None and schema is not None:
            described.any("name", "description", "strict")
            return [Structure("response_format", GuidedOptions(json=schema))]
    if kind == "text":
        return []
    raise fields.wrong("response_format", _FORMATS)
