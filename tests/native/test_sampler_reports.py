"""What the native sampler reports and refuses, and how its history is cut back and forced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sampler_reference import INF, Floats, Options, best_first, bits, floats, kept_tokens, peaked, processed, sampler

from trivium._native import Sampler

MODES = ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


# ---- truncate and force


def test_truncate_restores_exactly() -> None:
    o = Options(
        seed=5, repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.5, penalty_window=6, bad_words=((3, 1), (2,))
    )
    rng = np.random.default_rng(3)
    rows = rng.normal(0, 2, (40, 10)).astype(np.float32)
    s = sampler(10, o, prompt=[1, 2, 3, 4], logprobs=2, logprobs_mode="processed_logprobs")
    first = [s.sample(z) for z in rows]
    for start in (39, 17, 4, 0):
        s.truncate(start)
        assert s.num_output == start
        for (token, row), (again, same) in zip(first[start:], [s.sample(z) for z in rows[start:]], strict=True):
            assert token == again
            assert row is not None
            assert same is not None
            assert row[:2] == same[:2]
            assert np.array_equal(row[2], same[2])
            assert np.array_equal(row[3], same[3])


def test_force_wins_once_over_logits_and_mask() -> None:
    z = floats(5.0, 1.0, 0.0, -3.0)
    s = sampler(4, Options(temperature=0.0), logprobs=1)
    s.force(3)
    token, row = s.sample(z, bits(np.array([True, True, False, False])))
    assert token == 3
    assert row is not None
    assert row[1] == 4
    assert row[0] == pytest.approx(-3.0 - np.log(np.exp(z).sum()), abs=1e-5)
    assert list(row[2]) == [0]
    assert s.sample(z)[0] == 0
    assert s.num_output == 2


def test_force_over_an_empty_mask_reports_minus_infinity() -> None:
    s = sampler(3, Options(), logprobs=2, logprobs_mode="processed_logprobs")
    s.force(1)
    token, row = s.sample(floats(1.0, 2.0, 3.0), bits(np.zeros(3, bool)))
    assert token == 1
    assert row is not None
    assert row[:2] == (-INF, 2)
    assert list(row[3]) == [-INF, -INF]


def test_forced_tokens_count_for_penalties() -> None:
    s = sampler(3, Options(temperature=0.0, presence_penalty=2.0))
    s.force(2)
    assert [s.sample(floats(0.0, 1.0, 2.0))[0] for _ in range(2)] == [2, 1]


def test_truncate_drops_a_forced_token_with_what_it_followed() -> None:
    s = sampler(3, Options(temperature=0.0))
    z = floats(0.0, 1.0, 2.0)
    s.sample(z)
    s.force(0)
    s.truncate(1)
    assert s.sample(z)[0] == 0
    s.force(0)
    s.truncate(1)
    assert s.sample(z)[0] == 2


# ---- rows that give no token


@pytest.mark.parametrize(
    "o", [Options(), Options(temperature=0.0), Options(top_k=3, top_p=0.9), Options(repetition_penalty=1.2)]
)
@pytest.mark.parametrize("vocab_size", [5, 64, 131])
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_logits_that_are_not_finite(o: Options, vocab_size: int, bad: float) -> None:
    z = np.linspace(-1, 1, vocab_size).astype(np.float32)
    for position in (0, vocab_size // 2, vocab_size - 1):
        s = sampler(vocab_size, o, prompt=[1], logprobs=2)
        broken = z.copy()
        broken[position] = bad
        assert s.sample(broken) == (-1, None)
        assert s.sample(broken, bits(np.arange(vocab_size) != position)) == (-1, None)
        s.force(0)
        assert s.sample(broken) == (-1, None)
        assert s.num_output == 0
        assert s.sample(z)[0] == 0  # still forced


def test_nothing_allowed() -> None:
    z = floats(0.0, 1.0, 2.0)
    for temperature in (0.0, 1.0):
        s = sampler(3, Options(temperature=temperature, suppressed=(0, 1), min_tokens=1), logprobs=1)
        assert s.sample(z, bits(np.array([True, True, False]))) == (-1, None)
        assert s.sample(floats(-INF, -INF, -INF)) == (-1, None)
        assert s.num_output == 0
        assert s.sample(z)[0] == 2


# ---- reported values


def expected_values(mode: str, raw: Floats, o: Options, z: Floats) -> Floats:
    if mode.startswith("processed"):
        values = z if o.greedy else np.where(kept_tokens(z, o)[0], z / o.temperature, -INF)
    else:
        values = raw.astype(np.float64)
    return values - np.log(np.exp(values - values.max()).sum()) - values.max() if mode.endswith("logprobs") else values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alternatives", [0, 1, 5, 300, 10**6, -1])
@pytest.mark.parametrize(
    "o",
    [
        Options(),
        Options(temperature=0.0),
        Options(temperature=0.0, repetition_penalty=1.5),
        Options(temperature=1.7, top_k=40, presence_penalty=1.0),
        Options(temperature=0.8, top_p=0.9, min_p=0.01, bias=((5, 2.0), (6, -INF))),
    ],
)
def test_reported_values(mode: str, alternatives: int, o: Options) -> None:
    vocab_size = 2600
    raw = peaked(vocab_size, 21)
    prompt = list(range(50))
    s = sampler(vocab_size, o, prompt, logprobs=alternatives, logprobs_mode=mode)
    output: list[int] = []
    for _ in range(4):
        values = expected_values(mode, raw, o, processed(raw, o, prompt, output))
        token, row = s.sample(raw)
        assert row is not None
        value, rank, ids, tops = row
        order = best_first(values)[: vocab_size if alternatives < 0 else min(alternatives, vocab_size)]
        assert ids.dtype == np.int32
        assert tops.dtype == np.float32
        assert list(ids) == list(order)
        assert np.allclose(tops, values[order], atol=2e-5, rtol=1e-6)
        assert value == pytest.approx(values[token], abs=2e-5, rel=1e-6)
        assert rank == 1 + list(best_first(values)).index(token)
        output.append(token)


def test_reported_ranks_break_ties_by_id() -> None:
    z = floats(1.0, 2.0, 1.0, 2.0, 1.0)
    for token, rank in enumerate([3, 1, 4, 2, 5]):
        s = sampler(5, logprobs=3)
        s.force(token)
        row = s.sample(z)[1]
        assert row is not None
        assert row[1] == rank
        assert list(row[2]) == [1, 3, 0]


def test_no_report_unless_asked() -> None:
    assert sampler(4).sample(np.zeros(4, np.float32))[1] is None


def test_report_without_alternatives_has_the_token_alone() -> None:
    _, row = sampler(2, Options(temperature=0.0), logprobs=0).sample(floats(0.0, 0.0))
    assert row is not None
    assert row[0] == pytest.approx(math.log(0.5), abs=1e-6)
    assert row[1] == 1
    assert len(row[2]) == len(row[3]) == 0


# ---- validation


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, math.nan)
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        ),
        ("temperature", -0.1),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("top_k", -2),
        ("penalty_window", -1),
        ("min_tokens", -1),
        ("logprobs", -3),
        ("logprobs_mode", "cooked"),
        ("vocab_size", 0),
        ("prompt", np.array([0, 8], np.int32)),
        ("prompt", np.array([-1], np.int32)),
        ("suppressed", np.array([8], np.int32)),
        ("bad_words", [[1], [2, 8]]),
        ("bad_words", [[]]),
        ("bias_values", floats(1.0)),
    ],
)
def test_wrong_parameters_are_named(field: str, value: Any) -> None:
    good: dict[str, Any] = {"vocab_size": 8, "prompt": np.array([], np.int32), "seed": 0}
    with pytest.raises(ValueError, match=field):
        Sampler(**(good | {field: value}))


@pytest.mark.parametrize(
    ("token", "value", "field"), [(8, 1.0, "bias_ids"), (0, math.nan, "bias_values"), (0, INF, "bias_values")]
)
def test_wrong_bias(token: int, value: float, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        sampler(8, Options(bias=((token, value),)))


def test_wrong_calls() -> None:
    s = sampler(40)
    z = np.zeros(40, np.float32)
    with pytest.raises(ValueError, match="logits must have 40"):
        s.sample(z[:39].copy())
    with pytest.raises(ValueError, match="mask must have 2 words, got 1"):
        s.sample(z, np.zeros(1, np.uint32))
    with pytest.raises(TypeError):
        s.sample(z.astype(np.float64))
    for call in (s.push, s.force):
        for token in (-1, 40):
            with pytest.raises(ValueError, match="token must be token ids from 0 to 39"):
                call(token)
    with pytest.raises(ValueError, match="num_output must be at most 0, got 1"):
        s.truncate(1)
    assert s.num_output == 0
