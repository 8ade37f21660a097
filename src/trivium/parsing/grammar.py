"""From `GuidedOptions` to a grammar that llguidance compiles, within limits on what compiling may cost.

llguidance bounds the work of each step, but not all of compiling: optional parts in a row in one regular expression take
time and memory quadratic in their number (16,000 take 1 GB), and optional properties of one object quadratic time. So texts,
and the expressions in them, are kept short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from trivium.engine.sampling import GuidedOptions
from trivium.errors import RequestError

__all__ = ["compile_error", "grammar_text"]

MAX_SCHEMA = 128 * 1024  # characters of a JSON schema, or of all choices together
MAX_GRAMMAR = 32 * 1024  # characters of a Lark grammar
MAX_EXPRESSION = 4 * 1024  # characters of a regular expression, or of a grammar's line
MAX_TERMINAL = 8 * 1024  # characters of a grammar's terminal with all it refers to
MAX_PATTERN = 2 * 1024  # characters of one pattern in a schema, where there may be many
MAX_PROPERTIES = 2000  # of one object in a schema

# Any white space that JSON allows, but not endlessly: small models tend to write nothing else once they begin.
_WHITE_SPACE = r"[ \t\r\n]{0,32}"

_DEFINITION = re.compile(r"^[ \t]*[!?]?(?P<name>[A-Za-z_][\w-]*)[^:\n]*:", re.MULTILINE)
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/|//[^\n]*')
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def grammar_text(options: GuidedOptions) -> tuple[str, str]:
    """The kind of structured output (the option's name) and its grammar as llguidance takes it.

    Raises RequestError, whose field is the kind, for texts that are too long or not of their form.
    """
    if options.json is not None:
        return "json", _from_schema(options.json)
    if options.json_object:
        return "json_object", _from_schema({"type": "object"})
    if options.regex is not None:
        return "regex", _from_regex(options.regex)
    if options.choice is not None:
        return "choice", _from_choice(options.choice)
    return "grammar", _from_lark(options.grammar or "")


def compile_error(kind: str, reason: object) -> RequestError:
    """The error for a grammar that does not compile."""
    text = str(reason).removesuffix("<non-verbose/>").strip()
    return RequestError(
        f"{kind} cannot be compiled for guided decoding: {text if len(text) <= 500 else text[:500] + ' …'}",
        field=kind,
        allowed="what llguidance can compile",
    )


def _from_schema(schema: Mapping[str, Any] | str) -> str:
    from llguidance import LLMatcher

    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise compile_error("json", error) from error
    _require_size("json", "the schema", text, MAX_SCHEMA)
    if not isinstance(parsed, dict):
        raise RequestError.out_of_range("json", "a schema that is an object", parsed)
    _check_schema(parsed)
    try:
        grammar: str = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITE_SPACE})
    except ValueError as error:  # what Python takes for JSON and others do not, such as NaN
        raise compile_error("json", error) from error
    return grammar


def _check_schema(schema: Any) -> None:
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            todo += node.values()
            if len(node) > MAX_PROPERTIES:
                raise _too_much("json", "an object", f"at most {MAX_PROPERTIES} members", len(node))
            patterns = node.get("patternProperties")
            named = [node.get("pattern"), node.get("whitespace_pattern"), *(patterns if isinstance(patterns, dict) else ())]
            for pattern in named:
                if isinstance(pattern, str):
                    _require_size("json", "a pattern", pattern, MAX_PATTERN)


def _from_regex(regex: str) -> str:
    from llguidance import LLMatcher

    _require_size("regex", "the expression", regex, MAX_EXPRESSION)
    try:
        return LLMatcher.grammar_from_regex(regex)
    except ValueError as error:  # lone surrogates
        raise compile_error("regex", error) from error


def _from_choice(choice: Sequence[str]) -> str:
    if not choice or not all(isinstance(answer, str) for answer in choice):
        raise RequestError.out_of_range("choice", "a non-empty list of strings", choice)
    # A string of Lark, as llguidance reads it, is a string of JSON in which DEL must be escaped too.
    text = "start: " + " | ".join(json.dumps(answer).replace("\x7f", "\\u007f") for answer in choice)
    _require_size("choice", "the list", text, MAX_SCHEMA)
    return text


def _from_lark(text: str) -> str:
    from llguidance import grammar_from

    _require_size("grammar", "the grammar", text, MAX_GRAMMAR)
    try:
        # GBNF (`root ::= …`) is converted, Lark comes back as it is.
        lark: str = grammar_from("grammar", text)
    except ValueError as error:
        raise compile_error("grammar", error) from error
    _check_terminals(lark)
    return lark


def _check_terminals(lark: str) -> None:
    """Bound the regular expressions of a grammar: inline ones by its lines, terminals by all that they refer to."""
    for line in lark.splitlines():
        _require_size("grammar", "a line", line, MAX_EXPRESSION)
    bodies = _terminals(_QUOTED.sub(lambda quoted: '"' * len(quoted[0]), lark))
    uses = {name: [used for used in _NAME.findall(body) if used in bodies] for name, body in bodies.items()}
    sizes: dict[str, int] = {}
    try:
        for name in TopologicalSorter(uses).static_order():
            sizes[name] = len(bodies[name]) + sum(sizes[used] for used in uses[name])
            if sizes[name] > MAX_TERMINAL:
                what = f"the terminal {name}, with all it refers to,"
                raise _too_much("grammar", what, f"at most {MAX_TERMINAL} characters", sizes[name])
    except CycleError as error:
        raise compile_error("grammar", f"terminals may not refer to themselves: {' -> '.join(error.args[1])}") from error


def _terminals(lark: str) -> dict[str, str]:
    """The definitions of all terminals (upper-case names) in a grammar without quotes."""
    heads = list(_DEFINITION.finditer(lark))
    ends = [head.start() for head in heads[1:]] + [len(lark)]
    bodies: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        if head["name"].isupper():
            bodies[head["name"]] = bodies.get(head["name"], "") + lark[head.end() : end]
    return bodies


def _require_size(kind: str, what: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise _too_much(kind, what, f"at most {limit} characters", len(text))


def _too_much(kind: str, what: str, allowed: str, value: int) -> RequestError:
    return RequestError(f"{kind}: {what} must have {allowed}, got {value}", field=kind, allowed=allowed, value=value)
