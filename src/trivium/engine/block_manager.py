"""Who holds which KV block. Knows block numbers and reference counts, no tensors.

A block is held by sequences (`num_used`) or free. A free block whose content is in the prefix cache stays reusable until it is
handed out again: plain free blocks go first, then the cached one that has been free longest. A sequence gives its blocks back
last block first, so the tail of a chain is evicted before its head. Shared blocks are full and never written again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Series

from trivium.engine.prefix_cache import PrefixCache
from trivium.engine.sequence import Sequence
from trivium.errors import ConfigError

__all__ = ["BlockManager"]


class BlockManager:
    """Allocates the KV blocks 0..num_blocks-1, of `block_size` tokens each, to sequences.

    It keeps `Sequence.blocks` and `Sequence.num_hashed_blocks`. Raises ConfigError for sizes below 1.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if not value >= 1:
                raise ConfigError(f"{name} must be >= 1, got {value!r}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._cache = PrefixCache(block_size) if enable_prefix_caching else None
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 first
        self._reclaimable: OrderedDict[int, None] = OrderedDict()  # free but cached, longest free first

    @property
    def enable_prefix_caching(self) -> bool:
        return self._cache is not None

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, those kept by the prefix cache included."""
        return len(self._free) + len(self._reclaimable)

    @property
    def num_used(self) -> int:
        """Blocks held by sequences; a shared one counts once."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that the prefix cache knows, held or free."""
        return 0 if self._cache is None else len(self._cache)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """Cached blocks that the sequence can begin with, at most (len(tokens) - 1) // block_size; none are taken yet.

        A request for prompt logprobs matches nothing: it needs the logits of every prompt token.
        """
        if self._cache is None or sequence.request.sampling.prompt_logprobs is not None:
            return []
        return self._cache.match(sequence)

    def missing(self, sequence: Sequence, num_tokens: int, prefix: Series[int] = ()) -> int:
        """How many free blocks are lacking to `allocate`; 0 or less: it would succeed."""
        wanted = self.blocks_for(num_tokens) - len(sequence.blocks) - len(prefix)
        revived = sum(block in self._reclaimable for block in prefix)
        return wanted + revived - self.num_free

    def allocate(self, sequence: Sequence, num_tokens: int, prefix: Series[int] = ()) -> bool:
        """Give the sequence blocks for its first `num_tokens` tokens; False, with nothing changed, if too few are free.

        `prefix`, from `match_prefix`, becomes the beginning of a sequence without blocks.
        """
        if self.missing(sequence, num_tokens, prefix) > 0:
            return False
        if prefix:
            self._begin(sequence, prefix)
        while len(sequence.blocks) * self.block_size < num_tokens:
            sequence.blocks.append(self._take())
        return True

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Let `child` begin with the first `num_tokens` tokens of `parent`, with room for one more token.

        Full blocks are shared. The rest of the tokens must be copied: the returned (source, destination) says from where to
        where. None, with nothing changed, if no block is free.
        """
        if not self.num_free:
            return None
        full, rest = divmod(num_tokens, self.block_size)
        self._share(child, parent.blocks[:full])
        child.blocks.append(self._take())
        if self._cache is not None:
            self._cache.fork(parent, child, full)
            child.num_hashed_blocks = full
        return [(parent.blocks[full], child.blocks[full])] if rest else []

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Cut the sequence's KV back to its first `num_tokens` tokens; blocks beyond them are given back.

        RuntimeError if the block that would be written next is shared or cached.
        """
        keep, full = self.blocks_for(num_tokens), num_tokens // self.block_size
        if keep > full and keep <= len(sequence.blocks) and self._is_read_only(sequence.blocks[keep - 1]):
            raise RuntimeError(f"{sequence.key}: KV cut back to {num_tokens} tokens, inside a shared or cached block")
        self._release(sequence.blocks[keep:])
        del sequence.blocks[keep:]
        sequence.num_hashed_blocks = min(sequence.num_hashed_blocks, full)
        if self._cache is not None:
            self._cache.truncate(sequence, full)

    def register(self, sequence: Sequence) -> None:
        """Offer the blocks that `sequence.num_computed` accepted tokens have filled to the prefix cache."""
        if self._cache is None:
            return
        for index in range(sequence.num_hashed_blocks, sequence.num_computed // self.block_size):
            displaced = self._cache.insert(sequence, index)
            if displaced is not None and displaced in self._reclaimable:
                del self._reclaimable[displaced]
                self._free.append(displaced)
            sequence.num_hashed_blocks = index + 1

    def free(self, sequence: Sequence) -> None:
        """Give back everything held for the sequence. Idempotent."""
        self._release(sequence.blocks)
        sequence.blocks.clear()
        sequence.num_hashed_blocks = 0
        if self._cache is not None:
            self._cache.forget(sequence)

    def num_exclusive(self, sequence: Sequence, prefix: Collection[int] = ()) -> int:
        """Blocks that become free when the sequence gives its own back, not counting those in `prefix`, best a set."""
        return sum(self._references[block] == 1 and block not in prefix for block in sequence.blocks)

    def reset_prefix_cache(self) -> None:
        """Forget the cached blocks that no sequence holds."""
        if self._cache is None:
            return
        for block in self._reclaimable:
            self._cache.evict(block)
        self._free += self._reclaimable
        self._reclaimable.clear()

    def is_clean(self) -> bool:
        """Whether every block is free and no sequence is known."""
        return not self.num_used and not (self._cache is not None and self._cache.sequences)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise RuntimeError if the books disagree with what `sequences`, all those that may hold blocks, hold."""
        sequences = list(sequences)
        held = Counter(block for sequence in sequences for block in sequence.blocks)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise RuntimeError(f"block {block} has {references} references but {held[block]} holders")
        free = sorted([*self._free, *self._reclaimable])
        if free != [block for block, references in enumerate(self._references) if not references]:
            raise RuntimeError(f"free blocks {free} are not those without references")
        for sequence in sequences:
            for index, block in enumerate(sequence.blocks):
                if self._is_read_only(block) and (index + 1) * self.block_size > sequence.num_computed:
                    raise RuntimeError(f"{sequence.key}: block {block} is shared or cached but not full")
        if self._cache is not None:
            self._check_cache(self._cache, set(sequences))

    def _check_cache(self, cache: PrefixCache, sequences: set[Sequence]) -> None:
        for block in self._free:
            if block in cache:
                raise RuntimeError(f"block {block} is cached but not kept for reuse")
        for block in self._reclaimable:
            if block not in cache:
                raise RuntimeError(f"block {block} is kept for reuse but not cached")
        for sequence in cache.sequences - sequences:
            raise RuntimeError(f"{sequence.key}: prefix hashes are kept for an unknown sequence")

    def _is_read_only(self, block: int) -> bool:
        return self._references[block] > 1 or (self._cache is not None and block in self._cache)

    def _begin(self, sequence: Sequence, prefix: Series[int]) -> None:
        if sequence.blocks or self._cache is None:
            raise RuntimeError(f"{sequence.key}: a cached prefix for a sequence that has blocks, or without a prefix cache")
        self._share(sequence, prefix)
        self._cache.adopt(sequence, prefix)
        sequence.num_hashed_blocks = len(prefix)

    def _share(self, sequence: Sequence, blocks: Series[int]) -> None:
        for block in blocks:
            self._reclaimable.pop(block, None)
            self._references[block] += 1
        sequence.blocks.extend(blocks)

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._reclaimable.popitem(last=False)
            if self._cache is not None:
                self._cache.evict(block)
        self._references[block] = 1
        return block

    def _release(self, blocks: Series[int]) -> None:
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._cache is not None and block in self._cache:
                    self._reclaimable[block] = None
                else:
                    self._free.append(block)
