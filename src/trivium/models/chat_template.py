"""Conversations to prompts, with the model's own Jinja template."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from trivium.errors import ConfigError, ModelLoadError, RequestError
from trivium.models.template_sandbox import Budget, TemplateSandbox, metered
from trivium.models.tokenizer import Tokenizer
from trivium.models.tokenizer_folder import read_json_object

__all__ = ["ChatTemplate", "RenderedPrompt", "find_template", "read_template", "required_template"]

_MAX_TEMPLATE_CHARS = 1_000_000
_MAX_SECONDS = 5.0
_MAX_DEPTH = 64  # of lists and objects within messages, tools and template arguments

# What a template may use (see template_sandbox) and put out: a fixed part, and so much per character that it is given.
_WORK, _WORK_PER_CHAR = 32_000_000, 64
_OUTPUT, _OUTPUT_PER_CHAR = 4_000_000, 2

# Characters that Unicode reserves for a program's internal use: one that the messages do not hold serves as the mark.
_NONCHARACTERS = [*map(chr, range(0xFDD0, 0xFDF0)), *(chr(plane * 0x10000 + 0xFFFE + i) for plane in range(17) for i in (0, 1))]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt made by a template. At the character positions `plain_starts` of `text` no special token begins."""

    text: str
    plain_starts: frozenset[int] = frozenset()

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids: special tokens are recognised in what the template wrote, never in what messages hold."""
        return tokenizer.encode_around(self.text, self.plain_starts)


class ChatTemplate:
    """A compiled chat template. `render` may be called from any thread.

    To keep special tokens out of message contents, their texts there get a mark after the first character before the template
    sees them. The marks are taken out of the result, and where they were no special token begins. A template that cuts a
    message's text apart and puts it together anew can still build one.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises `ModelLoadError` for a template that does not compile."""
        sandbox = TemplateSandbox()
        self._template = _compile(source, sandbox)
        self.source = source
        self._special_tokens = dict(tokenizer.special_tokens)
        texts = sorted(tokenizer.special_texts, key=len, reverse=True)
        # Looks ahead instead of matching, so that overlapping tokens are all found.
        self._special = re.compile(f"(?={'|'.join(map(re.escape, texts))})") if texts else None
        self._reserved = {"messages", "tools", "add_generation_prompt", *self._special_tokens, *sandbox.globals}
        self._takes_parts: bool | None = None

    @classmethod
    def load(cls, value: str | os.PathLike[str], tokenizer: Tokenizer) -> ChatTemplate:
        """A template as `read_template` takes it, which says what is raised."""
        return cls(read_template(value), tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt of one conversation. `variables` (enable_thinking, …) are the template's own; doors call them
        `chat_template_kwargs`, and so do errors.

        Contents are strings, None or lists of parts; text parts become one string with nothing between them, unless the
        template goes through parts itself. Nothing given here is changed. Raises `RequestError` naming the field: for messages
        of a wrong form, when the template refuses them (with its own words) or fails, and when it goes beyond its limits.
        """
        own = self._check_variables(variables)
        checked = _check_messages(messages, self._parts_allowed)
        if tools is not None and not (isinstance(tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in tools)):
            raise _wrong("tools", "a list of objects", tools)
        values = {"messages": checked, "tools": tools, **own}
        marker = _Marker(self._special, values)
        values = {name: marker.marked(value, (name,)) for name, value in values.items()}
        text = self._run(values | {"add_generation_prompt": add_generation_prompt}, marker.num_chars)
        return marker.unmarked(text)

    def _check_variables(self, variables: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Variables under names that the template does not get from elsewhere."""
        if variables is None:
            return {}
        if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
            raise _wrong("chat_template_kwargs", "an object whose keys are strings", variables)
        for name in variables.keys() & self._reserved:
            raise RequestError(f"chat_template_kwargs must not set {name}", field="chat_template_kwargs", value=name)
        return variables

    def _run(self, values: dict[str, Any], num_chars: int) -> str:
        """The template's output; `num_chars` is the size of its input."""
        limit = _OUTPUT + _OUTPUT_PER_CHAR * num_chars
        chunks: list[str] = []
        size = 0
        try:
            with metered(Budget(_WORK + _WORK_PER_CHAR * num_chars, _MAX_SECONDS)):
                context = self._template.new_context(self._special_tokens | values)
                for chunk in self._template.root_render_func(context):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        raise RequestError(f"the chat template puts out more than {limit} characters", field="messages")
        except RequestError:
            raise
        except jinja2.TemplateError as error:
            raise RequestError(f"chat template: {error}", field="messages") from error
        except Exception as error:  # the template is a foreign program: whatever it raises is its failure
            raise RequestError(f"chat template: {type(error).__name__}: {error}", field="messages") from error
        return "".join(chunks)

    def _parts_allowed(self) -> bool:
        """Whether the template goes through lists of parts: it is given one, and must neither fail nor print the list."""
        if self._takes_parts is None:
            probe = "probe0of0parts"
            messages = [{"role": "user", "content": [{"type": "text", "text": probe}]}]
            try:
                text = self._run({"messages": messages, "tools": None, "add_generation_prompt": True}, 0)
            except RequestError:
                text = ""
            self._takes_parts = probe in text and f"'{probe}'" not in text and f'"{probe}"' not in text
        return self._takes_parts


def required_template(template: ChatTemplate | None) -> ChatTemplate:
    """The model's template, or `RequestError` when it has none."""
    if template is None:
        raise RequestError("the model has no chat template; give one with chat_template", field="chat_template", value=None)
    return template


def read_template(value: str | os.PathLike[str]) -> str:
    """The text of a template that a caller gave: as text (a string with a brace or a line break), or as the path of a file.

    Raises `ConfigError` (a ValueError) for a template that does not compile and for a string that looks like a path but
    cannot be read, OSError for a path object that cannot be read.
    """
    if isinstance(value, str) and any(char in value for char in "{}\n"):
        source = value
    elif isinstance(value, str):
        try:
            source = Path(value).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"chat_template must be a template or the path of a readable one, got {value!r}: {error}"
            ) from error
    else:
        source = Path(value).read_text("utf-8")
    try:
        _compile(source, TemplateSandbox())
    except ModelLoadError as error:
        raise ConfigError(f"chat_template must compile: {error}") from error
    return source


