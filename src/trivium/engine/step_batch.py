"""The flat arrays of one step, built from the scheduler's chunks in buffers that live as long as the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from trivium.engine.prompt_inputs import EmbeddingRows, positions, prompt_targets
from trivium.engine.sample import Sample

if TYPE_CHECKING:
    from trivium._native import Model, StepResult
    from trivium.engine.scheduler import Chunk
    from trivium.parsing.structured import GuidedMatcher

__all__ = ["StepBatch"]


class StepBatch:
    """Turns chunks into the arguments of `Model.step`.

    Row i of the block tables keeps what it held in the step before, so that a decoding batch rewrites only rows whose blocks
    changed. A step is `clear`, `add_mask` for each constrained sample, `run`.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, blocks_per_sequence: int, vocab_size: int) -> None:
        self._token_ids = np.zeros(max_num_batched_tokens, np.int32)
        self._positions = np.zeros(max_num_batched_tokens, np.int32)
        self._query_starts = np.zeros(max_num_seqs + 1, np.int32)
        self._context_lens = np.zeros(max_num_seqs, np.int32)
        self._block_tables = np.zeros((max_num_seqs, blocks_per_sequence), np.int32)
        self._table_rows: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._masks = np.zeros((0, -(-vocab_size // 32)), np.uint32)
        self._num_masks = 0
        self._vocab_size = vocab_size

    def clear(self) -> None:
        """Forget the masks of the step before."""
        self._num_masks = 0

    def add_mask(self, matcher: GuidedMatcher) -> int:
        """The row of a new mask, filled with what `matcher` allows next."""
        row = self._num_masks
        if row == len(self._masks):
            grown = np.zeros((max(4, 2 * row), self._masks.shape[1]), np.uint32)
            grown[:row] = self._masks
            self._masks = grown
        matcher.fill_mask(self._masks[row])
        self._num_masks = row + 1
        return row

    def run(self, native: Model, chunks: Sequence[Chunk]) -> StepResult:
        """Compute one step: one result per chunk, in order."""
        token_ids: list[int] = []
        places: list[int] = []
        query_starts = [0]
        context_lens: list[int] = []
        samplers: list[Any] = []
        special = drafted = False
        for chunk in chunks:
            sample, start, length = cast(Sample, chunk.sequence), chunk.start, chunk.length
            end = start + length
            if length == 1:
                token_ids.append(sample.tokens[start])
                places.append(start)
            else:
                token_ids += sample.tokens[start:end]
                token_ids += chunk.drafts
                places += range(start, end)
            query_starts.append(len(token_ids))
            context_lens.append(end)
            samplers.append(sample.sampler if chunk.sample else None)
            special = special or not sample.plain
            drafted = drafted or bool(chunk.drafts)
        rows, count = len(token_ids), len(chunks)
        self._token_ids[:rows] = token_ids
        self._positions[:rows] = places
        self._query_starts[: count + 1] = query_starts
        self._context_lens[:count] = context_lens
        position_rows = self._positions[:rows]
        options: dict[str, Any] = {}
        if special:
            position_rows, options = self._special_inputs(chunks, query_starts, position_rows)
        if drafted:
            options["num_drafts"] = np.array([len(chunk.drafts) for chunk in chunks], np.int32)
        return native.step(
            self._token_ids[:rows],
            position_rows,
            self._query_starts[: count + 1],
            self._context_lens[:count],
            self._tables(chunks),
            samplers,
            **options,
        )

    def _tables(self, chunks: Sequence[Chunk]) -> NDArray[np.int32]:
        tables, rows = self._block_tables, self._table_rows
        for i, chunk in enumerate(chunks):
            blocks = chunk.sequence.blocks
            if rows[i] != blocks:
                tables[i, : len(blocks)] = blocks
                rows[i] = blocks.copy()
        return tables[: len(chunks)]

    def _special_inputs(
        self, chunks: Sequence[Chunk], query_starts: list[int], plain_positions: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], dict[str, Any]]:
        """Positions, and the keyword arguments that only some steps need."""
        embeddings = EmbeddingRows()
        targets = []
        mask_rows = np.full(len(chunks), -1, np.int32)
        place_rows = plain_positions
        for i, chunk in enumerate(chunks):
            sample, start, length, first = cast(Sample, chunk.sequence), chunk.start, chunk.length, query_starts[i]
            if sample.plain:
                continue
            mask_rows[i] = sample.mask_row
            embeddings.add(sample.request.embeddings, start, length, first)
            if sample.request.position_ids is not None:
                if place_rows.ndim == 1:
                    place_rows = np.tile(plain_positions, (3, 1))
                place_rows[:, first : first + length] = positions(sample, start, length)
            if (wanted := prompt_targets(sample, start, length)) is not None:
                count = sample.request.sampling.prompt_logprobs
                targets.append((i, None if count is None else min(count, self._vocab_size), wanted))
        options: dict[str, Any] = {"prompt_logprobs": targets, **embeddings.arguments()}
        if self._num_masks:
            options |= {"masks": self._masks[: self._num_masks], "mask_rows": mask_rows}
        return place_rows, options
