from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_parts import FakeEngine, RoleTemplate

from trivium.doors.http.openai.fields import Fields
from trivium.doors.http.openai.forced_calls import CallListStream, NamedCallStream
from trivium.doors.http.openai.pieces import joined_calls
from trivium.doors.http.openai.request import CHAT, BodyReader
from trivium.doors.http.openai.tools import read_tools
from trivium.errors import RequestError
from trivium.models.chat_template import ChatTemplate

POINT = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Point"}, "self": {"$ref": "#"}},
    "$defs": {"Point": {"type": "array", "items": {"type": "number"}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "plain"}},
    {"type": "function", "function": {"name": "point", "parameters": POINT}},
]


def schema(**fields):
    return read_tools(Fields({"tools": TOOLS, **fields})).structure().options.json


def test_named_tool():
    choice = {"type": "function", "function": {"name": "point"}}
    assert schema(tool_choice=choice) == {**POINT, "additionalProperties": False}
    choice["function"]["name"] = "plain"
    assert schema(tool_choice=choice) == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {}, "allOf": [{"properties": {"a": {}}}]},
    ],
)
def test_a_schema_that_tells_of_other_properties_is_taken_as_it_is(parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert schema(tools=tools, tool_choice={"type": "function", "function": {"name": "f"}}) == parameters


def test_required_tools():
    required = schema(tool_choice="required")
    assert (required["type"], required["minItems"], "maxItems" in required) == ("array", 1, False)
    assert [call["properties"]["name"] for call in required["items"]["anyOf"]] == [{"const": "plain"}, {"const": "point"}]
    assert [call["properties"]["parameters"]["$ref"] for call in required["items"]["anyOf"]] == ["#/$defs/0", "#/$defs/1"]
    moved = required["$defs"]["1"]
    assert moved["properties"] == {"at": {"$ref": "#/$defs/1/$defs/Point"}, "self": {"$ref": "#/$defs/1"}}
    assert moved["$defs"] == POINT["$defs"]
    assert schema(tool_choice="required", parallel_tool_calls=False)["maxItems"] == 1


def test_free_choice_has_no_schema():
    assert read_tools(Fields({"tools": TOOLS})).structure() is None
    assert read_tools(Fields({"tools": TOOLS, "tool_choice": "none"})).tools == ()


@pytest.mark.parametrize("tool_choice", [{"type": "allowed_tools", "allowed_tools": {}}, {"type": "custom"}, 3, []])
def test_other_choices(tool_choice):
    with pytest.raises(RequestError, match="tool_choice must be 'none', 'auto', 'required'"):
        schema(tool_choice=tool_choice)


def test_parsers_for_free_choice():
    known = "{% for t in tools or [] %}{{ t }}{% endfor %}"
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}

    def parser(source, **config):
        with FakeEngine(**config) as engine:
            engine.chat_template = ChatTemplate(source, engine.tokenizer)
            return type(BodyReader(engine).read(CHAT, body, "r").tool_parser).__name__

    assert parser(known + "<tool_call>") == "TaggedJsonParser"
    assert parser(known, tool_call_parser="llama3_json") == "Llama3JsonParser"
    assert parser("hi", max_model_len=4096) == "TaggedJsonParser"
    assert parser("hi", tool_call_parser="llama3_json") == "TaggedJsonParser"  # what tools are described for
    with pytest.raises(RequestError, match="--tool-call-parser") as caught:
        parser(known)
    assert caught.value.field == "tool_choice"
    with FakeEngine(chat_template=RoleTemplate()) as engine:
        assert BodyReader(engine).read(CHAT, {**body, "tool_choice": "required"}, "r").tool_parser is None


def read(stream, text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    content, deltas = "", []
    for begin, end in zip([0, *places], places, strict=False):
        more, calls = stream.push(text[begin:end])
        content, deltas = content + more, deltas + calls
    more, calls = stream.finish()
    return content + more, joined_calls(deltas + calls)


ARGUMENTS = st.dictionaries(st.text(), st.recursive(st.text() | st.integers() | st.none(), lambda x: st.lists(x, max_size=3)))
CUTS = st.lists(st.integers(0, 10**6), max_size=20)


@given(
    st.lists(st.tuples(st.text(min_size=1), ARGUMENTS), min_size=1, max_size=4), CUTS, st.sampled_from([None, 1]), st.booleans()
)
def test_call_lists(calls, cuts, indent, ascii_only):
    values = [{"name": name, "parameters": arguments} for name, arguments in calls]
    content, found = read(CallListStream(), json.dumps(values, indent=indent, ensure_ascii=ascii_only), cuts)
    assert content == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert [call.index for call in found] == list(range(len(calls)))
    assert len({call.id for call in found}) == len(calls)


def test_call_lists_that_are_cut_off():
    text = '[{"name": "f", "parameters": {"a": "b"}}, {"name": "g", "parameters": {"c": [1'
    content, (first, second) = read(CallListStream(), text, range(100))
    assert (content, first.arguments, second.name, second.arguments) == ("", '{"a": "b"}', "g", '{"c": [1')
    assert len(read(CallListStream(), text[:50], [])[1]) == 1
    assert read(CallListStream(), '[{"name": "f', range(20)) == ('[{"name": "f', [])
    assert read(CallListStream(), "", []) == ("", [])


@given(st.text(min_size=1), CUTS)
def test_named_calls(text, cuts):
    content, (call,) = read(NamedCallStream("f"), text, cuts)
    assert (content, call.index, call.name, call.arguments) == ("", 0, "f", text)
    assert read(NamedCallStream("f"), "", []) == ("", [])
