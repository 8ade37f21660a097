"""A model's files, whatever their format: metadata and named tensors that are views of mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tensor", "TensorSource", "TensorType"]


class TensorType(IntEnum):
    """Element types, numbered as in GGUF (ggml.h); safetensors' F32, F16 and BF16 map onto the same numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    BF16 = 30

    @property
    def block_size(self) -> int:
        """Elements per block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return _BLOCKS[self][1]


_BLOCKS: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
    TensorType.IQ4_NL: (32, 18),
    TensorType.BF16: (1, 2),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: `shape` is row-major, last dimension contiguous; `data` is a flat uint8 view of the file.

    A block never crosses a row, so `data` of a 2-D tensor is `rows` equal runs of bytes.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=np.int64)) if len(self.shape) > 1 else 1

    @property
    def cols(self) -> int:
        return self.shape[-1]

    def part(self, index: int) -> Tensor:
        """Slice `index` of the first dimension, for tensors that stack experts."""
        size = self.data.shape[0] // self.shape[0]
        return Tensor(f"{self.name}[{index}]", self.type, self.shape[1:], self.data[index * size : (index + 1) * size])


class TensorSource(Protocol):
    """What a family reads: tensors by name, in the file's own names."""

    def tensor(self, name: str) -> Tensor:
        """The tensor, or `ModelLoadError` naming it."""
        ...

    def __contains__(self, name: object) -> bool: ...
