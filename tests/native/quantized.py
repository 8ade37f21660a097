"""Random valid tensors of every element type, with the `gguf` package's dequantisation as the reference."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize as gguf_dequantize
from numpy.typing import NDArray

from trivium.models.checkpoint import TensorType

QUANTISED = [t for t in TensorType if t.block_size > 1]

# Where each block keeps float16 scales, in bytes: random bytes there would be NaN or huge.
_HALVES = {
    TensorType.Q4_0: [0],
    TensorType.Q4_1: [0, 2],
    TensorType.Q5_0: [0],
    TensorType.Q5_1: [0, 2],
    TensorType.Q8_0: [0],
    TensorType.Q4_K: [0, 2],
    TensorType.Q5_K: [0, 2],
    TensorType.Q6_K: [208],
    TensorType.IQ4_NL: [0],
}


def random_tensor(type: TensorType, rows: int, cols: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes of a [rows, cols] tensor with random codes and scales around 0.01."""
    rng = np.random.default_rng(seed)
    if type == TensorType.F32:
        return rng.standard_normal(rows * cols, dtype=np.float32).view(np.uint8)
    if type == TensorType.F16:
        return rng.standard_normal(rows * cols).astype(np.float16).view(np.uint8)
    if type == TensorType.BF16:
        high = rng.standard_normal(rows * cols, dtype=np.float32).view(np.uint32) >> 16
        return high.astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (rows * cols // type.block_size, type.block_bytes), dtype=np.uint8)
    for offset in _HALVES[type]:
        scales = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def reference(type: TensorType, data: NDArray[np.uint8], rows: int, cols: int) -> NDArray[np.float32]:
    """What the tensor means, as float32 [rows, cols]."""
    if type == TensorType.F32:
        return data.view(np.float32).reshape(rows, cols)
    if type == TensorType.F16:
        return data.view(np.float16).astype(np.float32).reshape(rows, cols)
    if type == TensorType.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(rows, cols)
    return gguf_dequantize(data.reshape(rows, -1), gguf.GGMLQuantizationType(int(type)))
