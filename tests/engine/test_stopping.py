"""Which tokens end a sample, and which are held back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.sampling import SamplingOptions
from trivium.engine.stopping import Ending, StopRule

END = frozenset([9])


def test_end_tokens_come_before_stop_tokens():
    rule = StopRule(SamplingOptions(stop_token_ids=(9, 8)), END)
    assert rule.check([1, 9], 1) == Ending("stop", None, 1)
    assert rule.check([1, 8], 1) == Ending("stop", 8, 1)
    assert rule.check([1, 7], 1) is None


def test_ignored_end_tokens_may_still_be_stop_tokens():
    assert StopRule(SamplingOptions(ignore_eos=True), END).check([9], 1) is None
    assert StopRule(SamplingOptions(ignore_eos=True, stop_token_ids=(9,)), END).check([9], 1) == Ending("stop", 9, 1)


def test_text_of_what_ended_it():
    assert StopRule(SamplingOptions(skip_special_tokens=False), END).check([9], 1) == Ending("stop", None, 0)
    shown = StopRule(SamplingOptions(stop_token_ids=(8,), stop_token_sequences=((1, 2),), include_stop=True), END)
    assert shown.check([8], 1) == Ending("stop", 8, 0)
    assert shown.check([1, 2], 2) == Ending("stop", 2, 0)


def test_sequences_of_one_token_are_stop_tokens():
    rule = StopRule(SamplingOptions(stop_token_sequences=((5,), (1, 2))), END)
    assert (rule.stop_ids, rule.sequences, rule.single_ids) == ({5}, [[1, 2]], {5, 9})


def test_a_sequence_does_not_reach_into_the_prompt():
    rule = StopRule(SamplingOptions(stop_token_sequences=((1, 2),)), END)
    assert rule.check([1, 2], 1) is None
    assert rule.held([1, 1], 0) == 0
    assert rule.check([1, 2], 2) == Ending("stop", 2, 2)


def test_sequences_wait_for_min_tokens():
    rule = StopRule(SamplingOptions(stop_token_sequences=((1, 2),), min_tokens=3), END)
    assert rule.check([1, 2], 2) is None
    assert rule.check([0, 1, 2], 3) == Ending("stop", 2, 2)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=12),
)
def test_held_is_the_longest_tail_that_begins_a_sequence(sequences, tokens):
    rule = StopRule(SamplingOptions(stop_token_sequences=tuple(map(tuple, sequences))), END)
    tails = [k for k in range(1, len(tokens) + 1) if any(len(s) > k and s[:k] == tokens[-k:] for s in sequences)]
    assert rule.held(tokens, len(tokens)) == max(tails, default=0)
