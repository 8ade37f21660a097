"""A tensor source of given shapes, for tests of what families ask of a checkpoint."""

from __future__ import annotations

import math

import numpy as np

from trivium.models.checkpoint import Tensor, TensorType


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name, TensorType.F32, shape, np.arange(math.prod(shape), dtype=np.float32).view(np.uint8))


class Source:
    """Tensors of given shapes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.tensors = {name: tensor(name, *shape) for name, shape in shapes.items()}

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors
