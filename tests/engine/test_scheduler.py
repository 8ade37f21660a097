from __future__ import annotations

from typing import Any

import pytest
from scheduling import add, complete, drain, rows, scheduler, sequence, step

from trivium.engine.scheduler import Chunk
from trivium.engine.sequence import Sequence, SequenceStatus
from trivium.errors import ConfigError


@pytest.mark.parametrize(
    "options",
    [{"seqs": 0}, {"budget": 0}, {"ageing": 0.0}, {"ageing": float("nan")}, {"ageing": float("inf")}, {"max_preemptions": -1}],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        scheduler(**options)


def test_nothing_to_do_is_an_empty_plan() -> None:
    plan = scheduler().schedule(0.0)
    assert (plan.chunks, plan.copies, plan.preempted, plan.num_tokens) == ([], [], [], 0)


def test_prompt_then_decodes() -> None:
    target, item = scheduler(), sequence(10)
    add(target, item)
    assert (target.num_waiting, target.num_running, target.waiting) == (1, 0, [item])
    assert rows(step(target, now=3.0)) == [(item, 0, 10, True)]
    assert (target.num_waiting, target.num_running, target.running) == (0, 1, [item])
    assert item.times.scheduled == 3.0
    assert rows(step(target)) == [(item, 10, 1, True)]
    assert rows(step(target)) == [(item, 11, 1, True)]
    assert len(item.blocks) == 3
    drain(target)


def test_long_prompt_is_cut_and_samples_only_at_its_end() -> None:
    target, item = scheduler(budget=16), sequence(40)
    add(target, item)
    assert [rows(step(target))[0][1:] for _ in range(4)] == [(0, 16, False), (16, 16, False), (32, 8, True), (40, 1, True)]


def test_decodes_come_first_then_running_prompts_then_new_ones() -> None:
    target = scheduler(budget=64)
    decoding, long, new = sequence(5), sequence(150), sequence(8)
    add(target, decoding)
    step(target)
    add(target, long)
    assert rows(step(target)) == [(decoding, 5, 1, True), (long, 0, 63, False)]
    add(target, new)
    assert rows(step(target)) == [(decoding, 6, 1, True), (long, 63, 55, False), (new, 0, 8, True)]


def test_prompts_come_in_small_pieces_only_while_a_stream_decodes() -> None:
    target = scheduler(200, budget=64, prefill_limit=lambda num_decoding, depth: 10 * num_decoding + depth // 120)
    batch, stream, long = sequence(5, streamed=False, max_tokens=9), sequence(5), sequence(500)
    add(target, batch)
    step(target)
    add(target, long)
    assert rows(step(target)) == [(batch, 5, 1, True), (long, 0, 63, False)]
    add(target, stream)
    assert rows(step(target)) == [(batch, 6, 1, True), (long, 63, 58, False), (stream, 0, 5, True)]
    assert rows(step(target)) == [(batch, 7, 1, True), (stream, 5, 1, True), (long, 121, 21, False)]
    target.finish(stream)
    assert rows(step(target)) == [(batch, 8, 1, True), (long, 142, 63, False)]


def test_several_prompts_progress_together_the_first_fastest() -> None:
    target = scheduler(256, budget=128)
    items = [sequence(200) for _ in range(3)]
    add(target, *items)
    plan = step(target)
    assert [chunk.length for chunk in plan.chunks] == [86, 21, 21]
    assert plan.num_tokens == 128
    drain(target)


def test_every_decode_gets_its_row_even_if_seats_exceed_the_budget() -> None:
    target = scheduler(seqs=50, budget=6)
    items = [sequence(1) for _ in range(10)]
    add(target, *items)
    for _ in range(3):
        plan = step(target)
        assert [chunk.sequence for chunk in plan.chunks] == items[:6]
    assert target.num_running == 6


def test_seats_are_limited_and_refilled_in_order() -> None:
    target = scheduler(seqs=2)
    items = [sequence(3) for _ in range(4)]
    add(target, *items)
    step(target)
    assert target.running == items[:2]
    target.finish(items[0])
    step(target)
    assert target.running == items[1:3]
    assert target.waiting == items[3:]


def test_priority_goes_before_arrival() -> None:
    target = scheduler(seqs=1)
    low, first, second = sequence(3, priority=5), sequence(3), sequence(3)
    add(target, low, second, first)
    order = []
    for _ in range(3):
        order += step(target).chunks
        target.finish(target.running[0])
    assert [chunk.sequence for chunk in order] == [first, second, low]


@pytest.mark.parametrize(("waited", "first"), [(19.0, "urgent"), (21.0, "old")])
def test_waiting_ages_into_a_better_place(waited: float, first: str) -> None:
    target = scheduler(seqs=1, ageing=10.0)
    old, urgent = sequence(3, priority=2), sequence(3, priority=0)
    add(target, old, now=0.0)
    add(target, urgent, now=waited)
    assert step(target, now=waited).chunks[0].sequence is (urgent if first == "urgent" else old)


def test_nothing_starves_under_a_stream_of_urgent_requests() -> None:
    target = scheduler(seqs=1, ageing=10.0)
    patient = sequence(6, priority=3)
    add(target, patient)
    for now in range(200):
        add(target, sequence(6), now=float(now))
        ran = step(target, float(now)).chunks[0].sequence
        if ran is patient and ran.num_output_tokens == 4:
            break
        if ran is not patient:
            target.finish(ran)
    assert patient.num_output_tokens == 4
    assert 30 <= now < 60
    assert patient.preemptions <= 3


def test_huge_priorities_are_ordered_not_fatal() -> None:
    target = scheduler(seqs=1)
    items = [sequence(3, priority=p) for p in (10**400, 7, -(10**400))]
    add(target, *items)
    assert target.waiting == items[::-1]


def test_urgent_request_takes_a_seat_from_a_less_urgent_one() -> None:
    target = scheduler(seqs=2)
    kept, lost, urgent = sequence(9, priority=1), sequence(9, priority=1), sequence(5, priority=0)
    add(target, kept, lost)
    step(target)
    add(target, urgent, now=1.0)
    plan = step(target, now=1.0)
    assert plan.preempted == [lost]
    assert rows(plan) == [(kept, 9, 1, True), (urgent, 0, 5, True)]
    assert (lost.status, lost.blocks, lost.num_computed, lost.preemptions) == (SequenceStatus.WAITING, [], 0, 1)
    assert lost.num_output_tokens == 1
    assert target.num_preemptions == lost.times.preemptions == 1
    target.finish(urgent)
    assert rows(step(target))[-1] == (lost, 8, 2, True)  # its full blocks were still cached
    assert lost.num_cached_tokens == 0  # counted when it first ran
    drain(target)


def test_urgent_request_takes_a_seat_when_decodes_fill_the_budget() -> None:
    target = scheduler(seqs=50, budget=3)
    items = [sequence(1, priority=1) for _ in range(3)]
    add(target, *items)
    step(target)
    add(target, urgent := sequence(1))
    plan = step(target)
    assert plan.preempted == items[2:]
    assert [chunk.sequence for chunk in plan.chunks] == [urgent, *items[:2]]


def test_equal_priority_never_preempts_for_a_seat() -> None:
    target = scheduler(seqs=1, ageing=1.0)
    running, other = sequence(5, priority=1), sequence(5, priority=1)
    add(target, running)
    step(target)
    add(target, other)
    for now in range(100):
        assert step(target, float(now)).preempted == []


def test_preemption_by_priority_is_bounded() -> None:
    target = scheduler(seqs=1, max_preemptions=2)
    victim = sequence(5, priority=1)
    add(target, victim)
    for _ in range(4):
        step(target)
        urgent = sequence(5)
        add(target, urgent)
        step(target)
        if urgent.status is SequenceStatus.RUNNING:
            target.finish(urgent)
    assert victim.preemptions == 2
    assert target.running == [victim]


def test_urgent_request_takes_blocks_only_if_they_suffice() -> None:
    target = scheduler(8, caching=False)
    peer, small = sequence(16, priority=0), sequence(6, priority=1)
    add(target, peer, small)
    step(target)
    too_big, fitting = sequence(20, priority=-1), sequence(13, priority=-1)
    add(target, too_big)
    plan = step(target)
    assert plan.preempted == [small, peer]
    assert target.running == [too_big]
    target.finish(too_big)
    step(target)
    assert target.running == [peer, small]
    target.finish(peer)
    add(target, held := sequence(17, priority=-1))
    step(target)
    add(target, sequence(29, priority=0))
    assert step(target).preempted == []
    add(target, fitting)
    assert held in target.running


def test_growth_preempts_the_latest_of_the_lowest_priority() -> None:
    target = scheduler(6, caching=False)
    early, late, urgent = sequence(6, priority=1), sequence(6, priority=1), sequence(6)
    for item in (early, late, urgent):
        add(target, item)
        step(target)
    assert target.running == [urgent, early, late]
    preempted = [item for _ in range(8) for item in step(target).preempted]
    assert preempted == [late, early]
    assert target.running == [urgent]
    drain(target)


def test_least_urgent_sequence_that_needs_a_block_gives_up_its_own() -> None:
    target = scheduler(4, caching=False)
    first, second = sequence(6), sequence(7)
    add(target, first, second)
    step(target)
    assert target.num_running == 1  # a block is kept free for the one that runs
    target.finish(second)
    step(target)
    late = sequence(3)
    add(target, late)
    step(target)
    assert target.running == [first, late]
    for _ in range(20):
        plan = step(target)
        assert plan.chunks[0].sequence is first
        if plan.preempted:
            break
    assert plan.preempted == [late]
    assert first.preemptions == 0


def test_a_big_prompt_is_not_overtaken_by_small_ones() -> None:
    target = scheduler(8, caching=False)
    running, big, small = sequence(12), sequence(20), sequence(2)
    add(target, running, big, small)
    step(target)
    assert target.running == [running]
    target.finish(running)
    step(target)
    assert target.running == [big, small]


def test_what_can_never_fit_is_an_error() -> None:
    target = scheduler(4)
    with pytest.raises(RuntimeError, match="1 to 16 tokens"):
        target.add(sequence(17), 0.0)
    item = sequence(15)
    add(target, item)
    step(target)
    step(target)
    with pytest.raises(RuntimeError, match="17 tokens exceed the 4 KV blocks"):
        step(target)


def test_finish_is_idempotent_in_every_state() -> None:
    target = scheduler(seqs=1)
    running, waiting, unknown = sequence(9), sequence(9), sequence(9)
    add(target, running, waiting)
    plan = target.schedule(0.0)
    for item in (running, waiting, unknown) * 2:
        target.finish(item)
        assert item.status is SequenceStatus.FINISHED
    target.complete(plan)  # the step was under way: nothing of it counts
    assert (running.num_computed, target.num_running, target.num_waiting) == (0, 0, 0)
    target.check_integrity()
    assert target.blocks.num_free == target.blocks.num_blocks
    assert target.blocks.num_cached == 0


def test_expired_names_what_is_late_until_it_is_finished() -> None:
    target = scheduler(seqs=1)
    late, later, never = sequence(3, deadline=5.0), sequence(3, deadline=6.0), sequence(3)
    add(target, later, late, never)
    step(target)
    assert target.expired(4.9) == []
    assert target.expired(5.0) == [late]
    assert target.expired(7.0) == [late, later]
    target.finish(late)
    assert target.expired(7.0) == [later]


def test_deadlines_of_finished_sequences_do_not_pile_up() -> None:
    target = scheduler()
    last = sequence(1, deadline=1e9)
    add(target, last)
    for _ in range(500):
        item = sequence(1, deadline=1e9)
        add(target, item)
        target.finish(item)
    assert len(target._deadlines) < 100
    target.finish(last)
    assert not target._deadlines  # an idle engine holds no requests


def test_accepted_drafts_advance_and_refused_ones_are_cut_back() -> None:
    asked: list[int] = []

    def propose(item: Sequence, limit: int, num_decoding: int) -> list[int]:
        asked.append(limit)
        return [50, 51, 52, 53, 54, 55][:limit]

    target, item = scheduler(budget=64, propose=propose), sequence(6)
    add(target, item)
    step(target)
    plan = target.schedule(0.0)
    assert plan.chunks == [Chunk(item, 6, 7, True, (50, 51, 52, 53, 54, 55))]
    assert plan.num_tokens == 7
    assert len(item.blocks) == 4
    item.tokens += [50, 51, 99]
    plan.chunks[0].accepted = 3
    target.complete(plan)
    target.check_integrity()
    assert (item.num_computed, len(item.tokens), len(item.blocks)) == (9, 10, 3)
    assert target.blocks.num_cached == 2
    assert asked == [31]


@pytest.mark.parametrize(
    ("max_tokens", "budget", "blocks", "drafted"), [(4, 64, 9, 2), (99, 8, 9, 3), (99, 64, 2, 1), (2, 64, 9, 0)]
)
def test_drafts_respect_every_limit(max_tokens: int, budget: int, blocks: int, drafted: int) -> None:
    def propose(item: Sequence, limit: int, num_decoding: int) -> list[int]:
        return [1] * (1 if blocks == 2 else 50)

    target, item = scheduler(blocks, budget=budget, propose=propose), sequence(6, max_tokens=max_tokens)
    add(target, item)
    step(target)
    assert len(target.schedule(0.0).chunks[0].drafts) == drafted


def test_drafts_are_dropped_rather_than_preempting() -> None:
    target, items = scheduler(4, propose=lambda item, limit, num_decoding: [1] * 3), [sequence(2), sequence(3)]
    add(target, *items)
    step(target)
    add(target, sequence(3))
    for _ in range(4):
        plan = target.schedule(0.0)
        assert plan.preempted == []
        for chunk in plan.chunks:
            chunk.accepted = chunk.length - len(chunk.drafts)
        complete(target, plan)


def test_drafts_leave_the_blocks_that_rows_of_others_need() -> None:
    target, items = scheduler(5, propose=lambda item, limit, num_decoding: [1] * 3), [sequence(6), sequence(7)]
    add(target, *items)
    step(target)  # blocks of 4: both have two, and what they say next still fits
    plan = target.schedule(0.0)
    assert plan.preempted == []
    for chunk in plan.chunks:
        chunk.accepted = chunk.length - len(chunk.drafts)
    complete(target, plan)
    plan = target.schedule(0.0)  # the second one's row needs the last block
    assert plan.preempted == []
    assert [len(item.blocks) for item in items] == [2, 3]


def test_few_rows_are_shared_by_several_prompts() -> None:
    target = scheduler(1000, prefill_limit=lambda num_decoding, depth: 16)
    stream = sequence(3)
    add(target, stream)
    step(target)
    items = [sequence(900), sequence(900), sequence(20), sequence(900)]
    add(target, *items)
    for _ in range(5):
        plan = step(target)
        assert {chunk.sequence: chunk.length for chunk in plan.chunks} == {stream: 1, **dict.fromkeys(items, 4)}
    assert items[2].num_output_tokens == 1


@pytest.mark.parametrize("accepted", [0, 3])
def test_impossible_acceptance_is_an_error(accepted: int) -> None:
    target, item = scheduler(), sequence(2)
    add(target, item)
    plan = target.schedule(0.0)
    plan.chunks[0].accepted = accepted
    with pytest.raises(RuntimeError, match="rows accepted"):
        target.complete(plan)


def test_integrity_names_what_is_wrong() -> None:
    target, running, waiting = scheduler(seqs=1), sequence(5), sequence(5)
    add(target, running, waiting)
    step(target)
    for item, field, value, message in (
        (waiting, "status", SequenceStatus.RUNNING, "among the waiting but running"),
        (waiting, "num_computed", 2, "waits but holds"),
        (running, "num_computed", 9, "9 tokens in 2 blocks"),
        (running, "blocks", [], "5 tokens in 0 blocks"),
    ):
        before = getattr(item, field)
        setattr(item, field, value)
        with pytest.raises(RuntimeError, match=message):
            target.check_integrity()
        setattr(item, field, before)
    target.running.append(running)
    with pytest.raises(RuntimeError, match="queued twice"):
        target.check_integrity()
