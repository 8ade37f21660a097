"""Lists of parts, as clients send them for prompts that hold more than text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import RequestError
from trivium.media import MAX_MEDIA, MediaPart, TextPart, parse_parts

IMAGE = {"type": "image_url", "image_url": "/data/cat.png"}


@pytest.mark.parametrize(
    ("item", "part"),
    [
        ({"type": "text", "text": "hi"}, TextPart("hi")),
        ({"text": "hi"}, TextPart("hi")),
        ({"type": None, "text": "hi", "image_url": None}, TextPart("hi")),
        (IMAGE, MediaPart("image", "/data/cat.png")),
        ({"image_url": "/data/cat.png"}, MediaPart("image", "/data/cat.png")),
        (
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png", "detail": "auto"}},
            MediaPart("image", "https://a.b/c.png"),
        ),
        ({"type": "video_url", "video_url": "file:///v.mp4"}, MediaPart("video", "file:///v.mp4")),
        ({"type": "audio_url", "audio_url": {"url": "a.wav"}}, MediaPart("audio", "a.wav")),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            MediaPart("audio", "data:audio/mpeg;base64,AAAA"),
        ),
        ({"input_audio": {"data": "AAAA", "format": "wav"}}, MediaPart("audio", "data:audio/x-wav;base64,AAAA")),
    ],
)
def test_kinds(item, part) -> None:
    assert parse_parts([item], "inputs") == [part]


def test_order_is_kept() -> None:
    parts = parse_parts([{"text": "a"}, IMAGE, {"text": "b"}], "inputs")
    assert parts == [TextPart("a"), MediaPart("image", "/data/cat.png"), TextPart("b")]


@pytest.mark.parametrize(
    ("items", "field"),
    [
        (None, "inputs"),
        ([], "inputs"),
        ("text", "inputs"),
        ({"text": "a"}, "inputs"),
        (["a"], "inputs[0]"),
        ([{"text": "a"}, 7], "inputs[1]"),
        ([{}], "inputs[0].type"),
        ([{"detail": "auto"}], "inputs[0].type"),
        ([{"text": "a", "image_url": "b"}], "inputs[0].type"),
        ([{"type": "file", "text": "a"}], "inputs[0].type"),
        ([{"type": ["text"], "text": "a"}], "inputs[0].type"),
        ([{"type": "text"}], "inputs[0]"),
        ([{"type": "text", "text": None}], "inputs[0]"),
        ([{"type": "text", "image_url": "a"}], "inputs[0]"),
        ([{"type": "text", "text": "a", "image_url": "b"}], "inputs[0]"),
        ([{"type": "text", "text": ""}], "inputs[0].text"),
        ([{"type": "text", "text": 5}], "inputs[0].text"),
        ([{"type": "image_url", "image_url": ""}], "inputs[0].image_url"),
        ([{"type": "image_url", "image_url": 5}], "inputs[0].image_url"),
        ([{"type": "video_url", "video_url": {}}], "inputs[0].video_url"),
        ([{"type": "audio_url", "audio_url": {"url": None}}], "inputs[0].audio_url"),
        ([{"type": "input_audio", "input_audio": "AAAA"}], "inputs[0].input_audio.format"),
        ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}}], "inputs[0].input_audio.format"),
        ([{"type": "input_audio", "input_audio": {"format": "wav"}}], "inputs[0].input_audio.data"),
        ([IMAGE] * (MAX_MEDIA + 1), "inputs"),
    ],
)
def test_refusals_name_the_item(items, field) -> None:
    with pytest.raises(RequestError, match=r"^inputs") as caught:
        parse_parts(items, "inputs")
    assert caught.value.field == field
    assert len(str(caught.value)) < 500


def test_as_many_media_as_allowed_and_any_number_of_texts() -> None:
    assert len(parse_parts([IMAGE] * MAX_MEDIA + [{"text": "a"}] * 100, "inputs")) == MAX_MEDIA + 100


def test_ignored_keys_are_told() -> None:
    told: list[str] = []
    item = {"type": "image_url", "image_url": {"url": "a.png", "detail": "high", "extra": 1}, "id": 4, "none": None}
    parse_parts([item], "inputs", told.append)
    assert sorted(told) == ["detail", "extra", "id"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
items = st.dictionaries(
    st.sampled_from(["type", "text", "image_url", "video_url", "input_audio", "url", "x"]),
    json_values | st.sampled_from(["text", "image_url", "input_audio"]),
    max_size=4,
)


@given(json_values | st.lists(items, max_size=3))
def test_whatever_comes_is_read_or_refused(value) -> None:
    told: list[str] = []
    try:
        parts = parse_parts(value, "inputs", told.append)
    except RequestError:
        return
    assert len(parts) == len(value)
