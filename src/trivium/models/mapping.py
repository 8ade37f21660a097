"""Read-only mappings of model files."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, ModelNotFoundError

__all__ = ["MAX_HEADER_BYTES", "map_file"]

# What a header may take of a file. Real ones need a few MB (256k tokens with merges: under 20); the bound keeps a
# hostile file from turning its gigabytes into many more gigabytes of Python objects.
MAX_HEADER_BYTES = 100_000_000


def map_file(path: Path) -> NDArray[np.uint8]:
    """The file's bytes, as a flat read-only array over a mapping of it.

    The file stays mapped as long as any view of the array lives. It must not be cut short meanwhile: the operating
    system ends a process that reads pages which are gone.

    Raises `ModelNotFoundError` if there is no such file and `ModelLoadError` if it is not a regular file, is empty or
    cannot be read.
    """
    try:
        # Asked before opening: to open a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelLoadError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelLoadError(f"{path}: the file is empty")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, such as one with a NUL
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    return np.frombuffer(mapping, np.uint8)
