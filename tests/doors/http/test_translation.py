"""Errors about a chat completion, told of the body that it comes from."""

from __future__ import annotations

import pytest

from trivium.doors.http.openai.fields import Fields
from trivium.doors.http.translation import Conversation, Translation, joined_text
from trivium.errors import PromptTooLongError, RequestError

KINDS = {"text": "text", "refusal": "refusal"}


@pytest.fixture
def body():
    conversation = Conversation()
    conversation.add("instructions", "system", "a")
    conversation.add("input[0]", "user", "b")
    names = {"messages": "input", "tools[0].function": "tools[1]", "response_format": "text.format"}
    return Translation({}, conversation, names, stream=False, unknown=())


@pytest.mark.parametrize(
    ("field", "message", "own", "told"),
    [
        ("messages[1].content", "messages[1].content must be x", "input[0].content", "input[0].content must be x"),
        ("messages", "messages must be short", "input", "input must be short"),
        ("messages", "chat template: no", "input", "input: chat template: no"),
        ("tools[0].function.name", "tools[0].function.name must be x", "tools[1].name", "tools[1].name must be x"),
        ("tools[0].functional", "tools[0].functional must be x", "tools[0].functional", "tools[0].functional must be x"),
        ("response_format", "tool_choice and response_format clash", "text.format", "tool_choice and text.format clash"),
        ("temperature", "temperature must be warm", "temperature", "temperature must be warm"),
    ],
)
def test_fields_get_their_own_names(body, field, message, own, told):
    error = body.renamed(RequestError(message, field=field, allowed="x", value=3))
    assert (error.field, str(error), error.allowed, error.value) == (own, told, "x", 3)


def test_an_error_keeps_its_class_and_one_without_a_field_stays(body):
    error = body.renamed(PromptTooLongError("the prompt has 9 tokens", field="messages", value=9))
    assert type(error) is PromptTooLongError
    assert (str(error), error.field, error.value) == ("input: the prompt has 9 tokens", "input", 9)
    plain = RequestError("no")
    assert body.renamed(plain) is plain


def test_parts_are_joined_with_nothing_between():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert joined_text(parts, "content", KINDS) == "ab"
    assert joined_text("c", "content", KINDS) == "c"
    assert joined_text([], "content", KINDS) == ""


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (None, "content"),
        (3, "content"),
        (["a"], "content[0]"),
        ([{"type": "text", "text": "a"}, {"text": "b"}], "content[1].type"),
        ([{"type": "image"}], "content[0].type"),
        ([{"type": ["text"]}], "content[0].type"),
        ([{"type": "text", "refusal": "b"}], "content[0].text"),
        ([{"type": "text", "text": 1}], "content[0].text"),
    ],
)
def test_parts_of_a_wrong_form(content, field):
    with pytest.raises(RequestError) as caught:
        joined_text(content, "content", KINDS)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_members_are_named_with_their_place():
    assert Fields({"a": 1}, "input[0].").name("a") == "input[0].a"
