from __future__ import annotations

import itertools
from collections.abc import Sequence as Series
from typing import Any

import pytest

from trivium.engine.block_manager import BlockManager
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.engine.sequence import Sequence
from trivium.errors import ConfigError

orders = itertools.count()


def sequence(tokens: Series[int], **sampling: Any) -> Sequence:
    order = next(orders)
    return Sequence(
        request=GenerationRequest(f"r{order}", list(tokens), SamplingOptions(**sampling)),
        index=0,
        tokens=list(tokens),
        num_prompt_tokens=len(tokens),
        max_tokens=100,
        deadline=None,
        seed=0,
        order=order,
    )


def computed(blocks: BlockManager, tokens: Series[int]) -> Sequence:
    """A sequence whose tokens are all computed, its full blocks offered to the cache."""
    owner = sequence(tokens)
    prefix = blocks.match_prefix(owner)
    assert blocks.allocate(owner, len(tokens), prefix)
    owner.num_computed = len(tokens)
    blocks.register(owner)
    return owner


def hits(blocks: BlockManager, tokens: Series[int], **sampling: Any) -> list[int]:
    """The cached blocks that a passing sequence would find."""
    asking = sequence(tokens, **sampling)
    found = blocks.match_prefix(asking)
    blocks.free(asking)
    return found


@pytest.fixture
def blocks() -> BlockManager:
    return BlockManager(num_blocks=8, block_size=4, enable_prefix_caching=True)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (-1, 16), (4, 0), (4, float("nan"))])
def test_sizes_are_checked(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ConfigError, match=r"num_blocks must|block_size must"):
        BlockManager(num_blocks, block_size, True)


def test_allocation_grows_by_whole_blocks(blocks: BlockManager) -> None:
    owner = sequence(range(30))
    for num_tokens, held in ((1, 1), (4, 1), (5, 2), (5, 2), (16, 4)):
        assert blocks.allocate(owner, num_tokens)
        assert len(owner.blocks) == held == blocks.num_used
    assert len(set(owner.blocks)) == 4
    assert blocks.num_free == 4
    blocks.check_integrity([owner])


def test_failed_allocation_changes_nothing(blocks: BlockManager) -> None:
    first, second = sequence(range(20)), sequence(range(20))
    assert blocks.allocate(first, 20)
    assert blocks.missing(second, 16) == 1
    assert not blocks.allocate(second, 16)
    assert second.blocks == []
    assert blocks.num_free == 3
    assert blocks.missing(second, 12) == 0
    assert blocks.allocate(second, 12)
    assert blocks.num_free == 0


def test_free_is_idempotent_and_total(blocks: BlockManager) -> None:
    owner = computed(blocks, range(18))
    assert owner.num_hashed_blocks == 4
    blocks.free(owner)
    blocks.free(owner)
    assert (owner.blocks, owner.num_hashed_blocks) == ([], 0)
    assert (blocks.num_free, blocks.num_used, blocks.num_cached) == (8, 0, 4)
    blocks.check_integrity([])


def test_prefix_is_shared_while_held_and_revived_when_free(blocks: BlockManager) -> None:
    first = computed(blocks, range(10))
    second = computed(blocks, [*range(8), 77, 78])
    assert second.blocks[:2] == first.blocks[:2]
    assert second.num_hashed_blocks == 2
    assert blocks.num_used == 4
    blocks.check_integrity([first, second])
    head = first.blocks[:2]
    blocks.free(first)
    blocks.free(second)
    assert blocks.num_free == 8
    third = computed(blocks, [*range(8), 80])
    assert third.blocks[:2] == head
    blocks.check_integrity([third])


def test_revived_blocks_count_as_taken(blocks: BlockManager) -> None:
    blocks.free(computed(blocks, range(8)))
    holder = sequence(range(100, 124))
    assert blocks.allocate(holder, 24)
    asking = sequence([*range(8), 1, 2, 3, 4])
    prefix = blocks.match_prefix(asking)
    assert len(prefix) == 2
    assert blocks.num_free == 2
    assert blocks.missing(asking, 12, prefix) == 1
    assert not blocks.allocate(asking, 12, prefix)
    assert blocks.match_prefix(asking) == prefix
    blocks.check_integrity([holder, asking])


def test_prefix_needs_a_sequence_without_blocks(blocks: BlockManager) -> None:
    computed(blocks, range(8))
    asking = sequence(range(12))
    assert blocks.allocate(asking, 4)
    with pytest.raises(RuntimeError, match="has blocks"):
        blocks.allocate(asking, 12, blocks.match_prefix(asking))


def test_eviction_takes_the_longest_free_tail_first(blocks: BlockManager) -> None:
    old, new = computed(blocks, range(12)), computed(blocks, range(100, 112))
    old_blocks, new_blocks = list(old.blocks), list(new.blocks)
    blocks.free(old)
    blocks.free(new)
    taker = sequence(range(200, 232))
    assert blocks.allocate(taker, 32)
    assert set(taker.blocks[:2]).isdisjoint(old_blocks + new_blocks)
    assert taker.blocks[2:] == old_blocks[::-1] + new_blocks[::-1]
    assert blocks.num_cached == 0


def test_use_makes_a_prefix_young_again(blocks: BlockManager) -> None:
    for start in (0, 100):
        blocks.free(computed(blocks, range(start, start + 12)))
    blocks.free(computed(blocks, [*range(8), 50]))
    taker = sequence(range(200, 216))
    assert blocks.allocate(taker, 16)
    assert len(hits(blocks, range(13))) == 2
    assert len(hits(blocks, range(100, 113))) == 2


