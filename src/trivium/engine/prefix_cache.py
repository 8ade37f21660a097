"""Which KV blocks hold tokens that were computed before.

A full block is keyed by a SHA-256 over the digest of the block before it and everything its KV depends on: token ids,
embeddings that take the place of tokens, given positions. The chain starts from the tagged cache salt. The digest only finds a
candidate: what it stands for is stored and compared, link by link, so that not even a collision can give wrong KV.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

from trivium.engine.request import GenerationRequest
from trivium.engine.sequence import Sequence

__all__ = ["PrefixCache"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached block. `parent` is the serial of the entry before it, or the tagged salt at the start of a chain.

    Serials are never used again, so an entry whose parent was evicted matches nothing, even after an equal parent came back.
    """

    block: int
    digest: bytes
    content: bytes
    parent: bytes | int
    serial: int


@dataclass(slots=True)
class _Chain:
    """What one sequence's tokens hash to. `parents[i]` is the parent that an entry for its block i must have."""

    digests: list[bytes]
    contents: list[bytes] = field(default_factory=list)
    parents: list[bytes | int] = field(default_factory=list)


class PrefixCache:
    """Maps chains of full blocks to block numbers. Knows no reference counts: the block manager decides what is evicted.

    State of a sequence begins with `match`, `adopt`, `fork` or `insert` and ends with `forget`.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pack_tokens = struct.Struct(f"<{block_size}i").pack
        self._entries: dict[bytes, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        self._chains: dict[Sequence, _Chain] = {}
        self._next_serial = 0

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    @property
    def sequences(self) -> set[Sequence]:
        """The sequences that state is kept for."""
        return set(self._chains)

    def match(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that the sequence's tokens begin with, leaving at least one token to compute."""
        chain = self._chain(sequence)
        parent = chain.parents[0]
        blocks: list[int] = []
        for index in range((len(sequence.tokens) - 1) // self._block_size):
            self._extend(chain, sequence, index)
            entry = self._entries.get(chain.digests[index + 1])
            if entry is None or entry.parent != parent or entry.content != chain.contents[index]:
                break
            blocks.append(entry.block)
            parent = entry.serial
        return blocks

    def adopt(self, sequence: Sequence, blocks: Series[int]) -> None:
        """Note that the sequence now begins with `blocks`, which `match` gave."""
        chain = self._chain(sequence)
        chain.parents[1:] = [self._by_block[block].serial for block in blocks]

    def fork(self, parent: Sequence, child: Sequence, num_blocks: int) -> None:
        """Note that the first `num_blocks` blocks, already offered for `parent`, are also those of `child`."""
        chain = self._chain(parent)
        self._chains[child] = _Chain(
            chain.digests[: num_blocks + 1], chain.contents[:num_blocks], chain.parents[: num_blocks + 1]
        )

    def insert(self, sequence: Sequence, index: int) -> int | None:
        """Offer block `index`, full of accepted tokens; the blocks before it were offered already.

        A block with the same content stays the cached one. Returns a block that lost its entry to this one, if any: one whose
        chain was evicted before it, or whose digest collided.
        """
        chain = self._chain(sequence)
        self._extend(chain, sequence, index)
        digest, content, parent = chain.digests[index + 1], chain.contents[index], chain.parents[index]
        found = self._entries.get(digest)
        if found is not None and found.parent == parent and found.content == content:
            chain.parents.append(found.serial)
            return None
        if found is not None:
            del self._by_block[found.block]
        entry = _Entry(sequence.blocks[index], digest, content, parent, self._next_serial)
        self._next_serial += 1
        self._entries[digest] = self._by_block[entry.block] = entry
        chain.parents.append(entry.serial)
        return None if found is None else found.block

    def truncate(self, sequence: Sequence, num_blocks: int) -> None:
        """Note that the sequence keeps only its first `num_blocks` full blocks; later tokens may change."""
        chain = self._chains.get(sequence)
        if chain is not None:
            del chain.digests[num_blocks + 1 :], chain.contents[num_blocks:], chain.parents[num_blocks + 1 :]

    def forget(self, sequence: Sequence) -> None:
        """Drop the state kept for a sequence; what it put into the cache stays."""
        self._chains.pop(sequence, None)

    def evict(self, block: int) -> None:
        """Drop a block from the cache. KeyError if it is not cached."""
        del self._entries[self._by_block.pop(block).digest]

    def _chain(self, sequence: Sequence) -> _Chain:
        chain = self._chains.get(sequence)
        if chain is None:
            root = _tagged_salt(sequence.request.cache_salt)
            chain = self._chains[sequence] = _Chain([hashlib.sha256(root).digest()], parents=[root])
        return chain

    def _extend(self, chain: _Chain, sequence: Sequence, index: int) -> None:
        """Hash the sequence's blocks up to and including `index`."""
        for i in range(len(chain.contents), index + 1):
            start, stop = i * self._block_size, (i + 1) * self._block_size
            content = self._pack_tokens(*sequence.tokens[start:stop]) + _inputs(sequence.request, start, stop)
            chain.contents.append(content)
            chain.digests.append(hashlib.sha256(chain.digests[i] + content).digest())


def _tagged_salt(salt: str | None) -> bytes:
    # The tag keeps an absent salt apart from every given one, the empty one included.
    return b"\0" if salt is None else b"\1" + salt.encode("utf-8", "surrogatepass")


def _inputs(request: GenerationRequest, start: int, stop: int) -> bytes:
    """What the KV of positions [start, stop) depends on beside token ids; every part states its length."""
    parts: list[bytes] = []
    for span in request.embeddings:
        low, high = max(span.start, start), min(span.start + len(span.values), stop)
        if low < high:
            parts.append(struct.pack("<cqqqq", b"e", low - start, high - start, low - span.start, len(span.digest)))
            parts.append(span.digest)
    if request.position_ids is not None:
        positions = request.position_ids[:, start:stop]
        parts.append(struct.pack("<cq", b"p", positions.shape[1]))
        parts.append(positions.tobytes())
    return b"".join(parts)
