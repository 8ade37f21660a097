"""Tool parsers: find the calls of functions in a model's answer, in whole texts and in streams.

A call is reported when it is complete and well formed, because what has been streamed cannot be taken back; a malformed call
stays in the content as it was written. Give the parser the answer without its thought.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.parsing.json_text import JsonState, read_object
from trivium.parsing.registry import ParserRegistry, ParserTokenizer, require_tokens
from trivium.parsing.tags import partial_tag

__all__ = ["ToolCall", "ToolCallDelta", "ToolParser", "ToolStream", "get_tool_parser", "tool_parsers"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: `id` is `chatcmpl-tool-` and 32 hex digits, `arguments` the text of a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of call number `index`: first its id and name, then pieces of its arguments' text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ToolParser(ABC):
    """Knows how one model family writes a call: `opener` body `closer`.

    Raises MissingTokenError if the vocabulary lacks `required_tokens`.
    """

    opener: ClassVar[str]
    closer: ClassVar[str]
    fillers: ClassVar[tuple[str, ...]] = ()  # marks around calls that mean nothing by themselves
    leading_only: ClassVar[bool] = False  # calls count only as long as no other text came
    only_json: ClassVar[bool] = False  # a body in which a string or a bracket is open is no call
    required_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tokenizer: ParserTokenizer) -> None:
        require_tokens(type(self).__name__, tokenizer, self.required_tokens)
        self.tags = (self.opener, *self.fillers)
        self.filler = re.compile("|".join([r"\s", *map(re.escape, self.fillers)]).join(["(?:", ")*"]))
        firsts = "".join(re.escape(tag[0]) for tag in self.tags)
        self.plain = re.compile(rf".[^\s{firsts}]*", re.DOTALL)  # text in which no filler and no tag begins

    @abstractmethod
    def decode(self, body: str) -> tuple[str, str] | None:
        """Name and arguments of the call with this body, None if it is malformed."""

    def decode_unclosed(self, body: str) -> tuple[str, str] | None:
        """The same at the end of the text, where the closer or its end may be missing."""
        return self.decode(body[: len(body) - partial_tag(body, [self.closer])])

    def may_begin(self, body: str) -> bool:
        """Whether a call can begin like this."""
        return body.lstrip()[:1] in ("", "{")

    def may_go_on(self, state: JsonState) -> bool:
        """Whether the closer after a body that ends like this may be part of the call: it then stands in a JSON string."""
        return state.in_string

    def parse(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content without the calls, and the calls, of a whole text.

        White space before a call, and after the last one at the text's end, belongs to neither. Never raises.
        """
        stream = self.stream()
        content, deltas = stream.push(text)
        last_content, last_deltas = stream.finish()
        return content + last_content, _join(deltas + last_deltas)

    def stream(self) -> ToolStream:
        """A reader for one text that arrives in pieces."""
        return ToolStream(self)


