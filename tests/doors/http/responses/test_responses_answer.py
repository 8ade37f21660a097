"""The events of a response tell, joined, the response itself; both have the forms of OpenAI's own models."""

from __future__ import annotations

import itertools

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from translation_parts import frames, pieces_of

from trivium.doors.http.openai.pieces import Piece
from trivium.doors.http.responses.answer import ResponseWriter
from trivium.doors.http.responses.request import read_body
from trivium.engine.outputs import TokenLogprobs

EVENT = TypeAdapter(ResponseStreamEvent)
ANSWERS = {
    "text": ["Hel", "lo"],
    "nothing": [],
    "thought": [("hm",), ("m",), "yes"],
    "only thought": [("hm",)],
    "call": [(0, "c0", "f"), (0, None, None, '{"a":'), (0, None, None, "1}")],
    "text and calls": ["a", (0, "c0", "f", "{}"), (1, "c1", "g", ""), (1, None, None, '{"b":2}'), "z"],
    "everything": [("hm",), "a\n\u2028é", (0, "c0", "f", "{}"), ("hm",), "b"],
}


def write(pieces, logprobs=None):
    """The response, and its events, checked."""
    fields = {**read_body({"input": "hi"}).repeated, "model": "m", "temperature": 1.0, "top_p": 1.0}
    writer = ResponseWriter("resp_1", fields, 10, logprobs)
    events = frames(writer.begin() + b"".join(map(writer.add, pieces)))
    check(events)
    return writer.response, events


def check(events):
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    for _, event in events:
        EVENT.validate_python(event)
    Response.model_validate(events[-1][1]["response"])


def rebuilt(events):
    """The output as a client puts it together from deltas; each item's end must tell the same."""
    items = {}
    for name, event in events:
        index = event.get("output_index")
        if name == "response.output_item.added":
            assert index == len(items)
            items[index] = {"id": event["item"]["id"], "type": event["item"]["type"], "text": "", "closed": False}
        elif index is not None:
            item = items[index]
            assert not item["closed"]
            assert index == max(items), "only the last item grows"
            if name == "response.output_item.done":
                item["closed"] = True
                assert event["item"]["id"] == item["id"]
                assert text_of(event["item"]) == item["text"]
            else:
                assert event["item_id"] == item["id"]
            if name.endswith(".delta"):
                item["text"] += event["delta"]
            elif name.endswith(("text.done", "arguments.done")):
                assert event.get("text", event.get("arguments")) == item["text"]
            elif name == "response.content_part.done":
                assert event["part"]["text"] == item["text"]
    assert all(item["closed"] for item in items.values())
    return [(item["id"], item["type"], item["text"]) for item in items.values()]


def text_of(item):
    return item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"])


@pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_events_joined_are_the_response(parts, finish):
    response, events = write(pieces_of(*parts, finish=finish, cached=4))
    assert events[-1][1]["response"] == response
    assert rebuilt(events) == [(item["id"], item["type"], text_of(item)) for item in response["output"]]
    assert len({item["id"] for item in response["output"]}) == len(response["output"])
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 2 * len(parts) + 1,
        "output_tokens_details": {"reasoning_tokens": 2 * sum(isinstance(part, tuple) and len(part) == 1 for part in parts)},
        "total_tokens": 10 + 2 * len(parts) + 1,
    }


def test_a_complete_response():
    response, events = write(pieces_of("Hel", "lo"))
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (response["status"], response["incomplete_details"], response["error"]) == ("completed", None, None)
    assert response["completed_at"] >= response["created_at"]
    (item,) = response["output"]
    assert (item["status"], item["role"]) == ("completed", "assistant")
    assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]


def test_a_response_that_was_cut():
    response, events = write(pieces_of(("hm",), "a", finish="length"))
    assert events[-1][0] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize(
    ("parts", "finish", "kinds"), [([], "stop", ["message"]), ([], "length", []), ([("hm",)], "length", ["reasoning"])]
)
def test_an_answer_without_words_is_a_message_unless_it_was_cut(parts, finish, kinds):
    response, _ = write(pieces_of(*parts, finish=finish))
    assert [item["type"] for item in response["output"]] == kinds


def test_thought_and_calls_are_items():
    response, events = write(pieces_of(("hm",), "a", (0, "c0", "f", '{"x":1}'), (1, "c1", "g", "{}"), finish="tool_calls"))
    thought, message, first, second = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert thought["summary"] == []
    assert message["content"][0]["text"] == "a"
    assert [(call["call_id"], call["name"], call["arguments"], call["status"]) for call in (first, second)] == [
        ("c0", "f", '{"x":1}', "completed"),
        ("c1", "g", "{}", "completed"),
    ]
    assert [item["id"].split("_")[0] for item in response["output"]] == ["rs", "msg", "fc", "fc"]
    assert response["status"] == "completed"
    names = [name for name, _ in events]
    assert "response.reasoning_text.delta" in names
    assert "response.reasoning_text.done" in names
    assert names.count("response.function_call_arguments.delta") == 2


def test_logprobs_come_with_the_text():
    def told(rows):
        return [{"token": str(row.token_id), "logprob": row.logprob, "bytes": [], "top_logprobs": []} for row in rows]

    pieces = [
        Piece(0, reasoning="hm", token_ids=[1], logprobs=[TokenLogprobs(1, -1.0, 1)]),
        Piece(0, content="a", token_ids=[2], logprobs=[TokenLogprobs(2, -2.0, 1)]),
        Piece(0, content="b", token_ids=[3, 4], logprobs=[TokenLogprobs(3, -3.0, 1), TokenLogprobs(4, -4.0, 1)]),
        Piece(0, finish_reason="stop"),
    ]
    response, events = write(pieces, told)
    rows = response["output"][1]["content"][0]["logprobs"]
    assert [row["token"] for row in rows] == ["2", "3", "4"]
    deltas = [event["logprobs"] for name, event in events if name == "response.output_text.delta"]
    assert list(itertools.chain(*deltas)) == rows
    assert next(event for name, event in events if name == "response.output_text.done")["logprobs"] == rows


@pytest.mark.parametrize("parts", [[], ["a"], [("hm",)], [(0, "c0", "f", '{"x"')]])
def test_a_failure_ends_the_response(parts):
    fields = {**read_body({"input": "hi"}).repeated, "model": "m"}
    writer = ResponseWriter("resp_1", fields, 10)
    data = writer.begin() + b"".join(map(writer.add, pieces_of(*parts)[:-1])) + writer.fail("it broke")
    events = frames(data)
    check(events)
    assert events[-1][0] == "response.failed"
    response = events[-1][1]["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "it broke"})
    assert [item["status"] for item in response["output"]] == ["incomplete"] * len(parts)
    assert rebuilt(events) == [(item["id"], item["type"], text_of(item)) for item in response["output"]]
