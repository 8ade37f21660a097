from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import ConfigError
from trivium.parsing import MissingTokenError, ToolCallDelta, UnknownParserError, get_tool_parser, tool_parsers
from trivium.parsing.json_text import JsonState, read_object

BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
NUMBERS = '{"a": 1.10, "b": 1e400, "c": 0.12345678901234567890}'
PIECES = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"a": [1, "}</tool_call>"]}}',
    '{"name": "g", "parameters": {}}',
    '{"a": "b;"',
    "}",
    "{",
    ";",
    '"',
    "<|python_tag|>",
    BEGIN,
    f"f{SEP}" + '{"a": 1}' + END,
    f'function{SEP}g\n```json\n{{"a": "{END}"}}\n```{END}',
    ALL_BEGIN,
    ALL_END,
    END,
    "<too",
    "<｜tool",
    "\n",
    " ",
    "text",
]


def tokenizer(*tokens: str) -> Any:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return SimpleNamespace(token_id=vocabulary.get)


def parser(name: str) -> Any:
    return get_tool_parser(name)(tokenizer(BEGIN, SEP, END))


def parse(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    content, calls = parser(name).parse(text)
    return content, [(call.name, call.arguments) for call in calls]


def tagged(name: str = "f", arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("name", ["hermes", "qwen3", "ernie-x1", "ernie_45_vl_thinking"])
def test_tagged_json(name: str) -> None:
    text = "Let me see.\n" + tagged("weather", '{"city": "北京", "days": 3}') + "\n" + tagged("time") + "\n"
    assert parse(name, text) == ("Let me see.", [("weather", '{"city": "北京", "days": 3}'), ("time", "{}")])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text \n", "just text \n", []),
        ("", "", []),
        (tagged() + "after ", "after", [("f", "{}")]),
        ("before " + tagged() + " after", "before after", [("f", "{}")]),
        (tagged("f", '{"t": "</tool_call>"}') + " x", " x", [("f", '{"t": "</tool_call>"}')]),
        (tagged("f", '{"t": "\\"</tool_call>\\\\"}'), "", [("f", '{"t": "\\"</tool_call>\\\\"}')]),
        # arguments as a string that holds JSON, null, missing, under the other word
        (tagged("f", '"{\\"a\\": 1}"'), "", [("f", '{"a": 1}')]),
        (tagged("f", "null"), "", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"parameters": {"a": 1}, "name": "f", "more": [1]}</tool_call>', "", [("f", '{"a": 1}')]),
        # numbers keep their digits
        (tagged("f", NUMBERS), "", [("f", NUMBERS)]),
        # the closing tag is missing or cut off
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}}\n</tool_', "", [("f", "{}")]),
    ],
)
def test_tagged_json_variants(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse("hermes", text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>not json</tool_call> and more",
        '<tool_call>{"name": "f", "arguments": {"a": ',
        '<tool_call>{"name": "f", "arguments": {}} extra</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no json"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        r'<tool_call>{"name": "f\ud800", "arguments": {}}</tool_call>',
        r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>',
        "<tool_call>{1: 2}</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "</tool_call>",
        "</tool_call>",
        " <tool_cal",
    ],
)
def test_a_malformed_call_stays_content(text: str) -> None:
    assert parse("hermes", text) == (text, [])


def test_a_sound_call_after_a_malformed_one_is_found() -> None:
    assert parse("hermes", f"<tool_call>oops</tool_call>\n{tagged()}") == ("<tool_call>oops</tool_call>", [("f", "{}")])
    assert parse("hermes", f"<tool_call>{tagged()}") == ("<tool_call>", [("f", "{}")])


def test_deepseek_v31() -> None:
    calls = f'{ALL_BEGIN}{BEGIN}f{SEP}{{"a": 1}}{END}{BEGIN}g{SEP}{{}}{END}{ALL_END}'
    assert parse("deepseek-v3.1", "Well.\n\n" + calls) == ("Well.", [("f", '{"a": 1}'), ("g", "{}")])


def test_deepseek_r1() -> None:
    one = f'{BEGIN}function{SEP}f\n```json\n{{"a": "```"}}\n```{END}'
    two = f"{BEGIN}function{SEP}g\n```json\n{{}}\n```\n{END}"
    assert parse("deepseek-r1", f"{ALL_BEGIN}{one}\n{two}{ALL_END}") == ("", [("f", '{"a": "```"}'), ("g", "{}")])


@pytest.mark.parametrize(
    "text", [f"{BEGIN}f{END}", f"{BEGIN}{SEP}{{}}{END}", f"{BEGIN}f{SEP}oops{END}", f"{ALL_BEGIN} x {ALL_END}", BEGIN]
)
def test_deepseek_malformed(text: str) -> None:
    assert parse("deepseek", text) == (text, [])