class ToolStream:
    """Reads one text piece by piece. The pieces' contents and calls, joined, equal those of the whole text."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._pending = ""
        self._held = ""  # white space and fillers: dropped if a call follows
        self._in_call = False
        self._tried = 0  # closers before this position of the body do not end the call
        self._state = JsonState()  # of the body
        self._num_calls = 0
        self._has_text = False
        self._content: list[str] = []
        self._deltas: list[ToolCallDelta] = []

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """What is new of (content, calls)."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> tuple[str, list[ToolCallDelta]]:
        """The rest of (content, calls), when no more text comes."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> tuple[str, list[ToolCallDelta]]:
        while self._read_call(final) if self._in_call else self._read_content(final):
            pass
        if final and not self._num_calls:
            self._content.append(self._held)
        new = "".join(self._content), self._deltas
        self._content, self._deltas = [], []
        return new

    def _read_content(self, final: bool) -> bool:
        """Pass on one run of text, or enter a call; False if more text must come first."""
        parser = self._parser
        filler = parser.filler.match(self._pending)
        if filler is not None:
            self._held += filler.group()
            self._pending = self._pending[filler.end() :]
        if not self._pending:
            return False
        if self._pending.startswith(parser.opener) and not (parser.leading_only and self._has_text):
            self._pending = self._pending[len(parser.opener) :]
            self._in_call, self._tried, self._state = True, 0, JsonState()
            return True
        if not final and any(len(tag) > len(self._pending) and tag.startswith(self._pending) for tag in parser.tags):
            return False
        plain = parser.plain.match(self._pending)
        self._pass_on(self._pending if plain is None else plain.group())
        return True

    def _read_call(self, final: bool) -> bool:
        """Leave a call if its end has come, or if it turned out to be none; False if more text must come first."""
        parser, body = self._parser, self._pending
        if not parser.may_begin(body):
            return self._reject()
        while (end := body.find(parser.closer, self._tried)) >= 0:
            self._state.advance(body, end)
            may_go_on = parser.may_go_on(self._state)
            # A string may hold thousands of closers: decoding up to each of them would take quadratic time.
            call = None if may_go_on and parser.only_json else parser.decode(body[:end])
            if call is not None:
                return self._report(call, end + len(parser.closer))
            if not may_go_on:
                return self._reject()
            self._tried = end + len(parser.closer)
        if not final:
            return False
        call = parser.decode_unclosed(body)
        return self._reject() if call is None else self._report(call, len(body))

    def _report(self, call: tuple[str, str], end: int) -> bool:
        name, arguments = call
        self._deltas.append(ToolCallDelta(self._num_calls, f"chatcmpl-tool-{uuid.uuid4().hex}", name))
        self._deltas.append(ToolCallDelta(self._num_calls, arguments=arguments))
        self._num_calls += 1
        self._pending, self._held, self._in_call = self._pending[end:], "", False
        return True

    def _reject(self) -> bool:
        """Read the opener as text and its body again as content."""
        self._pending, self._in_call = self._parser.opener + self._pending, False
        self._pass_on(self._parser.opener)
        return True

    def _pass_on(self, text: str) -> None:
        self._content += [self._held, text]
        self._pending, self._held, self._has_text = self._pending[len(text) :], "", True


def _join(deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.id is not None and delta.name is not None:
            calls.append(ToolCall(delta.id, delta.name, delta.arguments))
        else:
            last = calls[-1]
            calls[-1] = ToolCall(last.id, last.name, last.arguments + delta.arguments)
    return calls


def _decode_object(text: str) -> tuple[str, str] | None:
    """Name and arguments of `{"name": …, "arguments": …}`; `parameters` is another word for `arguments`."""
    members = _members(text)
    if members is None:
        return None
    name, _ = members.get("name", (None, ""))
    value, arguments = members.get("arguments") or members.get("parameters") or (None, "")
    checked = _check_arguments(value, arguments)
    if checked is None or not isinstance(name, str) or not name:
        return None
    return (name, checked) if _is_unicode(name) and _is_unicode(checked) else None


def _is_unicode(text: str) -> bool:
    """Whether a text that JSON gave has no lone surrogates: with them nobody could be told of it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_arguments(value: Any, text: str) -> str | None:
    """The text of an object: given as such, as a string that holds it, or not at all; None for anything else."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return None if _members(value) is None else value
    return text if isinstance(value, dict) else None


def _members(text: str) -> dict[str, tuple[Any, str]] | None:
    try:
        members, end = read_object(text)
    except (ValueError, RecursionError):
        return None
    return None if text[end:].strip() else members


tool_parsers: ParserRegistry[ToolParser] = ParserRegistry("tool_call_parser", ToolParser)  # type: ignore[type-abstract]


def get_tool_parser(name: str) -> type[ToolParser]:
    """The parser class of this name. Raises UnknownParserError (a ConfigError and a KeyError), which lists the names."""
    return tool_parsers.get(name)


@tool_parsers.register("hermes", "qwen3", "ernie-x1", "ernie-45-vl-thinking")
class TaggedJsonParser(ToolParser):
    """Hermes, Qwen and ERNIE: `<tool_call>{"name": …, "arguments": …}</tool_call>`, repeated."""

    opener = "<tool_call>"
    closer = "</tool_call>"
    only_json = True

    def decode(self, body: str) -> tuple[str, str] | None:
        return _decode_object(body)


@tool_parsers.register("deepseek", "deepseek-r1", "deepseek-v3.1", "deepseek-v3-0324")
class DeepSeekToolParser(ToolParser):
    """DeepSeek's own tokens: begin, name, separator, arguments, end, with further tokens around all calls.

    V3.1 writes `name<sep>{…}`; R1 and V3-0324 write `function<sep>name`, a newline, and the arguments in a fenced block.
    """

    opener = "<｜tool▁call▁begin｜>"  # noqa: RUF001
    closer = "<｜tool▁call▁end｜>"  # noqa: RUF001
    separator = "<｜tool▁sep｜>"  # noqa: RUF001
    fillers = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
    required_tokens = (opener, closer, separator)

    def may_begin(self, body: str) -> bool:
        return True

    def decode(self, body: str) -> tuple[str, str] | None:
        name, separator, arguments = body.partition(self.separator)
        first_line, _, block = arguments.strip().partition("\n")
        block = block.strip()
        if block.startswith("```") and block.endswith("```") and len(block) >= 6:
            name, arguments = first_line, block[3:-3].removeprefix("json")
        name, arguments = name.strip(), arguments.strip() or "{}"
        return (name, arguments) if separator and name and _members(arguments) is not None else None


@tool_parsers.register("llama3-json")
class Llama3JsonParser(ToolParser):
    """Llama 3: an answer that is only calls, `{"name": …, "parameters": …}`, joined by `;`, perhaps after `<|python_tag|>`."""

    opener = "{"
    closer = "}"
    fillers = ("<|python_tag|>", ";")
    leading_only = True
    only_json = True

    def may_begin(self, body: str) -> bool:
        return body.lstrip()[:1] in ("", '"')

    def may_go_on(self, state: JsonState) -> bool:
        return state.depth > 0 or state.in_string

    def decode(self, body: str) -> tuple[str, str] | None:
        return _decode_object(self.opener + body + self.closer)

    def decode_unclosed(self, body: str) -> tuple[str, str] | None:
        return None
