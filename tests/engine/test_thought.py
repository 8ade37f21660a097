"""Following and limiting the thought of a reasoning model."""

from __future__ import annotations

import pytest
from engine_parts import byte_tokenizer

from trivium.engine.thought import Thought


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def states(thought, text):
    """Whether the thought is open after each byte."""
    result = []
    for token in text.encode():
        thought.push(token)
        result.append(thought.open)
    return result


def test_opens_only_at_the_beginning(tokenizer):
    text = " \n<think>ab</think>c<think>d"
    opened, closed = text.index("<think>") + 6, text.index("</think>") + 7
    assert states(Thought(tokenizer, is_open=False, limit=None), text) == [opened <= i < closed for i in range(len(text))]
    assert not any(states(Thought(tokenizer, is_open=False, limit=None), "x<think>ab"))
    assert not any(states(Thought(tokenizer, is_open=False, limit=None), "<thanks"))


def test_begins_open_and_closes_once(tokenizer):
    thought = Thought(tokenizer, is_open=True, limit=None)
    assert thought.open
    assert states(thought, "ab<</think>c") == [True] * 10 + [False] * 2


def test_limit_counts_tokens_of_thought(tokenizer):
    thought = Thought(tokenizer, is_open=True, limit=3)
    assert thought.first_forced() == []
    assert [thought.push(token) for token in b"abc"] == [[], [], list(b"</think>")]
    assert [thought.push(token) for token in b"</think>"] == [[]] * 8
    assert not thought.open
    thought = Thought(tokenizer, is_open=False, limit=2)
    assert [thought.push(token) for token in b"<think>ab"] == [[]] * 8 + [list(b"</think>")]


def test_limit_of_nothing(tokenizer):
    assert Thought(tokenizer, is_open=True, limit=0).first_forced() == list(b"</think>")
    thought = Thought(tokenizer, is_open=False, limit=0)
    assert thought.first_forced() == []
    assert [thought.push(token) for token in b"<think>"][-1] == list(b"</think>")


def test_a_thought_that_ends_by_itself_is_not_cut(tokenizer):
    thought = Thought(tokenizer, is_open=True, limit=20)
    assert not any(thought.push(token) for token in b"a</think>" + b"x" * 40)
