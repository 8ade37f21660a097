"""Reasoning parsers: separate a model's thought from its answer, in whole texts and in streams.

A format is described by stages. A `Flow` passes text on until a tag begins another stage; a `Fork` looks at what the text
begins with. A whole text is read as a stream of one piece, so both ways always agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trivium.parsing.registry import MissingTokenError, ParserRegistry, ParserTokenizer, UnknownParserError, require_tokens
from trivium.parsing.tags import first_tag, partial_tag

__all__ = [
    "Flow",
    "Fork",
    "MissingTokenError",
    "ReasoningParser",
    "ReasoningStream",
    "UnknownParserError",
    "get_reasoning_parser",
    "reasoning_parsers",
]

OPEN, CLOSE, TOOL_CALL = "<think>", "</think>", "<tool_call>"


@dataclass(frozen=True, slots=True)
class Flow:
    """A stage whose text goes `into` the thought, the answer or nothing, until a tag begins the stage it maps to.

    `strip` drops white space at both ends. `keeps_tag`: the tag that began this stage is its first text.
    """

    into: Literal["thought", "answer", "nothing"]
    tags: Mapping[str, str] = field(default_factory=dict)
    strip: bool = False
    keeps_tag: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """A stage without text: if a tag comes first it begins the stage it maps to, else `otherwise` begins.

    `blank` characters (None: white space) before a tag are dropped; without a tag they stay.
    """

    tags: Mapping[str, str]
    otherwise: str
    blank: str | None = None


class ReasoningParser(ABC):
    """Separates thought and answer of one model family.

    `keep_tool_calls` is for callers that give the answer to a tool parser: formats that drop tool calls from the answer
    then leave them in it. Raises MissingTokenError if the vocabulary lacks `required_tokens`.
    """

    required_tokens: ClassVar[tuple[str, ...]] = (CLOSE,)
    opens_by_default: ClassVar[bool]  # whether a prompt without any tag is followed by a thought

    def __init__(self, tokenizer: ParserTokenizer, *, keep_tool_calls: bool = False) -> None:
        require_tokens(type(self).__name__, tokenizer, self.required_tokens)
        self._call = Flow("answer" if keep_tool_calls else "nothing", keeps_tag=True)

    @abstractmethod
    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        """The stages by name; the first is "start". `thinking`: the prompt ended inside an open thought."""

    def prompt_opens_thought(self, prompt: str) -> bool:
        """Whether the model continues a thought after this prompt: its last tag decides, else `opens_by_default`."""
        opened, closed = prompt.rfind(OPEN), prompt.rfind(CLOSE)
        return self.opens_by_default if opened == closed else opened > closed

    def parse(self, text: str, *, thinking: bool) -> tuple[str | None, str]:
        """Thought (None if there was none, "" if it was empty) and answer of a whole text."""
        stream = self.stream(thinking)
        first, last = stream.push(text), stream.finish()
        return (first[0] + last[0] if stream.has_thought else None, first[1] + last[1])

    def stream(self, thinking: bool) -> ReasoningStream:
        """A reader for one text that arrives in pieces."""
        return ReasoningStream(self.stages(thinking))


class ReasoningStream:
    """Reads one text piece by piece. The pieces' thoughts and answers, joined, equal those of the whole text."""

    def __init__(self, stages: Mapping[str, Flow | Fork]) -> None:
        self.has_thought = False  # a thought has begun, perhaps an empty one
        self._stages = stages
        self._stage = stages["start"]
        self._at_start = True  # of the stage
        self._pending = ""

    def push(self, text: str) -> tuple[str, str]:
        """What is new of (thought, answer); text that may be part of a tag is held back."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> tuple[str, str]:
        """The rest of (thought, answer), when no more text comes."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> tuple[str, str]:
        texts = {"thought": "", "answer": "", "nothing": ""}
        while True:
            stage = self._stage
            if isinstance(stage, Fork):
                moved = self._choose(stage, final)
            else:
                text, moved = self._pass_on(stage, final)
                texts[stage.into] += text
            if not moved:
                return texts["thought"], texts["answer"]

    def _choose(self, fork: Fork, final: bool) -> bool:
        """Leave a fork if its text is long enough to decide."""
        text = self._pending.lstrip(fork.blank)
        for tag, target in fork.tags.items():
            if text.startswith(tag):
                self._enter(target, tag, text[len(tag) :])
                return True
        if not final and any(tag.startswith(text) for tag in fork.tags):
            return False
        self._enter(fork.otherwise, "", self._pending)
        return True

    def _pass_on(self, flow: Flow, final: bool) -> tuple[str, bool]:
        """The text of a flow that is certain by now, and whether another stage began after it."""
        if flow.strip and self._at_start:
            self._pending = self._pending.lstrip()
        self._at_start = self._at_start and not self._pending
        found = first_tag(self._pending, flow.tags)
        if found is not None:
            at, tag = found
            text = self._pending[:at]
            self._enter(flow.tags[tag], tag, self._pending[at + len(tag) :])
            return text.rstrip() if flow.strip else text, True
        held = 0 if final else partial_tag(self._pending, flow.tags)
        text = self._pending[: len(self._pending) - held]
        if flow.strip:
            text = text.rstrip()
        self._pending = "" if final else self._pending[len(text) :]
        return text, False

    def _enter(self, name: str, tag: str, rest: str) -> None:
        stage = self._stages[name]
        self._stage = stage
        self._at_start = True
        self._pending = rest
        if isinstance(stage, Flow):
            self.has_thought |= stage.into == "thought"
            if stage.keeps_tag:
                self._pending = tag + rest