def test_deepseek_needs_its_tokens() -> None:
    with pytest.raises(MissingTokenError, match="tool▁call▁end"):
        get_tool_parser("deepseek")(tokenizer(BEGIN, SEP))


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "f", "parameters": {"a": {"b": "}"}}}', "", [("f", '{"a": {"b": "}"}}')]),
        ('<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [("f", "{}"), ("g", "{}")]),
        ('\n{"type": "function", "name": "f", "arguments": {}}\n', "", [("f", "{}")]),
        ('{"name": "f", "parameters": {}} and so on', " and so on", [("f", "{}")]),
        ('Say {"name": "f", "parameters": {}}', 'Say {"name": "f", "parameters": {}}', []),
        ('{"colour": "red"} is JSON', '{"colour": "red"} is JSON', []),
        ('{"name": "f", "parameters": {', '{"name": "f", "parameters": {', []),
        ("{ x } y", "{ x } y", []),
        ("<|python_tag|>search.call(1);", "<|python_tag|>search.call(1);", []),
    ],
)
def test_llama3(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse("llama3-json", text) == (content, calls)


@settings(deadline=None)
@given(
    name=st.sampled_from(tool_parsers.names),
    pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12),
    data=st.data(),
)
def test_every_split_of_a_stream_gives_the_whole(name: str, pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    stream = parser(name).stream()
    content, deltas = "", []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        new_content, new_deltas = stream.push(text[a:b])
        content += new_content
        deltas += new_deltas
    new_content, new_deltas = stream.finish()
    content, deltas = content + new_content, deltas + new_deltas
    expected_content, calls = parser(name).parse(text)
    assert content == expected_content
    assert [d.name for d in deltas if d.name is not None] == [call.name for call in calls]
    for i, call in enumerate(calls):
        assert "".join(d.arguments for d in deltas if d.index == i) == call.arguments
        json.loads(call.arguments)
    if not calls:
        assert content == text


@settings(deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)
    )
)
def test_any_arguments_come_through(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments, ensure_ascii=False)
    assert parse("hermes", tagged("f", text)) == ("", [("f", text)])
    assert parse("llama3-json", f'{{"name": "f", "parameters": {text}}}') == ("", [("f", text)])
    assert parse("deepseek-r1", f"{BEGIN}function{SEP}f\n```json\n{text}\n```{END}") == ("", [("f", text)])


def test_deltas_name_first_then_arguments() -> None:
    stream = parser("hermes").stream()
    assert stream.push('Hm. <tool_call>{"name": "f", "argum') == ("Hm.", [])
    assert stream.push('ents": {"a": 1}}</tool_cal') == ("", [])
    content, (first, second) = stream.push("l>")
    assert content == ""
    assert (first.index, first.name, first.arguments) == (0, "f", "")
    assert second == ToolCallDelta(0, arguments='{"a": 1}')
    assert stream.push(tagged("g"))[1][0].index == 1
    assert stream.finish() == ("", [])


def test_ids() -> None:
    _, calls = parser("hermes").parse(tagged() + tagged())
    prefix, digits = calls[0].id[:14], calls[0].id[14:]
    assert prefix == "chatcmpl-tool-"
    assert len(digits) == 32
    int(digits, 16)
    assert calls[0].id != calls[1].id


def test_text_before_a_call_streams_at_once() -> None:
    stream = parser("hermes").stream()
    assert stream.push("a b <") == ("a b", [])
    assert stream.push("c> {") == (" <c> {", [])


def test_names() -> None:
    with pytest.raises(UnknownParserError, match=r"tool_call_parser must be one of .*hermes.*; got 'nope'") as caught:
        get_tool_parser("nope")
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, KeyError)
    assert get_tool_parser("ernie_x1") is get_tool_parser("hermes")


def test_read_object_gives_each_members_own_text() -> None:
    assert read_object(' {"a" : 1.50 , "b":[ ]} x') == ({"a": (1.5, "1.50"), "b": ([], "[ ]")}, 23)
    assert read_object("{}") == ({}, 2)
    for text in ("", "[]", "{", '{"a"}', '{"a": }', '{"a": 1,}', '{"a": 1', "{1: 2}"):
        with pytest.raises(ValueError, match=r"."):
            read_object(text)


def json_depth(text: str) -> tuple[int, bool]:
    state = JsonState()
    state.advance(text, len(text))
    return state.depth, state.in_string


def test_json_depth() -> None:
    assert json_depth('{"a": [') == (2, False)
    assert json_depth('{"a": "}') == (1, True)
    assert json_depth(r'{"a": "\"}') == (1, True)
    assert json_depth('{"a": "}"}') == (0, False)


@given(st.text('"\\{}[]a\n'), st.lists(st.integers(0, 50)))
def test_json_depth_does_not_depend_on_the_cuts(text: str, ends: list[int]) -> None:
    depth, in_string = 0, False
    for mark in re.findall(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', text, re.DOTALL):
        if mark == '"':
            in_string = True
            break
        if len(mark) == 1:
            depth += 1 if mark in "{[" else -1
    state = JsonState()
    for end in sorted(min(end, len(text)) for end in ends):
        state.advance(text, end)
    state.advance(text, len(text))
    assert (state.depth, state.in_string) == (depth, in_string) == json_depth(text)


def test_an_open_string_of_escapes_is_read_once() -> None:
    assert json_depth('{"' + '\\"' * 200_000) == (1, True)  # begun anew at each quote, this would take hours


@pytest.mark.parametrize(("name", "opener", "closer"), [("hermes", "<tool_call>", "</tool_call>"), ("llama3-json", "", "}")])
def test_closers_in_a_string_cost_no_decoding(name: str, opener: str, closer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = parser(name)
    bodies: list[str] = []
    decode = type(one).decode
    monkeypatch.setattr(type(one), "decode", lambda self, body: bodies.append(body) or decode(self, body))
    arguments = json.dumps({"a": closer * 500})
    text = f'{opener}{{"name": "f", "arguments": {arguments}}}{closer if opener else ""}'
    content, (call,) = one.parse(text)
    assert (content, call.arguments) == ("", arguments)
    assert len(bodies) == 1