def find_template(source: str | os.PathLike[str] | Mapping[str, Any]) -> str | None:
    """The template of a model folder (chat_template.jinja, then tokenizer_config.json) or of GGUF metadata, or None.

    Of several named ones it is "default". Raises `ModelLoadError` for damaged files.
    """
    if isinstance(source, Mapping):
        return _pick(source.get("tokenizer.chat_template"), "tokenizer.chat_template")
    folder = Path(source)
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: {error}") from error
    return _pick(read_json_object(folder / "tokenizer_config.json").get("chat_template"), f"{folder}: chat_template")


def _compile(source: str, sandbox: TemplateSandbox) -> jinja2.Template:
    """Raises `ModelLoadError`."""
    if len(source) > _MAX_TEMPLATE_CHARS:
        raise ModelLoadError(f"a chat template may have {_MAX_TEMPLATE_CHARS} characters, got {len(source)}")
    try:
        with metered(Budget(_WORK, _MAX_SECONDS)):
            return sandbox.load_source(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelLoadError(f"chat template, line {error.lineno}: {error.message}") from error
    except Exception as error:  # Jinja and Python's compiler fail in many ways on a hostile template
        raise ModelLoadError(f"chat template: {type(error).__name__}: {error}") from error


def _pick(value: object, name: str) -> str | None:
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        for entry in entries:
            if not isinstance(entry.get("name"), str):
                raise ModelLoadError(f"{name} must name its templates with strings, got {entry.get('name')!r:.80}")
        value = {entry["name"]: entry.get("template") for entry in entries}.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelLoadError(f"{name} must be a string or a list of named templates, got a {type(value).__name__}")
    return value


def _wrong(field: str, allowed: str, value: object) -> RequestError:
    """Like `RequestError.out_of_range`, but a long conversation is not repeated in the message."""
    try:
        came = f"{value!r:.80}"
    except RecursionError:
        came = f"a {type(value).__name__} that is nested too deep"
    return RequestError(f"{field} must be {allowed}, got {came}", field=field, allowed=allowed, value=value)


def _check_messages(messages: Sequence[Mapping[str, Any]], parts_allowed: Callable[[], bool]) -> list[dict[str, Any]]:
    """Copies of the messages (one level deep) with their contents as the template wants them."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise _wrong("messages", "a non-empty list of objects", messages)
    checked = []
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise _wrong(name, "an object with a role and a content", message)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise _wrong(f"{name}.role", "a non-empty string", role)
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            content = _check_parts(content, f"{name}.content", parts_allowed())
        elif content is not None and not isinstance(content, str):
            raise _wrong(f"{name}.content", "a string, a list of parts or null", content)
        checked.append({**message, "content": content, **_parsed_calls(message)})
    return checked


def _parsed_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """`tool_calls` with the arguments as objects: clients send them as JSON text, which templates would quote a second time."""
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return {}
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            with contextlib.suppress(ValueError, RecursionError):
                call = {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
        parsed.append(call)
    return {"tool_calls": parsed}


def _check_parts(parts: Sequence[Any], name: str, parts_allowed: bool) -> str | list[Any]:
    texts = []
    for index, part in enumerate(parts):
        part_name = f"{name}[{index}]"
        if not isinstance(part, Mapping):
            raise _wrong(part_name, "an object with a type", part)
        kind = part.get("type", "text")
        if kind == "text":
            if not isinstance(part.get("text"), str):
                raise _wrong(f"{part_name}.text", "a string", part.get("text"))
            texts.append(part["text"])
        elif not isinstance(kind, str) or not parts_allowed:
            raise _wrong(f"{part_name}.type", "'text': the model's template takes no other parts", kind)
    return list(parts) if parts_allowed else "".join(texts)


class _Marker:
    """Copies of values in which special tokens' texts are marked, and the way back."""

    def __init__(self, special: re.Pattern[str] | None, values: object) -> None:
        self.num_chars = 0
        self._special = special
        unused = set(_NONCHARACTERS)
        _remove_used(values, unused)
        if not unused:
            raise RequestError("the messages hold all of Unicode's noncharacters; some must be left", field="messages")
        self._mark = min(unused)

    def marked(self, value: Any, where: tuple[str | int, ...]) -> Any:
        """A deep copy with marks; `where` are the name, keys and indexes that lead to the value, for errors."""
        if isinstance(value, str):
            self.num_chars += len(value)
            return self._mark_text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if len(where) > _MAX_DEPTH:
            name = _path(where)
            raise RequestError(f"{name} is nested more than {_MAX_DEPTH} levels deep", field=name)
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise _wrong(_path(where), "an object whose keys are strings", value)
            self.num_chars += sum(map(len, value))
            return {self._mark_text(key): self.marked(item, (*where, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.marked(item, (*where, index)) for index, item in enumerate(value)]
        raise _wrong(_path(where), "made of strings, numbers, booleans, null, lists and objects", value)

    def unmarked(self, text: str) -> RenderedPrompt:
        """The text without marks; where they were, one character earlier, no special token begins."""
        pieces = text.split(self._mark)
        starts, position = [], 0
        for piece in pieces[:-1]:
            position += len(piece)
            starts.append(position - 1)
        return RenderedPrompt("".join(pieces), frozenset(starts))

    def _mark_text(self, text: str) -> str:
        if self._special is None:
            return text
        starts = [match.start() + 1 for match in self._special.finditer(text)]
        if not starts:
            return text
        return self._mark.join(text[i:j] for i, j in zip([0, *starts], [*starts, len(text)], strict=True))


def _path(where: tuple[str | int, ...]) -> str:
    """What errors call a value; keys may be of any length."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part:.40}" for part in where)[1:]


def _remove_used(value: object, unused: set[str], depth: int = 0) -> None:
    """Take the characters that occur in a value's strings out of `unused`; what is nested too deep is refused later."""
    if isinstance(value, str):
        # No noncharacter is in Latin-1 and few texts reach past U+FDCF, so most are done here.
        if not value.isascii() and max(value) >= "\ufdd0":
            unused.difference_update(value)
    elif depth > _MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _remove_used(key, unused, depth + 1)
            _remove_used(item, unused, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _remove_used(item, unused, depth + 1)
