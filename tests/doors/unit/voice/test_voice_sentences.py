"""Text that comes bit by bit, cut into pieces to be spoken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.input import read_chunk
from trivium.doors.unit.voice.sentences import Sentences
from trivium.doors.unit.voice.text_chunks import TextChunks


def cut(*texts):
    sentences = Sentences()
    return [sentences.add(text) for text in texts] + [sentences.finish()]


def joined(lists):
    return [piece for pieces in lists for piece in pieces]


@pytest.mark.parametrize("mark", list("，、,。.!！?？;；\n"))
def test_every_mark_ends_a_piece(mark):
    assert cut(f"one{mark}two") == [[f"one{mark}".strip()], ["two."]]


def test_pieces_come_as_soon_as_they_are_complete():
    assert cut("Hel", "lo, wor", "ld. How", " are you") == [[], ["Hello,"], ["world."], [], ["How are you."]]


def test_numbers_are_not_cut():
    assert cut("It costs 1,000.50 now. Pi is 3.14, not 3.") == [
        ["It costs 1,000.50 now.", "Pi is 3.14,"],
        ["not 3."],
    ]
    assert cut("Pi is 3", ".", "14.", " Yes") == [[], [], [], ["Pi is 3.14."], ["Yes."]]
    assert cut("1.", "2") == [[], [], ["1.2."]]


def test_punctuation_alone_is_not_spoken():
    assert cut("... !? ", "- ", "...") == [[], [], [], []]
    assert cut("Well... yes.") == [["Well.", "yes."], []]
    assert cut("") == [[], []]


def test_long_text_without_marks_is_cut_between_words():
    pieces = joined(cut("word " * 300))
    assert len(pieces) == 4
    assert all(len(piece) <= 400 for piece in pieces)
    assert " ".join(pieces).rstrip(".").split() == ["word"] * 300
    pieces = joined(cut("x" * 1000))
    assert [len(piece) for piece in pieces] == [400, 400, 201]


def test_reused_after_its_end():
    sentences = Sentences()
    assert sentences.add("one") == []
    assert sentences.finish() == ["one."]
    assert sentences.add("two.") == ["two."]
    assert sentences.finish() == []


@settings(deadline=None)
@given(st.text(alphabet="ab1 .,!\n。", max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_any_split_gives_the_same_pieces(text, places):
    places = sorted({min(place, len(text)) for place in places})
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert joined(cut(*parts)) == joined(cut(text))


# Numbered chunks


def chunk(delta, index, finish=False):
    return {"delta": delta, "index": index, "finish": finish}


def test_chunks_are_given_out_in_order():
    chunks = TextChunks()
    assert chunks.add("b", 1, False) == ""
    assert not chunks.begun
    assert chunks.num_bytes > 0
    assert chunks.add("a", 0, False) == "ab"
    assert chunks.begun
    assert chunks.add("d", 3, False) == ""
    assert chunks.add("c", 2, False) == "cd"
    assert chunks.add("", 4, True) == ""
    assert chunks.num_bytes == 0


@pytest.mark.parametrize(
    "last",
    [
        "text",
        None,
        {"delta": "a", "finish": True},
        {"delta": 5, "index": 1, "finish": True},
        {"delta": "a", "index": True, "finish": True},
        {"delta": "a", "index": 1, "finish": 1},
        chunk("a", -1),
        chunk("a", 0),
        chunk("a", 2, True),
        chunk("x" * (4 * 2**20 + 1), 1),
    ],
)
def test_chunks_that_are_wrong(last):
    chunks = TextChunks()
    chunks.add("a", 0, False)
    with pytest.raises(UnitError) as caught:
        chunks.add(*read_chunk(last))
    assert caught.value.code == Code.STREAM
