"""Pieces of an answer, joined, are the answer; however the text was cut."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_parts import FakeEngine, RoleTemplate

from trivium.doors.http.openai.pieces import PieceReader
from trivium.doors.http.openai.request import CHAT, COMPLETIONS, BodyReader
from trivium.engine.outputs import OutputDelta, TokenLogprobs
from trivium.errors import DeadlineExceededError, EngineDeadError, EngineError

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "g"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "}]\\"{"}}\n</tool_call>'
LIST = '[ {"name": "f", "parameters": {"a": [1, {"b": "]}\\\\"}]}},\n{"name":"g","parameters":{}} ]'


@pytest.fixture(scope="module")
def reader():
    with FakeEngine(chat_template=RoleTemplate(), reasoning_parser="qwen3") as engine:
        yield BodyReader(engine)


def asked_for(reader, **fields):
    return reader.read(CHAT, {"messages": MESSAGES, **fields}, "r")


def deltas_of(text, cuts, *, reason="stop", request_id="r-0", index=0, **last):
    """One delta per part of the text, whose tokens are its bytes."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [text[begin:end] for begin, end in itertools.pairwise(places)] or [""]
    deltas = [OutputDelta(request_id, index, list(part.encode()), part, num_prompt_tokens=3) for part in parts]
    deltas[-1].finish_reason = reason
    for name, value in last.items():
        setattr(deltas[-1], name, value)
    return deltas


def read(asked, deltas):
    """The pieces of one choice, checked: each shows something, only the last has an end."""
    reader = PieceReader(asked)
    pieces = [piece for delta in deltas for piece in reader.read([delta])]
    for piece in pieces[:-1]:
        assert piece.content or piece.reasoning or piece.tool_calls
        assert piece.finish_reason is None
    assert pieces[-1].finish_reason is not None
    return pieces


def told(piece):
    calls = [(call.index, call.name, call.arguments) for call in piece.tool_calls]
    return piece.reasoning, piece.content, calls, piece.token_ids, piece.finish_reason, piece.num_reasoning_tokens


TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["<think>", "</think>", CALL, LIST, "<tool_", "call>", " ", "\n", "é", "x", "{", "]"])).map(
        "".join
    ),
)
MODES = st.sampled_from(
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": NAMED},
    ]
)


@given(TEXTS, st.lists(st.integers(0, 200)), MODES, st.sampled_from(["stop", "length"]))
def test_cuts_do_not_matter(reader, text, cuts, fields, reason):
    asked = asked_for(reader, **fields)
    whole = PieceReader.joined(read(asked, deltas_of(text, [], reason=reason)))
    pieces = read(asked, deltas_of(text, cuts, reason=reason))
    assert told(PieceReader.joined(pieces)) == told(whole)
    assert whole.token_ids == list(text.encode())
    for call in PieceReader.joined(pieces).tool_calls:
        assert call.id.startswith("chatcmpl-tool-")


def test_plain_text(reader):
    asked = reader.read(COMPLETIONS, {"prompt": "a", "n": 2}, "r")
    deltas = [
        *deltas_of("ab", [1], index=1, reason="length"),
        OutputDelta("r-0", 0, [195], ""),
        OutputDelta("r-0", 0, [169], "é"),
        OutputDelta("r-0", 0, [1], "", finish_reason="stop", stop_reason=1, num_cached_tokens=2),
    ]
    pieces = list(PieceReader(asked).read(deltas))
    assert [(piece.index, piece.content, piece.token_ids) for piece in pieces] == [
        (1, "a", [97]),
        (1, "b", [98]),
        (0, "é", [195, 169]),
        (0, "", [1]),
    ]
    assert (pieces[1].finish_reason, pieces[3].finish_reason, pieces[3].stop_reason) == ("length", "stop", 1)
    assert pieces[3].num_cached_tokens == 2


