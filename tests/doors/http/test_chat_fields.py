"""Fields of chat completions in bodies of the responses and the messages API."""

from __future__ import annotations

import pytest

from trivium.doors.http.anthropic import request as anthropic
from trivium.doors.http.asking import _UnknownFields
from trivium.doors.http.openai.fields import is_one_of
from trivium.doors.http.responses import request as responses
from trivium.errors import RequestError

HELLO = [{"role": "user", "content": "hi"}]


def read(api, **fields):
    if api == "responses":
        return responses.read_body({"input": "hi", **fields})
    return anthropic.read_body({"messages": HELLO, "max_tokens": 5, **fields})


@pytest.mark.parametrize(
    ("api", "fields", "hint"),
    [
        ("responses", {"max_tokens": 5}, "max_output_tokens"),
        ("responses", {"messages": HELLO}, "input"),
        ("responses", {"response_format": {"type": "json_object"}}, "text.format"),
        ("responses", {"guided_choice": ["a"]}, None),
        ("responses", {"logprobs": True}, None),
        ("responses", {"n": 2}, None),
        ("responses", {"n": True}, None),
        ("responses", {"logit_bias": {"1": 2}}, None),
        ("responses", {"suffix": "x"}, None),
        ("messages", {"stop": ["a"]}, "stop_sequences"),
        ("messages", {"max_completion_tokens": 5}, None),
        ("messages", {"response_format": {"type": "json_object"}}, "output_config.format"),
        ("messages", {"seed": 0}, None),
        ("messages", {"n": 2}, None),
        ("messages", {"structured_outputs": {"choice": ["a"]}}, None),
    ],
)
def test_what_asks_for_something_is_refused(api, fields, hint):
    (name,) = fields
    with pytest.raises(RequestError) as caught:
        read(api, **fields)
    assert caught.value.field == name
    which = f", which has {hint}" if hint else ""
    assert str(caught.value) == f"{name!r} is no field of the {api} API{which}"


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_what_asks_for_nothing_is_ignored_like_an_unknown_field(api):
    neutral = {"n": 1, "best_of": 1, "echo": False, "logit_bias": {}, "response_format": {"type": "text"}, "functions": []}
    assert set(read(api, **neutral, seed=None, colour=1).unknown) == {*neutral, "colour"}


def test_little_of_an_unknown_fields_name_is_remembered(caplog):
    unknown = _UnknownFields(None)
    unknown.note("/v1/messages", ["x" * 80 + end for end in "ab"])
    assert caplog.messages == [f"unknown field '{'x' * 80}' of /v1/messages: ignored"]
    assert unknown._logged == {("/v1/messages", "x" * 80)}


def test_true_and_false_are_no_numbers():
    assert is_one_of(1, (1.0,))
    assert is_one_of(False, (False,))
    assert not is_one_of(0, (False,))
    assert not is_one_of(True, (1,))
