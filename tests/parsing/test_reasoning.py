from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import ConfigError
from trivium.parsing import MissingTokenError, UnknownParserError, get_reasoning_parser, reasoning_parsers
from trivium.parsing.registry import ParserRegistry
from trivium.parsing.tags import partial_tag

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
PIECES = [
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "<tool_call>",
    "</tool_call>",
    "<",
    "</",
    "think>",
    "<th",
    "\n",
    " ",
    "ab",
    "é",
]


def tokenizer(*tokens: str) -> Any:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return SimpleNamespace(token_id=vocabulary.get)


def parser(name: str, **options: bool) -> Any:
    return get_reasoning_parser(name)(tokenizer("<think>", "</think>"), **options)


@pytest.mark.parametrize(
    ("name", "thinking", "text", "expected"),
    [
        ("ernie-45-vl", True, "abc</think>xyz", ("abc", "xyz")),
        ("ernie-45-vl", True, "abc\n</think>\n\nx</think>y", ("abc\n", "\n\nx</think>y")),
        ("ernie-45-vl", True, "abc", ("abc", "")),
        ("ernie-45-vl", True, "", ("", "")),
        ("ernie-45-vl", False, "abc", (None, "abc")),
        ("ernie-45-vl", False, "abc</think>xyz", (None, "abc</think>xyz")),
        ("ernie-45-vl", False, "<think>abc</think>xyz", ("abc", "xyz")),
        ("ernie-45-vl-thinking", True, "abc</think>xyz", ("abc", "xyz")),
        ("ernie-45-vl-thinking", True, "abc", ("abc", "")),
        ("ernie-45-vl-thinking", True, f"abc</think>{CALL}", ("abc", "")),
        ("ernie-45-vl-thinking", True, f"abc</think>\n\n{CALL}\n", ("abc", "")),
        ("ernie-45-vl-thinking", True, f"abc</think>\nxyz{CALL}", ("abc", f"\nxyz{CALL}")),
        ("ernie-45-vl-thinking", True, f"abc</think> {CALL}", ("abc", f" {CALL}")),
        ("ernie-45-vl-thinking", True, "abc</think>\n\n", ("abc", "\n\n")),
        ("ernie-45-vl-thinking", False, "xyz", (None, "xyz")),
        ("ernie-x1", True, "abc\n</think>\n<response>\nxyz\n</response>\n", ("abc\n", "\nxyz\n")),
        ("ernie-x1", True, "abc</think><response>xyz", ("abc", "xyz")),
        ("ernie-x1", True, "abc</think><response>xyz</resp", ("abc", "xyz</resp")),
        ("ernie-x1", True, f"abc\n</think>\n\n\n{CALL}\n", ("abc\n", "")),
        ("ernie-x1", True, f"abc</think><response>xyz</response>{CALL}", ("abc", "xyz")),
        ("ernie-x1", True, "abc</think>plain", ("abc", "plain")),
        ("ernie-x1", True, "abc", ("abc", "")),
        ("ernie-x1", False, "<response>xyz</response>", (None, "xyz")),
        ("qwen3", True, "<think>\nabc\n</think>\n\nxyz\n", ("\nabc\n", "\n\nxyz\n")),
        ("qwen3", False, "\n<think>abc</think>xyz", ("abc", "xyz")),
        ("qwen3", True, "\nabc \n</think>\n\nxyz \n", ("abc", "xyz")),
        ("qwen3", True, "a <think> b</think>c", ("a <think> b", "c")),
        ("qwen3", True, " abc ", ("abc", "")),
        ("qwen3", True, "<think></think>", ("", "")),
        ("qwen3", False, " xyz ", (None, " xyz ")),
        ("qwen3", False, "<thin", (None, "<thin")),
        ("deepseek-r1", True, "abc\n</think>\n\nxyz", ("abc", "xyz")),
        ("deepseek-r1", False, "<think>\nabc</think>\n\nxyz\n", ("\nabc", "xyz")),
        ("deepseek-r1", False, "<think>abc", ("abc", "")),
        ("deepseek-r1", False, " xyz", (None, " xyz")),
    ],
)
def test_parse(name: str, thinking: bool, text: str, expected: tuple[str | None, str]) -> None:
    assert parser(name).parse(text, thinking=thinking) == expected


