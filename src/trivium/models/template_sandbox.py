"""Running chat templates, which are programs out of a model's files, within bounds.

Jinja's sandbox keeps a template away from Python's internals, but not from memory and time. Here, too:

- every loop iteration, call, filter and test is counted, and so is every character that an operation makes: the counter is a
  `Budget`, which also has a deadline for what is slow without being much;
- operations whose result may be far larger than their operands (`*`, `**`, `+`, `~`, `%`, join, replace, indent, format,
  tojson, output, comparing) are counted before they are done;
- strings, lists and mappings have the methods that templates use, and no others; likewise filters.

Loops are counted by a statement put at the start of each loop's body before the template is compiled. A list may hold another
many times over, and this another: as text, or where it is compared, it is far larger than in memory.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, do_join, do_sum
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["Budget", "TemplateLimitError", "TemplateSandbox", "metered"]

_COST_OF_STEP = 64  # characters that a loop iteration or a call counts as
_COST_OF_ITEM = 8  # the same for an item of a list that is turned into text
_MAX_POWER_BITS = 4096
_MAX_INDENT = 16
_CHARS_COMPARED = 16  # that cost as much as one that is made
_SIZED = (str, list, tuple, dict, range)
_VIEWS = (KeysView, ValuesView, ItemsView)

# fmt: off
_STR_METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "swapcase", "title", "upper",
))
_LIST_METHODS = frozenset(("copy", "count", "index"))
_DICT_METHODS = frozenset(("copy", "get", "items", "keys", "values"))
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
    "sort", "title", "trim", "unique", "upper", "wordcount",
)
# Filters and tests that make texts of their arguments, and those that compare them.
_TEXT_MAKING = frozenset(("capitalize", "e", "escape", "lower", "safe", "title", "trim", "upper", "wordcount"))
_COMPARING = frozenset((
    "dictsort", "groupby", "max", "min", "sort", "unique",
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne",
))
# fmt: on


class TemplateLimitError(jinja2.TemplateRuntimeError):
    """The template takes more time or memory than it may."""


class Budget:
    """What one rendering may still use: `left` characters, until `deadline` (time.monotonic)."""

    __slots__ = ("deadline", "left")

    def __init__(self, characters: int, seconds: float) -> None:
        self.left = characters
        self.deadline = time.monotonic() + seconds

    def spend(self, characters: int) -> None:
        """Raises `TemplateLimitError` when there are not so many left."""
        self.left -= characters
        if self.left < 0:
            raise TemplateLimitError("the template does more work or makes more text than it may")

    def step(self) -> None:
        """One iteration or call."""
        self.spend(_COST_OF_STEP)
        self.check_time()

    def look_at(self, count: int) -> None:
        """Going through so many items."""
        self.spend(_COST_OF_ITEM * count)
        self.check_time()

    def check_time(self) -> None:
        """Raises `TemplateLimitError` after the deadline."""
        if time.monotonic() > self.deadline:
            raise TemplateLimitError("the template takes longer than it may")


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def metered(budget: Budget) -> Iterator[None]:
    """Compile or render with this budget."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of chat templates: the options, filters and functions that Hugging Face templates expect."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        # Without the optimizer, which would compute constant expressions while compiling.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            optimized=False,
            finalize=_count_output,
            cache_size=0,
        )
        self.filters = {name: _counted(name, FILTERS[name]) for name in _FILTERS}
        self.filters |= {name: _counted(name, function) for name, function in _OWN_FILTERS.items()}
        self.filters |= {"_step": _step, "_compared": _compared}
        self.tests = {name: _counted(name, cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        self.globals = {
            "range": self.globals["range"],
            "dict": _make_dict,
            "namespace": _SafeNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def load_source(self, source: str) -> jinja2.Template:
        """Compile a template; call this, like what it returns, within `metered`. Raises what Jinja and the compiler raise."""
        tree = _CountingTransformer().visit(self.parse(source))
        return jinja2.Template.from_code(self, self.compile(tree), dict(self.globals))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Put the output of a macro or block together."""
        parts = list(parts)
        _budget.get().spend(sum(map(len, parts)))
        return "".join(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, (list, tuple)):
            return attr in _LIST_METHODS
        if isinstance(obj, (bytes, int, float, complex, range, type)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        if operator == "+":
            budget.spend(_size(left) + _size(right))
        elif operator == "*":
            budget.spend(_product_size(left, right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * max(right, 0) > _MAX_POWER_BITS:
                raise TemplateLimitError(f"a power has more than {_MAX_POWER_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            return _percent_format(left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _budget.get()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = __obj.__name__
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
                budget.spend(_text_size(args[0]) + len(owner) * len(args[0]))
            elif name == "replace" and len(args) >= 2:
                budget.spend(_replaced_size(owner, args[0], args[1]))
            else:
                budget.spend(len(owner))
        elif isinstance(owner, (list, tuple)):
            budget.spend(sum(map(_compared_size, (owner, *args))))
        elif isinstance(owner, dict):
            budget.spend(sum(map(_compared_size, args)))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            text: str = value.__self__
            if re.search(r"\{[^{}]*(\{|\d{4})", text):
                raise SecurityError("format fields must not be nested nor have widths above 999")
            values = (*args, *kwargs.values())
            _budget.get().spend(len(text) + text.count("{") * (1000 + max(map(_text_size, values), default=0)))
            return wrapped(*args, **kwargs)

        return checked


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CountingTransformer(NodeTransformer):
    """Makes loops count their iterations, and `a ~ b`, comparisons and keys what they look at."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(None), "_step", [], [], None, None)
        node.body = [nodes.ExprStmt(step).set_lineno(node.lineno), *node.body]
        if node.test is not None:
            node.test = nodes.And(step, node.test)
        return node.set_lineno(node.lineno, override=False)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "_concat", [], [], None, None).set_lineno(node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _counting_compared(node.expr)
        for operand in node.ops:
            operand.expr = _counting_compared(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _counting_compared(node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.arg = _counting_compared(node.arg)
        return node


def _counting_compared(side: nodes.Expr) -> nodes.Expr:
    if isinstance(side, (nodes.Const, nodes.Slice)):
        return side
    counted = nodes.Filter(side, "_compared", [], [], None, None)
    counted.set_lineno(side.lineno)
    return counted


class _SafeNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a namespace may have an attribute "self"
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __repr__(self) -> str:  # without what it holds, which may be any amount of text
        return "<Namespace>"

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    _budget.get().spend(sum(map(_compared_size, args)))
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(_string(message))


def _strftime_now(format: str) -> str:
    # The C library takes widths, as in %1000000d, at their word.
    if len(format) > 256 or re.search(r"%[^%]?\d", format):
        raise SecurityError("strftime_now takes formats of at most 256 characters, without widths")
    return datetime.now().strftime(format)


def _step(value: object) -> bool:
    _budget.get().step()
    return True


def _compared(value: Any) -> Any:
    _budget.get().spend(_compared_size(value))
    return value


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that counts a step and the sizes of its arguments. `wraps` keeps Jinja's marks on the function."""
    size: Callable[[Any], int] = _size
    if name in _TEXT_MAKING:
        size = _text_size
    elif name in _COMPARING:
        size = _compared_size

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.step()
        budget.spend(sum(map(size, (*args, *kwargs.values()))))
        return function(*args, **kwargs)

    return counted


def _count_output(value: Any) -> Any:
    _budget.get().spend(_text_size(value))
    return value


def _text_size(value: Any, indent: int = 0, depth: int = 1) -> int:
    """Characters of a value as text, roughly and not too few; looking at a list counts, too."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    if (items := _items(value)) is not None:
        return 2 + sum(_text_size(item, indent, depth + 1) + 4 + indent * depth for item in items)
    return 64


def _compared_size(value: Any) -> int:
    """What comparing a value counts as; looking at a list counts, too."""
    if isinstance(value, str):
        return len(value) // _CHARS_COMPARED + 1
    items = _items(value)
    return 1 if items is None else sum(map(_compared_size, items))


def _items(value: Any) -> Sequence[Any] | None:
    """What a list or mapping holds, which is counted; None for anything else."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    elif isinstance(value, _VIEWS):
        value = list(value)
    elif not isinstance(value, (list, tuple)):
        return None
    _budget.get().look_at(len(value))
    return cast(Sequence[Any], value)


def _product_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() + right.bit_length()) // 8
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    return _size(sequence) * max(count, 0) if isinstance(count, int) else 1


def _size(value: Any) -> int:
    """What a copy of a string or list counts as; anything else is small."""
    if isinstance(value, str):
        return len(value)
    return _COST_OF_ITEM * len(value) if isinstance(value, _SIZED) else 1


def _replaced_size(text: str, old: Any, new: Any) -> int:
    return len(text) + (text.count(old) * len(new) if isinstance(old, str) and isinstance(new, str) else 0)


def _percent_format(text: Any, values: Any) -> str:
    text = _string(text)
    # Parentheses within the name of a value would hide where its width begins.
    if re.search(r"%(\([^()]*\))?[^%a-zA-Z]*(\*|\d{4})|%\([^)]*\(", text):
        raise SecurityError("% formats must not have widths from arguments nor above 999, nor names with parentheses")
    largest = max(map(_text_size, values), default=0) if isinstance(values, tuple) else _text_size(values)
    _budget.get().spend(len(text) + text.count("%") * (1000 + largest))
    return str(text % values)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise jinja2.TemplateRuntimeError("format takes positional or named values, not both")
    return _percent_format(value, kwargs or args)


def _concat(parts: list[Any]) -> str:
    _budget.get().spend(sum(map(_text_size, parts)))
    return "".join(map(str, parts))


def _string(value: Any) -> str:
    _budget.get().spend(_text_size(value))
    return str(value)


@jinja2.pass_eval_context
def _join(eval_context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    values = list(value)
    _budget.get().spend(_text_size(values) + len(values) * len(d))
    return str(do_join(eval_context, values, d, attribute))


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = _string(value)
    _budget.get().spend(_replaced_size(text, old, new))
    return text.replace(old, new, -1 if count is None else count)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    _budget.get().spend(len(value))
    _budget.get().spend((len(value.splitlines()) + 1) * max(size, 0))
    return do_indent(value, width, first, blank)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not -100 <= precision <= 100:
        raise TemplateLimitError(f"round takes a precision from -100 to 100, got {precision}")
    return float(FILTERS["round"](value, precision, method))


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    if not isinstance(start, (int, float)):  # lists would be copied once per item
        raise TemplateLimitError("sum adds numbers only")
    return do_sum(environment, iterable, attribute, start)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML, other alphabets as they are."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise TemplateLimitError(f"tojson takes an indent from 0 to {_MAX_INDENT}, got a {type(indent).__name__}")
    if separators is not None and any(len(separator) > _MAX_INDENT for separator in separators):
        raise TemplateLimitError(f"tojson takes separators of at most {_MAX_INDENT} characters")
    _budget.get().spend(_text_size(value, indent or 0))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "_concat": _concat,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
}
