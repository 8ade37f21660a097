"""How much of a prompt goes beside decoding sequences."""

from __future__ import annotations

import pytest
from engine_parts import Door, make_engine, request
from fake_native import continuation
from scheduling import sequence

from trivium.engine.pace import Pace
from trivium.engine.scheduler import Chunk, StepPlan

NO_LIMIT = 10_000


def plan(num_decoding: int, prompt_rows: int = 0, drafts: int = 0, depth: int = 0) -> StepPlan:
    chunks = [Chunk(sequence(9), 8, 1 + drafts, True, (5,) * drafts) for _ in range(num_decoding)]
    return StepPlan(chunks + [Chunk(sequence(1000), depth, prompt_rows, False)] * bool(prompt_rows))


def test_what_is_not_known_is_learned_first():
    pace = Pace()
    assert pace.prefill_limit(8, 0) > NO_LIMIT
    pace.record(plan(0, 500), 0.5)
    assert pace.prefill_limit(8, 0) == 0  # a step that only decodes will tell how long that takes
    pace.record(plan(8), 0.05)
    assert 0 < pace.prefill_limit(8, 0) < 500
    assert pace.prefill_limit(2, 0) == 0  # nothing is known of so few
    assert pace.prefill_limit(0, 0) > NO_LIMIT


def test_what_decoding_takes_is_learned_although_prompts_never_end():
    pace, decoding, row = Pace(), 0.030, 0.0003  # seconds; streams have grown long since the steps of 6 ms
    pace.record(plan(8), 0.006)
    pace.record(plan(0, 100), 100 * row)
    lengths = []
    for _ in range(2000):
        rows = pace.prefill_limit(8, 0)
        pace.record(plan(8, rows), 0.7 * decoding + rows * row if rows else decoding)
        lengths.append(rows)
    assert lengths[-1] * row == pytest.approx((4.5 - 0.7) * decoding, rel=0.1)
    assert lengths.count(0) <= 2000 / 32


def test_a_server_whose_prompts_never_end_keeps_its_streams_smooth_from_the_start():
    pace = Pace()
    pace.record(plan(0, 512), 0.150)
    rows = []
    for _ in range(20):
        rows.append(pace.prefill_limit(8, 0))
        pace.record(plan(8, rows[-1]), 0.0035 + rows[-1] * 0.0003 if rows[-1] else 0.005)
    assert rows[0] == 0
    assert all(0 < count < 80 for count in rows[1:])


def test_a_step_with_prompts_takes_a_few_times_as_long_as_one_without():
    pace = Pace()
    pace.record(plan(8), 0.05)
    pace.record(plan(0, 512), 0.512)
    rows = pace.prefill_limit(8, 0)
    assert 0.15 <= rows * 0.001 <= 0.25
    assert pace.prefill_limit(5, 0) == rows  # about as many as eight


def test_the_limit_follows_the_times():
    pace = Pace()
    pace.record(plan(4), 0.1)
    pace.record(plan(0, 100), 0.1)
    limits = []
    for _ in range(30):
        pace.record(plan(4, 96), 0.2)  # rows take twice as long from now on
        limits.append(pace.prefill_limit(4, 0))
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] * (0.2 - 0.07) / 96 < 0.4 < limits[0] * (0.2 - 0.07) / 96


def test_a_hiccup_of_the_machine_hardly_counts():
    pace = Pace()
    for _ in range(9):
        pace.record(plan(8), 0.005)
        pace.record(plan(8, 40), 0.020)
    usual = pace.prefill_limit(8, 0)
    pace.record(plan(8, 40), 0.150)
    assert 0.85 * usual < pace.prefill_limit(8, 0) < usual
    pace.record(plan(8), 0.150)
    assert pace.prefill_limit(8, 0) < 1.1 * usual


def test_rows_cost_more_the_further_a_prompt_is():
    pace = Pace()
    pace.record(plan(8), 0.005)

    def cost(depth: float) -> float:
        return 0.0003 + 0.0003 * depth / 4000

    for _ in range(3):
        for depth in range(0, 4000, 40):
            pace.record(plan(8, 40, depth=depth), 0.0035 + 40 * cost(depth + 20))
    pace.record(plan(8), 0.005)
    room = (pace.prefill_limit(8, 0) + 0.5) * cost(0)
    for depth in (0, 1000, 2000, 3900):  # also at the beginning of the next prompt, although the last was long
        assert pace.prefill_limit(8, depth) * cost(depth) == pytest.approx(room, rel=0.1)


def test_short_prompts_tell_nothing_and_a_slow_machine_leaves_some():
    pace = Pace()
    pace.record(plan(2), 0.01)
    pace.record(plan(2, 4), 0.02)  # mostly the decoding
    assert pace.prefill_limit(2, 0) > NO_LIMIT
    pace.record(plan(2, 64), 60.0)
    assert 16 <= pace.prefill_limit(2, 0) <= 64


def test_drafts_belong_to_decoding():
    pace = Pace()
    pace.record(plan(1, drafts=40), 0.01)
    pace.record(plan(0, 40), 0.04)
    assert pace.prefill_limit(1, 0) < NO_LIMIT


def test_answers_do_not_depend_on_it(monkeypatch):
    limits = iter([3, 1, 7, 2] * 1000)
    monkeypatch.setattr(Pace, "prefill_limit", lambda self, num_decoding, depth: next(limits) if num_decoding else NO_LIMIT)
    prompt = "a longer prompt " * 10
    with make_engine(enable_prefix_caching=False) as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("first", max_tokens=60)], door)
        engine.submit([request("long", prompt)], door)
        engine.native.gate.set()
        first, long = door.wait("first", "long")
        assert first.token_ids == continuation(list(b"hello"), 60)
        assert long.token_ids == continuation(list(prompt.encode()), 8)
        both = [call["lengths"] for call in engine.native.calls if len(call["lengths"]) == 2]
        assert max(max(lengths) for lengths in both[1:]) == 7