def test_prompt_logprobs_match_nothing_but_are_offered(blocks: BlockManager) -> None:
    blocks.free(computed(blocks, range(8)))
    assert hits(blocks, range(9), prompt_logprobs=0) == []
    owner = sequence(range(20, 28), prompt_logprobs=1)
    assert blocks.allocate(owner, 8)
    owner.num_computed = 8
    blocks.register(owner)
    assert hits(blocks, range(20, 29)) == owner.blocks


def test_only_computed_full_blocks_are_offered(blocks: BlockManager) -> None:
    owner = sequence(range(12))
    assert blocks.allocate(owner, 12)
    for num_computed, cached in ((3, 0), (4, 1), (7, 1), (11, 2), (12, 3)):
        owner.num_computed = num_computed
        blocks.register(owner)
        assert blocks.num_cached == cached


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("num_tokens", "shared", "copied"), [(0, 0, 0), (3, 0, 1), (4, 1, 0), (9, 2, 1), (12, 3, 0)])
def test_fork_shares_full_blocks_and_copies_the_rest(caching: bool, num_tokens: int, shared: int, copied: int) -> None:
    blocks = BlockManager(8, 4, caching)
    parent, child = computed(blocks, range(13)), sequence(range(13))
    copies = blocks.fork(parent, child, num_tokens)
    assert child.blocks[:shared] == parent.blocks[:shared]
    assert len(child.blocks) == shared + 1
    assert child.blocks[-1] not in parent.blocks
    assert copies == [(parent.blocks[shared], child.blocks[shared])] * copied
    assert blocks.num_exclusive(parent) == 4 - shared
    assert blocks.num_exclusive(parent, parent.blocks) == 0
    child.num_computed = num_tokens
    blocks.check_integrity([parent, child])
    blocks.free(parent)
    assert blocks.num_used == shared + 1
    blocks.free(child)
    assert blocks.num_used == 0


def test_fork_without_a_free_block_changes_nothing(blocks: BlockManager) -> None:
    parent, child = computed(blocks, range(32)), sequence(range(32))
    assert blocks.fork(parent, child, 31) is None
    assert child.blocks == []


def test_truncate_gives_blocks_back(blocks: BlockManager) -> None:
    owner = computed(blocks, range(6))
    assert blocks.allocate(owner, 14)
    blocks.truncate(owner, 7)
    assert len(owner.blocks) == 2
    assert owner.num_hashed_blocks == 1
    blocks.truncate(owner, 4)
    assert len(owner.blocks) == 1
    blocks.truncate(owner, 0)
    assert owner.blocks == []
    assert owner.num_hashed_blocks == 0
    assert blocks.num_free == 8


def test_truncate_refuses_to_open_a_block_others_may_read(blocks: BlockManager) -> None:
    owner = computed(blocks, range(10))
    with pytest.raises(RuntimeError, match="shared or cached"):
        blocks.truncate(owner, 7)
    plain = BlockManager(8, 4, False)
    parent, child = computed(plain, range(10)), sequence(range(10))
    plain.fork(parent, child, 9)
    with pytest.raises(RuntimeError, match="shared or cached"):
        plain.truncate(parent, 6)


def test_reset_forgets_only_what_nobody_holds(blocks: BlockManager) -> None:
    blocks.free(computed(blocks, range(8)))
    held = computed(blocks, range(100, 108))
    blocks.reset_prefix_cache()
    assert hits(blocks, range(9)) == []
    assert hits(blocks, range(100, 109)) == held.blocks
    assert blocks.num_free == 6
    blocks.free(held)
    blocks.reset_prefix_cache()
    assert (blocks.num_cached, blocks.num_free) == (0, 8)
    blocks.check_integrity([])


def test_replaced_orphans_become_plain_free(blocks: BlockManager) -> None:
    first, twin = computed(blocks, range(4)), sequence(range(8))
    assert blocks.allocate(twin, 8)  # computed beside `first`, without knowing of it
    twin.num_computed = 8
    blocks.register(twin)
    blocks.free(first)
    blocks.free(twin)
    filler = sequence(range(100, 128))
    assert blocks.allocate(filler, 28)  # evicts the head, cached first; the tail is an orphan
    blocks.free(filler)
    assert blocks.num_cached == 1
    again = computed(blocks, range(8))
    blocks.check_integrity([again])
    assert blocks.num_cached == 2
    assert hits(blocks, range(9)) == again.blocks


def test_without_caching_nothing_matches() -> None:
    blocks = BlockManager(8, 4, False)
    blocks.free(computed(blocks, range(12)))
    assert hits(blocks, range(12)) == []
    assert blocks.num_cached == 0
    assert not blocks.enable_prefix_caching
    blocks.reset_prefix_cache()
    blocks.check_integrity([])


def test_integrity_names_what_is_wrong(blocks: BlockManager) -> None:
    owner = computed(blocks, range(9))
    with pytest.raises(RuntimeError, match="references but 0 holders"):
        blocks.check_integrity([])
    owner.num_computed = 3
    with pytest.raises(RuntimeError, match="not full"):
        blocks.check_integrity([owner])
    owner.num_computed = 9
    waiting = sequence(range(9))
    blocks.match_prefix(waiting)
    with pytest.raises(RuntimeError, match="unknown sequence"):
        blocks.check_integrity([owner])
    blocks.free(waiting)
    blocks.check_integrity([owner])