# `type[ReasoningParser]` is abstract on purpose: only its subclasses are made.
reasoning_parsers: ParserRegistry[ReasoningParser] = ParserRegistry("reasoning_parser", ReasoningParser)  # type: ignore[type-abstract]


def get_reasoning_parser(name: str) -> type[ReasoningParser]:
    """The parser class of this name. Raises UnknownParserError (a ConfigError and a KeyError), which lists the names."""
    return reasoning_parsers.get(name)


@reasoning_parsers.register("ernie-45-vl")
class Ernie45VLParser(ReasoningParser):
    """ERNIE-4.5-VL: `thought</think>answer`; the opening tag sits in the prompt.

    The prompt decides: after an open thought everything up to `</think>` is thought, all of it if the tag never comes;
    otherwise everything is answer.

        thinking      "abc</think>xyz"  ->  ("abc", "xyz")
        thinking      "abc"             ->  ("abc", "")
        not thinking  "abc"             ->  (None, "abc")
    """

    opens_by_default = False

    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        return {
            "start": Fork({OPEN: "thought"}, otherwise="thought" if thinking else "answer"),
            "thought": Flow("thought", {CLOSE: "answer"}),
            "answer": Flow("answer"),
        }


@reasoning_parsers.register("ernie-45-vl-thinking")
class Ernie45VLThinkingParser(ReasoningParser):
    """ERNIE-4.5-VL-28B-A3B-Thinking: `thought</think>answer`, or a tool call directly after the thought.

    Without `</think>` all is thought. If only newlines stand between thought and `<tool_call>`, the answer is empty.

        thinking  "abc</think>xyz"                           ->  ("abc", "xyz")
        thinking  "abc</think>\\n<tool_call>…</tool_call>"    ->  ("abc", "")
        thinking  "abc"                                      ->  ("abc", "")
    """

    opens_by_default = True

    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        return {
            "start": Fork({OPEN: "thought"}, otherwise="thought" if thinking else "after"),
            "thought": Flow("thought", {CLOSE: "after"}),
            "after": Fork({TOOL_CALL: "call"}, otherwise="answer", blank="\n"),
            "answer": Flow("answer"),
            "call": self._call,
        }


@reasoning_parsers.register("ernie-x1")
class ErnieX1Parser(ReasoningParser):
    """ERNIE-X1 and ERNIE-4.5-21B-A3B-Thinking: `thought</think>`, then `<response>answer</response>` or `<tool_call>`.

    Newlines inside the thought and the response stay. What follows `</response>` is dropped, a missing `</response>` is
    tolerated, and an answer without `<response>` is taken as it is. Without `</think>` all is thought.

        thinking  "abc\\n</think>\\n<response>\\nxyz\\n</response>\\n"  ->  ("abc\\n", "\\nxyz\\n")
        thinking  "abc</think><response>xyz"                       ->  ("abc", "xyz")
        thinking  "abc</think>\\n<tool_call>…</tool_call>"          ->  ("abc", "")
        thinking  "abc"                                            ->  ("abc", "")
    """

    opens_by_default = True

    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        return {
            "start": Fork({OPEN: "thought"}, otherwise="thought" if thinking else "after"),
            "thought": Flow("thought", {CLOSE: "after"}),
            "after": Fork({"<response>": "response", TOOL_CALL: "call"}, otherwise="answer"),
            "response": Flow("answer", {"</response>": "rest"}),
            "rest": Flow("nothing", {TOOL_CALL: "call"}),
            "answer": Flow("answer"),
            "call": self._call,
        }


@reasoning_parsers.register("qwen3")
class Qwen3Parser(ReasoningParser):
    """Qwen3: `<think>thought</think>answer`, or the same without the opening tag.

    A prompt without tags is taken to be followed by a thought. White space around the tags stays in the full form and is
    stripped in the form without the opening tag.

        thinking      "<think>\\nabc\\n</think>\\n\\nxyz"  ->  ("\\nabc\\n", "\\n\\nxyz")
        thinking      "\\nabc\\n</think>\\n\\nxyz"         ->  ("abc", "xyz")
        thinking      "abc"                           ->  ("abc", "")
        not thinking  "xyz"                           ->  (None, "xyz")
    """

    opens_by_default = True

    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        return {
            "start": Fork({OPEN: "thought"}, otherwise="bare thought" if thinking else "answer"),
            "thought": Flow("thought", {CLOSE: "answer"}),
            "answer": Flow("answer"),
            "bare thought": Flow("thought", {CLOSE: "bare answer"}, strip=True),
            "bare answer": Flow("answer", strip=True),
        }


@reasoning_parsers.register("deepseek", "deepseek-r1", "deepseek-v3.1", "deepseek-v3-0324")
class DeepSeekParser(ReasoningParser):
    """DeepSeek R1, V3.1, V3-0324: `<think>thought</think>answer`; the opening tag may sit in the prompt.

    An opening tag alone makes all thought; a text without tags after a prompt without an open thought is all answer. The answer
    after a thought is stripped, and so is a thought without its opening tag.

        thinking      "abc\\n</think>\\n\\nxyz"         ->  ("abc", "xyz")
        not thinking  "<think>abc</think>\\n\\nxyz"    ->  ("abc", "xyz")
        not thinking  "<think>abc"                   ->  ("abc", "")
        not thinking  "xyz"                          ->  (None, "xyz")
    """

    opens_by_default = False

    def stages(self, thinking: bool) -> Mapping[str, Flow | Fork]:
        return {
            "start": Fork({OPEN: "thought"}, otherwise="bare thought" if thinking else "answer"),
            "thought": Flow("thought", {CLOSE: "bare answer"}),
            "bare thought": Flow("thought", {CLOSE: "bare answer"}, strip=True),
            "bare answer": Flow("answer", strip=True),
            "answer": Flow("answer"),
        }