def test_thought_and_calls(reader):
    asked = asked_for(reader, tools=TOOLS)
    text = f"hm</think>\nSure.\n{CALL}\n{CALL}"
    whole = PieceReader.joined(read(asked, deltas_of(text, range(0, 200, 3))))
    assert (whole.reasoning, whole.content, whole.finish_reason) == ("hm", "Sure.", "tool_calls")
    assert [(call.index, call.name, json.loads(call.arguments)) for call in whole.tool_calls] == [
        (0, "f", {"x": '}]"{'}),
        (1, "f", {"x": '}]"{'}),
    ]
    assert whole.num_reasoning_tokens == len("hm</think>")
    cut = PieceReader.joined(read(asked, deltas_of(f"</think>{CALL}", [], reason="length")))
    assert (cut.reasoning, len(cut.tool_calls), cut.finish_reason) == ("", 1, "length")
    one = asked_for(reader, tools=TOOLS, parallel_tool_calls=False)
    assert len(PieceReader.joined(read(one, deltas_of(text, []))).tool_calls) == 1


def test_forced_calls(reader):
    asked = asked_for(reader, tools=TOOLS, tool_choice="required")
    whole = PieceReader.joined(read(asked, deltas_of(f"</think>{LIST}", range(0, 200, 2))))
    assert [(call.name, json.loads(call.arguments)) for call in whole.tool_calls] == [
        ("f", {"a": [1, {"b": "]}\\"}]}),
        ("g", {}),
    ]
    assert (whole.content, whole.finish_reason) == ("", "tool_calls")
    asked = asked_for(reader, tools=TOOLS, tool_choice=NAMED)
    pieces = read(asked, deltas_of('</think>{"a": 1}', range(100)))
    assert [call.name for piece in pieces for call in piece.tool_calls][:2] == ["g", None]
    (call,) = PieceReader.joined(pieces).tool_calls
    assert (call.name, call.arguments) == ("g", '{"a": 1}')


@pytest.mark.parametrize(
    ("reason", "error", "kind"),
    [
        ("timeout", None, DeadlineExceededError),
        ("abort", None, EngineDeadError),
        ("error", EngineError("the step failed"), EngineError),
        ("error", ZeroDivisionError("secret"), EngineError),
    ],
)
def test_failures(reader, reason, error, kind):
    with pytest.raises(kind) as caught:
        list(PieceReader(asked_for(reader)).read(deltas_of("x", [], reason=reason, error=error)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("reason", ["timeout", "abort", "error"])
def test_what_came_before_a_failure_is_streamed(reader, reason):
    events = []
    batches = [deltas_of("</think>abc", [9, 10], reason=reason), []]

    async def take():
        return batches.pop(0)

    async def main():
        stream = PieceReader(asked_for(reader)).stream(SimpleNamespace(take=take), lambda piece: piece.content.encode())
        async for event in stream:
            events.append(event)

    with pytest.raises(EngineError):
        asyncio.run(main())
    assert events == [b"ab"]  # the last delta tells the failure


def test_echo_waits_for_the_prompts_logprobs(reader):
    rows = [None, TokenLogprobs(98, -1.0, 1)]
    asked = reader.read(COMPLETIONS, {"prompt": "ab", "n": 2, "echo": True, "logprobs": 0, "max_tokens": 2}, "r")
    one = TokenLogprobs(99, -1.0, 1)
    deltas = [
        OutputDelta("r-0", 1, [99], "c", [one]),
        OutputDelta("r-0", 0, [99], "c", [one], rows),
        OutputDelta("r-0", 1, [100], "d", [one], finish_reason="stop"),
        OutputDelta("r-0", 0, [100], "d", [one], finish_reason="stop"),
    ]
    pieces = list(PieceReader(asked).read(deltas))
    assert [(piece.index, piece.content, len(piece.logprobs)) for piece in pieces] == [
        (0, "abc", 1),
        (1, "abcd", 2),
        (0, "d", 1),
    ]
    assert [piece.prompt_logprobs for piece in pieces] == [rows, rows, None]


def test_nothing_but_the_prompt(reader):
    asked = reader.read(COMPLETIONS, {"prompt": "ab", "echo": True, "max_tokens": 0}, "r")
    (piece,) = PieceReader(asked).read(deltas_of("x", [], reason="length"))
    assert (piece.content, piece.token_ids, piece.finish_reason) == ("ab", [], "length")
