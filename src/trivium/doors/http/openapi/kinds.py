"""JSON schemas (2020-12), built from small parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "Schema",
    "anything",
    "array",
    "boolean",
    "choice",
    "either",
    "event",
    "integer",
    "mapping",
    "number",
    "object_of",
    "optional",
    "record",
    "ref",
    "string",
]

Schema = dict[str, Any]


def _told(schema: Schema, text: str, more: Mapping[str, Any]) -> Schema:
    return {**schema, **more, **({"description": text} if text else {})}


def integer(low: int | None = None, high: int | None = None, text: str = "") -> Schema:
    limits = {"minimum": low, "maximum": high}
    return _told({"type": "integer"}, text, {name: limit for name, limit in limits.items() if limit is not None})


def number(low: float | None = None, high: float | None = None, text: str = "", **more: Any) -> Schema:
    limits = {"minimum": low, "maximum": high}
    return _told({"type": "number"}, text, {name: limit for name, limit in limits.items() if limit is not None} | more)


def string(text: str = "", **more: Any) -> Schema:
    return _told({"type": "string"}, text, more)


def boolean(text: str = "") -> Schema:
    return _told({"type": "boolean"}, text, {})


def choice(*values: Any, text: str = "") -> Schema:
    """One of several values."""
    return _told({"enum": list(values)}, text, {})


def array(items: Schema, text: str = "", **more: Any) -> Schema:
    return _told({"type": "array", "items": items}, text, more)


def mapping(values: Schema | None = None, text: str = "", **more: Any) -> Schema:
    """An object whose member names are open; `values` is the schema of each."""
    return _told({"type": "object"}, text, more if values is None else {"additionalProperties": values, **more})


def either(*schemas: Schema, text: str = "") -> Schema:
    return _told({"anyOf": list(schemas)}, text, {})


def anything(text: str = "") -> Schema:
    return _told({}, text, {})


def event(text: str, *names: str) -> Schema:
    """An event of a stream."""
    data = string(text, contentMediaType="application/json")
    return record({"event": choice(*names), "data": data}) if names else record({"data": data})


def ref(name: str) -> Schema:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def optional(schema: Schema) -> Schema:
    """The schema, or null."""
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if not schema.keys() & {"type", "enum", "const"}:
        return schema
    if "const" in schema:
        return {"enum": [schema["const"], None]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "null" in kinds:
        return schema
    return {**schema, "type": [*kinds, "null"]}


def object_of(members: Mapping[str, Schema], *required: str, text: str = "", **more: Any) -> Schema:
    """An object from a client: null counts as not given for what is not required, unknown members are ignored."""
    properties = {name: schema if name in required else optional(schema) for name, schema in members.items()}
    return _told({"type": "object", "properties": properties}, text, ({"required": list(required)} if required else {}) | more)


def record(members: Mapping[str, Schema], *left_out: str, text: str = "") -> Schema:
    """An object of the server's, which has all its members but perhaps those `left_out`."""
    required = [name for name in members if name not in left_out]
    return _told({"type": "object", "properties": dict(members), "required": required}, text, {})
