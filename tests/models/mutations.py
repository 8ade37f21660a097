"""Damaged variants of a sound file, for the fuzz tests of the file readers."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

# Values that lengths, counts, offsets and types go wrong with.
_NUMBERS = [0, 1, 3, 9, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def damaged(sound: bytes) -> st.SearchStrategy[bytes]:
    """Up to four edits of `sound`: bytes overwritten, inserted or removed, or the end cut off."""
    chunk = st.one_of(
        st.binary(min_size=1, max_size=4),
        st.sampled_from(_NUMBERS).map(lambda number: struct.pack("<Q", number)),
        st.sampled_from(_NUMBERS).map(lambda number: struct.pack("<I", number & 0xFFFFFFFF)),
        st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"9" * 30, b"null", b"NaN", b"\\ud800", b"../"]),
    )
    position = st.integers(0, len(sound))
    edit = st.one_of(
        st.tuples(st.just("overwrite"), position, chunk),
        st.tuples(st.just("insert"), position, chunk),
        st.tuples(st.just("remove"), position, chunk),
        st.tuples(st.just("truncate"), position, chunk),
    )
    return st.lists(edit, min_size=1, max_size=4).map(lambda edits: _apply(sound, edits))


def _apply(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, position, chunk in edits:
        if kind == "truncate":
            data = data[:position]
            continue
        rest = data[position + (0 if kind == "insert" else len(chunk)) :]
        data = data[:position] + (b"" if kind == "remove" else chunk) + rest
    return data


@contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Fail if Python and numpy ever held more than `limit` bytes of new memory in the block."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak} bytes were allocated, the limit is {limit}"
