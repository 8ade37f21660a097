from __future__ import annotations

import hashlib
from collections.abc import Sequence as Series
from typing import Any

import numpy as np
import pytest

from trivium.engine.prefix_cache import PrefixCache
from trivium.engine.request import EmbeddingSpan, GenerationRequest
from trivium.engine.sequence import Sequence

BLOCK = 4


def sequence(tokens: Series[int], blocks: Series[int] = (), **request: Any) -> Sequence:
    return Sequence(
        request=GenerationRequest("r", list(tokens), **request),
        index=0,
        tokens=list(tokens),
        num_prompt_tokens=len(tokens),
        max_tokens=100,
        deadline=None,
        seed=0,
        order=0,
        blocks=list(blocks),
    )


def span(start: int, length: int, digest: bytes) -> EmbeddingSpan:
    return EmbeddingSpan(start, np.zeros((length, 2), np.float32), digest)


def filled(tokens: Series[int], blocks: Series[int], **request: Any) -> PrefixCache:
    cache = PrefixCache(BLOCK)
    owner = sequence(tokens, blocks, **request)
    for index in range(len(tokens) // BLOCK):
        assert cache.insert(owner, index) is None
    cache.forget(owner)
    return cache


def test_the_longest_cached_run_matches() -> None:
    cache = filled(range(12), [7, 3, 5])
    assert cache.match(sequence(range(20))) == [7, 3, 5]
    assert cache.match(sequence([*range(8), 99, 99, 99, 99, 99])) == [7, 3]
    assert cache.match(sequence([99, *range(1, 20)])) == []
    assert cache.match(sequence([*range(4), 99, *range(5, 20)])) == [7]


@pytest.mark.parametrize(("length", "hits"), [(4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_at_least_one_token_is_left_to_compute(length: int, hits: int) -> None:
    cache = filled(range(12), [0, 1, 2])
    assert len(cache.match(sequence(range(length)))) == hits


def test_equal_blocks_at_other_places_do_not_match() -> None:
    cache = filled([1, 2, 3, 4, 5, 6, 7, 8], [0, 1])
    assert cache.match(sequence([5, 6, 7, 8, 9])) == []
    assert cache.match(sequence([1, 2, 3, 4, 1, 2, 3, 4, 9])) == [0]


@pytest.mark.parametrize(
    ("stored", "asked", "hits"),
    [(None, None, 1), ("a", "a", 1), (None, "", 0), ("", None, 0), ("a", "b", 0), ("a", None, 0), ("\ud800", "\ud800", 1)],
)
def test_salts_are_kept_apart(stored: str | None, asked: str | None, hits: int) -> None:
    cache = filled(range(4), [0], cache_salt=stored)
    assert len(cache.match(sequence(range(5), cache_salt=asked))) == hits


@pytest.mark.parametrize(
    ("spans", "hits"),
    [
        ((span(2, 8, b"cat"),), 3),
        ((span(2, 8, b"dog"),), 0),
        ((), 0),
        ((span(3, 7, b"cat"),), 0),
        ((span(1, 9, b"cat"),), 0),
        ((span(2, 7, b"cat"),), 2),
        ((span(2, 4, b"cat"), span(6, 4, b"cat")), 1),
        ((span(2, 6, b"cat"), span(8, 2, b"cat")), 2),
    ],
)
def test_embeddings_are_part_of_the_key(spans: tuple[EmbeddingSpan, ...], hits: int) -> None:
    cache = filled([1] * 12, [0, 1, 2], embeddings=(span(2, 8, b"cat"),))
    assert len(cache.match(sequence([1] * 13, embeddings=spans))) == hits


def test_embeddings_after_a_block_do_not_change_its_key() -> None:
    cache = filled([1] * 8, [0, 1])
    assert cache.match(sequence([1] * 13, embeddings=(span(8, 4, b"cat"),))) == [0, 1]


def test_given_positions_are_part_of_the_key() -> None:
    positions = np.arange(3 * 9, dtype=np.int32).reshape(3, 9)
    cache = filled([1] * 8, [0, 1], position_ids=positions[:, :8])
    other = positions.copy()
    other[2, 5] += 1
    assert cache.match(sequence([1] * 9, position_ids=positions)) == [0, 1]
    assert cache.match(sequence([1] * 9, position_ids=other)) == [0]
    assert cache.match(sequence([1] * 9)) == []


def test_the_first_block_of_equal_content_stays_cached() -> None:
    cache = filled(range(8), [0, 1])
    twin = sequence(range(8), [5, 6])
    assert [cache.insert(twin, 0), cache.insert(twin, 1)] == [None, None]
    assert cache.match(sequence(range(9))) == [0, 1]
    assert 5 not in cache
    assert len(cache) == 2


def test_a_chain_without_its_head_matches_nothing_until_offered_again() -> None:
    cache = filled(range(8), [0, 1])
    cache.evict(0)
    assert cache.match(sequence(range(9))) == []
    again = sequence(range(8), [2, 3])
    assert cache.insert(again, 0) is None
    assert cache.match(sequence(range(9))) == [2]  # block 1 belongs to the evicted head
    assert cache.insert(again, 1) == 1
    assert cache.match(sequence(range(9))) == [2, 3]
    assert 1 not in cache


def test_adopted_and_forked_prefixes_are_continued() -> None:
    cache = filled(range(8), [0, 1])
    owner = sequence(range(12), [0, 1, 2])
    cache.adopt(owner, cache.match(owner)[:2])
    cache.insert(owner, 2)
    child = sequence([*range(8), 50, 51, 52, 53], [0, 1, 3])
    cache.fork(owner, child, 2)
    cache.insert(child, 2)
    assert cache.match(sequence(range(13))) == [0, 1, 2]
    assert cache.match(sequence([*range(8), 50, 51, 52, 53, 54])) == [0, 1, 3]
    assert cache.sequences >= {owner, child}
    cache.forget(child)
    assert child not in cache.sequences


def test_tokens_cut_back_are_hashed_anew() -> None:
    cache = PrefixCache(BLOCK)
    owner = sequence(range(8), [0, 1])
    cache.insert(owner, 0)
    cache.match(sequence(range(8)))
    owner.tokens[4:] = [9, 9, 9, 9]
    cache.truncate(owner, 1)
    cache.insert(owner, 1)
    assert cache.match(sequence([0, 1, 2, 3, 9, 9, 9, 9, 9])) == [0, 1]


def test_colliding_digests_give_no_wrong_block(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def __init__(self, _: bytes) -> None: ...

        def digest(self) -> bytes:
            return b"same"

    monkeypatch.setattr(hashlib, "sha256", Constant)
    cache = filled([1, 2, 3, 4], [0])
    assert cache.match(sequence([1, 2, 3, 4, 5])) == [0]
    assert cache.match(sequence([5, 6, 7, 8, 9])) == []
    assert cache.match(sequence([1, 2, 3, 4, 5], cache_salt="x")) == []
    assert cache.match(sequence([1, 2, 3, 4, 1, 2, 3, 4, 5])) == [0]
    other = sequence([5, 6, 7, 8], [3])
    assert cache.insert(other, 0) == 0
    assert cache.match(sequence([1, 2, 3, 4, 5])) == []
    assert cache.match(sequence([5, 6, 7, 8, 9])) == [3]
