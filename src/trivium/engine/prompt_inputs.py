"""What a piece of a prompt brings to a step beside its token ids: ready embeddings, positions, tokens to score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivium.engine.request import EmbeddingSpan, GenerationRequest

if TYPE_CHECKING:
    from trivium.engine.sample import Sample

__all__ = ["EmbeddingRows", "position_shift", "positions", "prompt_targets"]


class EmbeddingRows:
    """Ready embeddings and per-layer additions of one step, gathered from the spans that its chunks touch."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.int32]] = []
        self._values: list[NDArray[np.float32]] = []
        self._additions: list[tuple[int, NDArray[np.int32], NDArray[np.float32]]] = []

    def add(self, spans: tuple[EmbeddingSpan, ...], start: int, length: int, first_row: int) -> None:
        """Take what `spans` hold of `length` prompt positions from `start`, which are the step's rows from `first_row`."""
        for span in spans:
            low = max(span.start, start)
            high = min(span.start + len(span.values), start + length)
            if low >= high:
                continue
            rows = np.arange(low, high, dtype=np.int32) + np.int32(first_row - start)
            part = slice(low - span.start, high - span.start)
            self._rows.append(rows)
            self._values.append(span.values[part])
            for layer, values in span.layer_additions.items():
                self._additions.append((layer, rows, np.ascontiguousarray(values[part], np.float32)))

    def arguments(self) -> dict[str, object]:
        """Keyword arguments of `Model.step`; empty without embeddings."""
        if not self._rows:
            return {}
        return {
            "embeddings": np.ascontiguousarray(np.concatenate(self._values), np.float32),
            "embedding_rows": np.concatenate(self._rows),
            "layer_additions": self._additions,
        }


def position_shift(request: GenerationRequest) -> int:
    """What to add to positions after the prompt, so that they go on from the highest of the prompt's own positions."""
    if request.position_ids is None:
        return 0
    return int(request.position_ids.max()) + 1 - len(request.prompt_token_ids)


def positions(sample: Sample, start: int, length: int) -> NDArray[np.int32]:
    """Position components of the tokens `start` … `start + length - 1`: int32 [3, length]."""
    own = sample.request.position_ids
    rows = np.tile(np.arange(start, start + length, dtype=np.int32) + np.int32(sample.position_shift), (3, 1))
    if own is not None and start < own.shape[1]:
        inside = own[:, start : start + length]
        rows[:, : inside.shape[1]] = inside
    return rows


def prompt_targets(sample: Sample, start: int, length: int) -> NDArray[np.int32] | None:
    """The next prompt token of each row whose logprob is still to be found, -1 for other rows; None if there are none.

    A prompt that is computed again after a preemption is scored only from where its first pass stopped.
    """
    if sample.prompt_rows is None:
        return None
    low = max(start, len(sample.prompt_rows) - 1)
    high = min(start + length, sample.num_prompt_tokens - 1)
    if low >= high:
        return None
    targets = np.full(length, -1, np.int32)
    targets[low - start : high - start] = sample.tokens[low + 1 : high + 1]
    return targets
