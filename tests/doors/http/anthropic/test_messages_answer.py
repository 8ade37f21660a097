"""The events of a message tell, joined, the message itself; both have the forms of Anthropic's own models."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from translation_parts import frames, pieces_of

from trivium.doors.http.anthropic.answer import MessageWriter, error_event
from trivium.errors import DeadlineExceededError, EngineDeadError, EngineError

EVENT = TypeAdapter(RawMessageStreamEvent)
ANSWERS = {
    "text": ["Hel", "lo"],
    "nothing": [],
    "thought": [("hm",), ("m",), "yes"],
    "only thought": [("hm",)],
    "call": [(0, "c0", "f"), (0, None, None, '{"a":'), (0, None, None, "1}")],
    "text and calls": ["a", (0, "c0", "f", "{}"), (1, "c1", "g", ""), (1, None, None, '{"b":2}'), "z"],
    "everything": [("hm",), "a\n\u2028é", (0, "c0", "f", "{}"), ("hm",), "b"],
}


def write(pieces, *, shows_thought=True):
    """The message, and its events, checked."""
    writer = MessageWriter("msg_1", "m", 10, shows_thought=shows_thought)
    events = frames(b"".join(map(writer.add, pieces)))
    for _, event in events:
        EVENT.validate_python(event)
    Message.model_validate(writer.message)
    return writer.message, events


def rebuilt(events):
    """The message as a client puts it together."""
    message = dict(events[0][1]["message"])
    blocks, texts, is_open = [], [], False
    for _, event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            texts.append("")
            is_open = True
        elif kind == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            kinds = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
            assert event["delta"]["type"] == kinds[blocks[-1]["type"]]
            texts[-1] += next(value for name, value in event["delta"].items() if name != "type")
        elif kind == "content_block_stop":
            assert event["index"] == len(blocks) - 1
            is_open = False
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event["usage"]}
    assert not is_open
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    for block, text in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
        else:
            block[block["type"]] = text
    return {**message, "content": blocks}


@pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_events_joined_are_the_message(parts, finish):
    message, events = write(pieces_of(*parts, finish=finish, cached=4))
    assert rebuilt(events) == message
    assert events[0][1]["message"]["usage"]["cache_read_input_tokens"] == 4
    thought = 2 * sum(isinstance(part, tuple) and len(part) == 1 for part in parts)
    assert message["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2 * len(parts) + 1,
        "output_tokens_details": {"thinking_tokens": thought},
        "service_tier": "standard",
    }


def test_blocks():
    message, _ = write(pieces_of(("hm",), "a", (0, "c0", "f", '{"x":1}'), (1, "c1", "g", "{}"), finish="tool_calls"))
    thought, text, first, second = message["content"]
    assert thought == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert text == {"type": "text", "text": "a"}
    assert [(block["type"], block["name"], block["input"]) for block in (first, second)] == [
        ("tool_use", "f", {"x": 1}),
        ("tool_use", "g", {}),
    ]
    assert first["id"] != second["id"]
    assert first["id"].startswith("toolu_")


@pytest.mark.parametrize(
    ("parts", "finish", "stop_reason", "told"),
    [
        (["a"], "stop", None, ("end_turn", None)),
        (["a"], "stop", 7, ("end_turn", None)),
        (["a"], "stop", "END", ("stop_sequence", "END")),
        (["a"], "length", None, ("max_tokens", None)),
        ([(0, "c0", "f", "{}")], "tool_calls", None, ("tool_use", None)),
        ([(0, "c0", "f", "{}")], "stop", None, ("tool_use", None)),
        ([(0, "c0", "f", "{")], "length", None, ("max_tokens", None)),
    ],
)
def test_why_it_stopped(parts, finish, stop_reason, told):
    message, _ = write(pieces_of(*parts, finish=finish, stop_reason=stop_reason))
    assert (message["stop_reason"], message["stop_sequence"]) == told


def test_a_call_that_was_cut_has_no_input():
    message, _ = write(pieces_of((0, "c0", "f", '{"x":'), finish="length"))
    assert message["content"][0]["input"] == {}


def test_a_thought_that_is_not_to_be_shown():
    message, events = write(pieces_of(("hm",), "a"), shows_thought=False)
    assert message["content"] == [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "a"}]
    assert rebuilt(events) == message
    assert b"hm" not in json.dumps(events).encode()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineError("the step failed"), "api_error"),
        (DeadlineExceededError("late"), "timeout_error"),
        (EngineDeadError("gone"), "overloaded_error"),
    ],
)
def test_an_error_has_an_event_of_its_own(error, kind):
    ((name, event),) = frames(error_event(error))
    assert name == "error"
    assert event["error"] == {"type": kind, "message": str(error)}
