"""Replies as bytes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.doors.unit.frames import MAX_FRAME, StreamFrames, reply, split_text, to_ascii

texts = st.text(alphabet=st.one_of(st.sampled_from('{}"\\\n\t'), st.characters(codec="utf-8")), max_size=60)


def test_a_reply_is_one_compact_line_with_all_keys_in_order():
    now = int(time.time())
    line = reply("2", "llm.1002")
    created = json.loads(line)["created"]
    assert created - now in (0, 1)
    assert line == (
        b'{"created":%d,"data":"None","error":{"code":0,"message":""},"object":"None","request_id":"2","work_id":"llm.1002"}\n'
        % created
    )


def test_a_streamed_frame_looks_as_the_original_writes_it():
    frames = StreamFrames("2", "llm.1003", "llm.utf-8.stream")
    (line,) = frames.deltas("I am not")
    assert line == (
        b'{"created":%d,"data":{"delta":"I am not","finish":false,"index":0},"error":{"code":0,"message":""},'
        b'"object":"llm.utf-8.stream","request_id":"2","work_id":"llm.1003"}\n' % json.loads(line)["created"]
    )
    last = frames.finish()
    assert last == (
        b'{"created":%d,"data":{"delta":"","finish":true,"index":1},"error":{"code":0,"message":""},'
        b'"object":"llm.utf-8.stream","request_id":"2","work_id":"llm.1003"}\n' % json.loads(last)["created"]
    )


@given(texts, texts, st.recursive(texts, lambda inner: st.one_of(st.lists(inner), st.dictionaries(texts, inner)), max_leaves=6))
def test_braces_in_strings_are_escaped_and_the_content_stays(request_id, message, data):
    line = reply(request_id, "sys", object="o", data=data, code=-5, message=message)
    read = json.loads(line)
    assert (read["request_id"], read["error"]["message"], read["data"]) == (request_id, message, data)
    assert list(read) == sorted(read)
    depth = 0
    for i, byte in enumerate(line):  # as clients count that know no strings
        depth += (byte == ord("{")) - (byte == ord("}"))
        assert depth > 0 or i >= len(line) - 2
    assert depth == 0
    assert line.count(b"\n") == 1


@given(texts)
def test_ascii_frames_say_the_same(text):
    frame = reply(text, "sys", data=text)
    assert to_ascii(frame).isascii()
    assert json.loads(to_ascii(frame)) == json.loads(frame)


@pytest.mark.parametrize("text", ["a" * 5000, "é{}" * 700, "\U0001f600" * 500, '"\\\n' * 900, "汉字" * 600])
def test_long_texts_are_cut_into_frames_below_a_kilobyte(text):
    frames = StreamFrames("request", "llm.1000", "llm.utf-8.stream")
    lines = [*frames.deltas(text), frames.finish()]
    assert all(len(to_ascii(line)) <= MAX_FRAME for line in lines)
    read = [json.loads(line)["data"] for line in lines]
    assert "".join(data["delta"] for data in read) == text
    assert [data["index"] for data in read] == list(range(len(read)))
    assert [data["finish"] for data in read] == [False] * (len(read) - 1) + [True]
    assert all(data["delta"] for data in read[:-1])


def test_ids_that_fill_a_frame_leave_room_for_some_text():
    frames = StreamFrames("x" * 2000, "llm.1000", "llm.utf-8.stream")
    assert len(frames.deltas("a" * 128)) == 2


@given(texts, st.integers(12, 40))
def test_pieces_of_a_text_fit(text, room):
    pieces = split_text(text, room)
    assert "".join(pieces) == text
    for piece in pieces:
        written = json.dumps(piece).replace("{", "\\u007b").replace("}", "\\u007d").replace("\\u007f", "\x7f")
        assert len(written) - 2 <= room


def test_no_text_is_no_frame():
    assert StreamFrames("1", "llm.1000", "o").deltas("") == []


def test_names_that_are_no_unicode_can_be_told():
    assert json.loads(reply("1", "sys", message="/tmp/\udcff"))["error"]["message"] == "/tmp/?"
