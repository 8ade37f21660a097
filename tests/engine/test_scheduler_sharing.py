"""Blocks shared through the scheduler: prefix hits, and the samples of one prompt."""

from __future__ import annotations

import pytest
from scheduling import add, complete, drain, rows, samples, scheduler, sequence, step


def test_prefix_hits_skip_computed_blocks_but_not_the_last_token() -> None:
    target = scheduler()
    first = sequence(range(12))
    add(target, first)
    step(target)
    same, longer, other = sequence(range(12)), sequence([*range(8), 90, 91, 92]), sequence(range(1, 13))
    add(target, same, longer, other)
    plan = step(target)
    assert rows(plan)[1:] == [(same, 8, 4, True), (longer, 8, 3, True), (other, 0, 12, True)]
    assert [item.num_cached_tokens for item in (same, longer, other)] == [8, 8, 0]
    assert (target.prefix_queries, target.prefix_hits) == (12 + 12 + 11 + 12, 16)
    assert same.blocks[:2] == first.blocks[:2]
    drain(target)


def test_a_second_turn_hits_generated_tokens() -> None:
    target, item = scheduler(), sequence(range(6))
    add(target, item)
    for _ in range(7):
        step(target)
    target.finish(item)
    follow = sequence([*item.tokens, 50, 51])
    add(target, follow)
    assert rows(step(target)) == [(follow, 12, 3, True)]
    assert item.tokens[6:] == [7] * 7


def test_equal_prompts_in_one_step_are_both_computed() -> None:
    target = scheduler()
    items = [sequence(range(9)), sequence(range(9))]
    add(target, *items)
    assert [row[1:] for row in rows(step(target))] == [(0, 9, True), (0, 9, True)]
    assert not {*items[0].blocks} & {*items[1].blocks}


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    target = scheduler()
    add(target, sequence(range(12)))
    step(target)
    asking = sequence(range(12), sampling={"prompt_logprobs": 0})
    add(target, asking)
    assert rows(step(target))[1] == (asking, 0, 12, True)
    assert target.prefix_queries == 12


@pytest.mark.parametrize("caching", [False, True])
def test_samples_fork_the_prompt_and_compute_its_last_token(caching: bool) -> None:
    target, parent = scheduler(caching=caching), sequence(10)
    children = samples(parent, 3)
    add(target, parent, *children)
    assert target.num_waiting == 3
    assert rows(step(target)) == [(parent, 0, 10, True)]
    plan = step(target)
    assert rows(plan) == [(parent, 10, 1, True)] + [(child, 9, 1, True) for child in children]
    assert plan.copies == [(parent.blocks[2], child.blocks[2]) for child in children]
    assert all(child.blocks[:2] == parent.blocks[:2] and child.parent is None for child in children)
    assert target.blocks.num_used == 5
    drain(target)


def test_what_a_forked_sample_generates_is_found_again() -> None:
    target, parent = scheduler(), sequence(range(10))
    (child,) = samples(parent, 2)
    add(target, parent, child)
    step(target)
    for token in range(20, 32):
        plan = target.schedule(0.0)
        complete(target, plan, token)
    target.finish(parent)
    target.finish(child)
    target.blocks.check_integrity([])
    follow = sequence([*child.tokens, 50])
    add(target, follow)
    assert rows(step(target))[0][:2] == (follow, 20)


def test_samples_of_a_prompt_that_fills_its_block() -> None:
    for length, copies, shared in ((8, 1, 1), (9, 0, 2), (1, 0, 0)):
        target, parent = scheduler(), sequence(length)
        (child,) = samples(parent, 2)
        add(target, parent, child)
        step(target)
        assert len(step(target).copies) == copies
        assert len(set(child.blocks) & set(parent.blocks)) == shared
        drain(target)


@pytest.mark.parametrize("fate", ["finished early", "finished", "preempted"])
def test_samples_without_a_parent_are_ordinary(fate: str) -> None:
    target, parent = scheduler(seqs=1, budget=16), sequence(20, priority=1)
    (child,) = samples(parent, 2)
    child.request.priority = 1
    add(target, parent, child)
    step(target)
    if fate == "preempted":
        urgent = sequence(3)
        add(target, urgent)
        assert step(target).preempted == [parent]
        target.finish(urgent)
        assert target.waiting == [parent, child]
        assert child.parent is None
    elif fate == "finished":
        step(target)
    target.finish(parent)
    plan = step(target)
    assert child.parent is None
    assert rows(plan)[0][:2] == (child, 16)
    assert plan.copies == []
    drain(target)


def test_sample_added_after_the_prompt_was_computed_or_gone() -> None:
    target, parent = scheduler(), sequence(6)
    first, second = samples(parent, 3)
    add(target, parent)
    step(target)
    add(target, first)
    assert rows(step(target))[1] == (first, 5, 1, True)
    target.finish(parent)
    add(target, second)
    assert rows(step(target))[1] == (second, 4, 2, True)


def test_blocked_samples_do_not_hold_up_the_queue() -> None:
    target, parent, other = scheduler(budget=32), sequence(80), sequence(3)
    (child,) = samples(parent, 2)
    add(target, parent, child)
    step(target)
    add(target, other)
    step(target)
    assert child in target.waiting
    assert other in target.running
    target.finish(child)
    assert target.waiting == []
    drain(target)