@pytest.mark.parametrize("name", ["ernie-x1", "ernie-45-vl-thinking"])
def test_calls_stay_in_the_answer_for_a_tool_parser(name: str) -> None:
    reader = parser(name, keep_tool_calls=True)
    assert reader.parse(f"abc</think>\n{CALL}\n{CALL}", thinking=True) == ("abc", f"{CALL}\n{CALL}")


def test_a_response_and_a_call_after_it_stay_for_a_tool_parser() -> None:
    text = f"abc</think><response>xyz</response>\n{CALL}"
    assert parser("ernie-x1", keep_tool_calls=True).parse(text, thinking=True) == ("abc", f"xyz{CALL}")


@settings(deadline=None)
@given(
    name=st.sampled_from(reasoning_parsers.names),
    thinking=st.booleans(),
    keep=st.booleans(),
    pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12),
    data=st.data(),
)
def test_every_split_of_a_stream_gives_the_whole(
    name: str, thinking: bool, keep: bool, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    reader = parser(name, keep_tool_calls=keep)
    stream = reader.stream(thinking)
    deltas = [stream.push(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas.append(stream.finish())
    thought, answer = ("".join(parts) for parts in zip(*deltas, strict=True))
    expected_thought, expected_answer = reader.parse(text, thinking=thinking)
    assert (thought if stream.has_thought else None, answer) == (expected_thought, expected_answer)
    assert stream.has_thought or not thought


@pytest.mark.parametrize("name", reasoning_parsers.names)
def test_one_character_at_a_time(name: str) -> None:
    text = "  let me\nsee </think>\n\n<response>\nThe answer. </response>\n"
    stream = parser(name).stream(True)
    deltas = [*map(stream.push, text), stream.finish()]
    assert tuple("".join(parts) for parts in zip(*deltas, strict=True)) == parser(name).parse(text, thinking=True)


def test_only_what_may_be_a_tag_is_held_back() -> None:
    stream = parser("ernie-45-vl").stream(True)
    assert stream.push("abc <") == ("abc ", "")
    assert stream.push("b </thin") == ("<b ", "")
    assert stream.push("k>x") == ("", "x")
    assert stream.push("</think") == ("", "</think")


@pytest.mark.parametrize(
    ("name", "prompt", "opens"),
    [
        ("qwen3", "<|im_start|>assistant\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<think>a</think>b<|im_start|>assistant\n<think>\n", True),
        ("ernie-45-vl", "Assistant: ", False),
        ("ernie-45-vl", "Assistant: <think>", True),
        ("ernie-45-vl-thinking", "Assistant: ", True),
        ("ernie-x1", "Assistant: ", True),
        ("ernie-x1", "Assistant: </think>", False),
        ("deepseek", "<｜Assistant｜>", False),
        ("deepseek", "<｜Assistant｜><think>\n", True),
    ],
)
def test_the_prompts_last_tag_opens_or_closes_the_thought(name: str, prompt: str, opens: bool) -> None:
    assert parser(name).prompt_opens_thought(prompt) is opens


def test_names() -> None:
    assert get_reasoning_parser("ernie_45_vl") is get_reasoning_parser("ernie-45-vl")
    for name in ("ernie-45-vl-thinking", "ernie_x1", "qwen3", "deepseek", "deepseek_r1", "deepseek-v3.1", "deepseek-v3-0324"):
        assert parser(name).stream(True).push("a")[1] == ""


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownParserError) as caught:
        get_reasoning_parser("nope")
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == f"reasoning_parser must be one of {', '.join(reasoning_parsers.names)}; got 'nope'"


@pytest.mark.parametrize("name", reasoning_parsers.names)
def test_a_vocabulary_without_the_closing_tag_is_refused(name: str) -> None:
    with pytest.raises(MissingTokenError, match="'</think>'") as caught:
        get_reasoning_parser(name)(tokenizer("<think>"))
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, RuntimeError)


def test_only_subclasses_can_be_registered() -> None:
    registry: ParserRegistry[int] = ParserRegistry("option", int)
    assert registry.register("a_b")(bool) is bool
    assert registry.get("a-b") is bool
    with pytest.raises(TypeError, match="option must be a subclass of int"):
        registry.register("b")(str)  # type: ignore[arg-type]


@settings(deadline=None)
@given(text=st.text("<ab>"), tags=st.lists(st.text("<ab>", min_size=1), max_size=3))
def test_partial_tag_is_the_longest_proper_beginning(text: str, tags: list[str]) -> None:
    expected = max((n for tag in tags for n in range(len(tag)) if text.endswith(tag[:n])), default=0)
    assert partial_tag(text, tags) == expected
