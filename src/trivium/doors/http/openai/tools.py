"""What a body says of tools: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trivium.doors.http.limits import MAX_TOOLS
from trivium.doors.http.openai.fields import Fields, is_list, wrong
from trivium.doors.http.openai.structured import Structure
from trivium.engine.sampling import GuidedOptions
from trivium.errors import RequestError

__all__ = ["ToolUse", "read_tools"]

# Members of a schema that may allow properties beside those it lists.
_TELL_OF_OTHERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf")

_CHOICES = "'none', 'auto', 'required' or {'type': 'function', 'function': {'name': …}}"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the model may ("auto") or must ("required", "named") call; "none": it is shown none.

    With "required" the answer is a JSON list of {"name", "parameters"}, with "named" it is the arguments of the tool `name`.
    """

    mode: Literal["none", "auto", "required", "named"] = "none"
    tools: tuple[dict[str, Any], ...] = ()
    name: str = ""
    parallel: bool = True  # more than one call may be made

    def structure(self) -> Structure | None:
        """What the answer must fit, None if that is open."""
        if self.mode == "named":
            function = next(tool["function"] for tool in self.tools if tool["function"]["name"] == self.name)
            return Structure("tools", GuidedOptions(json=_parameters(function)))
        if self.mode == "required":
            return Structure("tools", GuidedOptions(json=self._call_list()))
        return None

    def _call_list(self) -> dict[str, Any]:
        """The schema of a list of calls. Each tool's own references are made to lead where its parameters stand in it."""
        calls, definitions = [], {}
        for number, tool in enumerate(self.tools):
            function, place = tool["function"], f"#/$defs/{number}"
            definitions[str(number)] = _moved(_parameters(function), place)
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": function["name"]}, "parameters": {"$ref": place}},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
            )
        most = {} if self.parallel else {"maxItems": 1}
        return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, "$defs": definitions}


def read_tools(fields: Fields) -> ToolUse:
    """Raises `RequestError`."""
    tools = fields.list("tools", "a list of {'type': 'function', 'function': {'name': …}}", most=MAX_TOOLS)
    for index, tool in enumerate(tools):
        _check_tool(tool, f"{fields.name('tools')}[{index}]")
    parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.any("tool_choice")
    if choice is None:
        choice = "auto"
    if choice in ("none", "auto"):
        return ToolUse(choice, tuple(tools), parallel=parallel) if tools and choice == "auto" else ToolUse()
    if choice == "required":
        name = ""
    elif isinstance(choice, Mapping) and choice.get("type", "function") == "function":
        name = _chosen(choice, [tool["function"]["name"] for tool in tools])
    else:
        raise fields.wrong("tool_choice", _CHOICES)
    if not tools:
        raise RequestError("tool_choice needs tools to choose from", field="tool_choice", allowed="tools given", value=choice)
    return ToolUse("named" if name else "required", tuple(tools), name, parallel)


def _chosen(choice: Mapping[str, Any], names: Sequence[str]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise wrong("tool_choice.function.name", "the name of a tool", name)
    if name not in names:
        raise wrong("tool_choice.function.name", f"one of the tools ({', '.join(names)})", name)
    return name


def _check_tool(tool: Any, place: str) -> None:
    if not isinstance(tool, Mapping):
        raise wrong(place, "an object with type and function", tool)
    if tool.get("type", "function") != "function":
        raise wrong(f"{place}.type", "'function'", tool["type"])
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise wrong(f"{place}.function", "an object with a name", function)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise wrong(f"{place}.function.name", "a non-empty string", function.get("name"))
    for name, kind, allowed in (("description", str, "a string"), ("parameters", Mapping, "a JSON schema: an object")):
        if not (function.get(name) is None or isinstance(function[name], kind)):
            raise wrong(f"{place}.function.{name}", allowed, function[name])
    kind = (function.get("parameters") or {}).get("type", "object")
    if kind != "object":
        raise wrong(f"{place}.function.parameters.type", "'object'", kind)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object: none without parameters, as OpenAI has it.

    Where the schema lists properties and says nothing of others there are no others: a model that is held to the schema
    would make some up, and the function would not know them.
    """
    schema = {"type": "object", **(function.get("parameters") or {"properties": {}})}
    if "properties" in schema and schema.keys().isdisjoint(_TELL_OF_OTHERS):
        schema["additionalProperties"] = False
    return schema


def _moved(schema: Any, place: str) -> Any:
    """A copy of a schema that stands at `place` of another one: references to its own root lead there."""
    if isinstance(schema, Mapping):
        moved = {name: _moved(value, place) for name, value in schema.items()}
        target = schema.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            moved["$ref"] = place + target[1:]
        return moved
    return [_moved(value, place) for value in schema] if is_list(schema) else schema
