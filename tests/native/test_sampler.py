"""Which token the native sampler chooses, against a plain float64 description of its pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampler_reference import (
    INF,
    Floats,
    Options,
    best_first,
    bits,
    drawn,
    floats,
    kept_tokens,
    peaked,
    philox4x32,
    processed,
    sampler,
    uniform,
)

# ---- greedy


def test_greedy_takes_the_best_and_the_lowest_id_on_ties() -> None:
    z = floats(0.0, 3.0, 1.0, 3.0, -INF)
    for o in (Options(temperature=0.0), Options(temperature=9e-6), Options(top_p=0.0), Options(top_k=1)):
        s = sampler(5, o)
        assert s.sample(z) == (1, None)
        assert s.num_output == 1


def test_greedy_ignores_the_seed() -> None:
    z = peaked(1000, 1)
    assert {sampler(1000, Options(seed=s, temperature=0)).sample(z)[0] for s in range(20)} == {int(z.argmax())}


def test_logits_are_left_alone() -> None:
    z = peaked(100, 2)
    before = z.copy()
    sampler(100, Options(repetition_penalty=2.0, bias=((3, 1.0),)), prompt=[1, 2]).sample(z, bits(np.arange(100) > 50))
    assert np.array_equal(z, before)


# ---- the pipeline before the draw


@pytest.mark.parametrize(
    ("options", "best"),
    [
        (Options(), 4),
        (Options(bias=((2, 2.5),)), 2),
        (Options(bias=((4, -INF),)), 3),
        (Options(min_tokens=3, suppressed=(4, 3)), 2),
        (Options(min_tokens=2, suppressed=(4, 3)), 4),  # two tokens are there already
        (Options(repetition_penalty=1.5), 3),  # 4.0 / 1.5 is below 3.0
        (Options(repetition_penalty=0.5, bias=((0, -5.0),)), 4),
        (Options(frequency_penalty=0.6), 3),  # token 4 came out twice
        (Options(frequency_penalty=0.4), 4),
        (Options(presence_penalty=1.1), 3),
        (Options(presence_penalty=0.9), 4),
        (Options(presence_penalty=-9.0), 4),
        (Options(bad_words=((4,),)), 3),
        (Options(bad_words=((4, 4),)), 3),
        (Options(bad_words=((4, 4, 4),)), 3),
        (Options(bad_words=((3, 4, 4),)), 4),
        (Options(bad_words=((1, 4, 4, 4),)), 4),  # the prompt does not count
        (Options(bad_words=((4,), (3,), (4, 4, 2))), 1),
    ],
)
def test_each_modifier(options: Options, best: int) -> None:
    s = sampler(5, replace(options, temperature=0.0), prompt=[1])
    s.push(4)
    s.push(4)
    assert s.sample(floats(0.0, 1.0, 2.0, 3.0, 4.0))[0] == best


def test_repetition_penalty_multiplies_negative_logits_and_counts_the_prompt() -> None:
    s = sampler(3, Options(temperature=0.0, repetition_penalty=2.0), prompt=[0, 0])
    assert s.sample(floats(-1.0, -1.5, -9.0))[0] == 1


def test_mask_allows_only_what_it_names() -> None:
    z = peaked(101, 3)
    order = best_first(z)
    allowed = np.ones(101, bool)
    allowed[order[:7]] = False
    assert sampler(101, Options(temperature=0.0)).sample(z, bits(allowed))[0] == order[7]
    only = np.arange(101) == order[-1]
    for o in (Options(), Options(top_k=5), Options(top_p=0.5), Options(min_p=0.1), Options(temperature=0.0)):
        assert sampler(101, o).sample(z, bits(only))[0] == order[-1]


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40),
    prompt=st.lists(st.integers(0, 9), max_size=12),
    window=st.integers(0, 15),
)
def test_penalties_follow_the_history_through_push_and_truncate(
    history: list[tuple[bool, int]], prompt: list[int], window: int
) -> None:
    o = Options(penalty_window=window, repetition_penalty=1.25, frequency_penalty=0.5, presence_penalty=0.75)
    z = floats(*np.linspace(-3, 6, 10))
    s = sampler(10, replace(o, temperature=0.0), prompt, logprobs=-1, logprobs_mode="processed_logits")
    output: list[int] = []
    for shorten, value in history:
        if shorten:
            output = output[: max(0, len(output) - value)]
            s.truncate(len(output))
        else:
            output.append(value)
            s.push(value)
    token, row = s.sample(z)
    assert row is not None
    expected = processed(z, o, prompt, output)
    assert np.allclose(row[3][np.argsort(row[2])], expected, atol=1e-5)
    assert token == row[2][0]
    assert s.num_output == len(output) + 1


# ---- truncation and draw

options = st.builds(
    Options,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([1.0, 0.3, 0.7, 2.5]),
    top_k=st.sampled_from([-1, 0, 2, 7, 40, 300, 10**12]),
    top_p=st.sampled_from([1.0, 0.1, 0.5, 0.9, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    penalty_window=st.sampled_from([0, 1, 3, 8]),
    min_tokens=st.integers(0, 6),
    suppressed=st.lists(st.integers(0, 29), max_size=3).map(tuple),
    bad_words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    bias=st.dictionaries(st.integers(0, 29), st.sampled_from([-INF, -2.0, 0.5, 3.0]), max_size=4).map(
        lambda d: tuple(d.items())
    ),
)


def cut_and_drawn(logits: NDArray[np.float32], o: Options, **more: Any) -> tuple[NDArray[np.bool_], int]:
    """What the sampler keeps, seen through its report, and what it draws."""
    token, row = sampler(len(logits), o, logprobs=-1, logprobs_mode="processed_logits", **more).sample(logits)
    assert row is not None
    kept = np.zeros(len(logits), bool)
    kept[row[2][row[3] > -INF]] = True
    return kept, token


@settings(max_examples=250, deadline=None)
@given(
    o=options,
    vocab_size=st.sampled_from([30, 32, 100, 2600]),
    gap=st.sampled_from([0.002, 0.03, 0.1]),
    arrangement=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, 5), max_size=6),
    output=st.lists(st.integers(0, 5), max_size=6),
    masked=st.booleans(),
)
def test_kept_tokens_and_draw_agree_with_the_reference(
    o: Options, vocab_size: int, gap: float, arrangement: int, prompt: list[int], output: list[int], masked: bool
) -> None:
    rng = np.random.default_rng(arrangement)
    logits = ((rng.permutation(vocab_size) - vocab_size / 2) * gap).astype(np.float32)
    allowed = rng.random(vocab_size) < 0.7 if masked else None
    z = processed(logits, o, prompt, output, allowed)
    assume(z.max() > -INF)
    kept, safe = kept_tokens(z, o)
    token, clear = drawn(z, kept, o.temperature, uniform(o.seed, len(output)))
    assume(safe and clear)
    s = sampler(vocab_size, o, prompt, logprobs=-1, logprobs_mode="processed_logits")
    for t in output:
        s.push(t)
    got, row = s.sample(logits, None if allowed is None else bits(allowed))
    assert row is not None
    assert set(row[2][row[3] > -INF]) == set(np.flatnonzero(kept))
    assert got == token


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.95},
        {"top_p": 0.97},
        {"top_p": 0.3, "temperature": 2.0},
        {"top_k": 50},
        {"top_k": 1000},
        {"top_k": 9000},
        {"min_p": 0.02},
        {"min_p": 1e-4, "top_p": 0.9},
        {"top_k": 1000, "top_p": 0.8, "min_p": 1e-3, "temperature": 1.3},
    ],
)
def test_whole_vocabulary(changes: dict[str, Any]) -> None:
    z = peaked(49152, 11)
    for seed in range(6):
        o = Options(seed=seed, **changes)
        expected, safe = kept_tokens(z.astype(np.float64), o)
        token, clear = drawn(z.astype(np.float64), expected, o.temperature, uniform(seed, 0))
        assert safe  # the logits above are chosen so
        assert clear
        kept, got = cut_and_drawn(z, o)
        assert np.array_equal(kept, expected)
        assert got == token


def test_flat_vocabulary_keeps_the_lowest_ids() -> None:
    z = np.full(49152, -2.5, np.float32)
    assert np.array_equal(np.flatnonzero(cut_and_drawn(z, Options(top_k=700))[0]), np.arange(700))
    assert np.array_equal(np.flatnonzero(cut_and_drawn(z, Options(top_k=30000))[0]), np.arange(30000))
    assert np.array_equal(np.flatnonzero(cut_and_drawn(z, Options(top_p=0.50001))[0]), np.arange(24577))
    assert cut_and_drawn(z, Options(min_p=1.0))[0].all()


@pytest.mark.parametrize("top_k", range(2, 41))
def test_top_k_breaks_ties_by_id(top_k: int) -> None:
    z = np.random.default_rng(5).integers(0, 4, 40).astype(np.float32)
    expected = np.zeros(40, bool)
    expected[best_first(z)[:top_k]] = True
    assert np.array_equal(cut_and_drawn(z, Options(top_k=top_k))[0], expected)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), top_p=st.floats(0.01, 0.99), top_k=st.sampled_from([0, 9, 25]))
def test_top_p_breaks_ties_by_id(seed: int, top_p: float, top_k: int) -> None:
    z = np.random.default_rng(seed).integers(0, 4, 40).astype(np.float32)
    o = Options(top_p=top_p, top_k=top_k)
    expected, safe = kept_tokens(z, o)
    assume(safe)
    assert np.array_equal(cut_and_drawn(z, o)[0], expected)


def test_top_p_counts_within_what_top_k_left() -> None:
    z = np.log(floats(0.4, 0.3, 0.2, 0.1))
    # Of the two best, the first has 4/7 of the mass.
    assert list(np.flatnonzero(cut_and_drawn(z, Options(top_k=2, top_p=0.55))[0])) == [0]
    assert list(np.flatnonzero(cut_and_drawn(z, Options(top_k=2, top_p=0.60))[0])) == [0, 1]
    # min_p leaves three of the four: 4/9 and 3/9 of the mass are 0.78 of it.
    assert list(np.flatnonzero(cut_and_drawn(z, Options(min_p=0.4, top_p=0.76))[0])) == [0, 1]


def test_extreme_temperatures() -> None:
    z = floats(1.0, 1.001, -INF, 0.0)
    assert {sampler(4, Options(seed=s, temperature=2e-5)).sample(z)[0] for s in range(50)} == {1}
    hot = [sampler(4, Options(seed=s, temperature=1e300)).sample(z)[0] for s in range(600)]
    assert set(hot) == {0, 1, 3}
    assert all(150 < hot.count(t) < 250 for t in (0, 1, 3))


def test_absurd_penalties_stay_finite() -> None:
    z = floats(1.0, -2.0, 3.0, 0.0)
    for o in (
        Options(repetition_penalty=1e-300),
        Options(repetition_penalty=1e300),
        Options(presence_penalty=1e300, frequency_penalty=1e300),
        Options(presence_penalty=-1e300),
        Options(bias=((0, 3e38), (1, -3e38))),
    ):
        s = sampler(4, o, prompt=[0, 1, 2])
        s.push(2)
        assert s.sample(z)[0] >= 0


# ---- random numbers


def test_reference_generator_has_the_published_answers() -> None:
    # Random123's known answers for philox4x32-10.
    assert philox4x32([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox4x32([2**32 - 1] * 4, [2**32 - 1] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    assert philox4x32(pi[:4], pi[4:]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1])
def test_the_uniform_number_is_that_of_seed_and_position(seed: int) -> None:
    # Over equal logits the drawn token is the number's leading 16 bits.
    z = np.zeros(65536, np.float32)
    s = sampler(65536, Options(seed=seed))
    assert [s.sample(z)[0] for _ in range(20)] == [int(uniform(seed, p) * 65536) for p in range(20)]


def test_history_does_not_change_the_random_numbers() -> None:
    z = np.zeros(4096, np.float32)
    a = sampler(4096, Options(seed=77))
    b = sampler(4096, Options(seed=77, top_k=4096, bad_words=((1, 2, 3),)), prompt=[5, 6, 7])
    for position in range(40):
        if position % 3 == 0:
            a.push(position)
            b.push(9)
        elif position % 7 == 0:
            b.force(4)
            a.push(b.sample(z)[0])
        else:
            assert a.sample(z) == b.sample(z)


def chi_square(tokens: Sequence[int], probabilities: Floats) -> float:
    counts = np.bincount(tokens, minlength=len(probabilities))
    inside = probabilities > 0
    assert counts[~inside].sum() == 0
    expected = probabilities[inside] * len(tokens)
    return float((((counts[inside] - expected) ** 2) / expected).sum())


@pytest.mark.parametrize(
    "o",
    [
        Options(),
        Options(temperature=0.6),
        Options(temperature=3.0),
        Options(top_k=6),
        Options(top_p=0.93),
        Options(min_p=0.08),
        Options(temperature=1.5, top_k=9, top_p=0.9, min_p=0.02),
    ],
)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_have_the_right_distribution(o: Options, along: str) -> None:
    z = np.random.default_rng(8).normal(0, 1.2, 12).astype(np.float32)
    kept, safe = kept_tokens(z.astype(np.float64), o)
    assert safe
    p = np.where(kept, np.exp(z.astype(np.float64) / o.temperature), 0.0)
    if along == "positions":
        s = sampler(12, replace(o, seed=4321))
        tokens = [s.sample(z)[0] for _ in range(10000)]
    else:
        tokens = [sampler(12, replace(o, seed=seed)).sample(z)[0] for seed in range(10000)]
    # At most 11 degrees of freedom, whose quantile at 1 - 1e-4 is 37.4.
    assert chi_square(tokens, p / p.sum()) < 37.4
