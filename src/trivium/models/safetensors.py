"""Reader of model folders in the safetensors format.

Layout of a file, from the safetensors project's README: the header's length as 64 little endian bits; the header, a
JSON object that maps tensor names to {"dtype", "shape", "data_offsets"} and "__metadata__" to an object of strings; the
tensors' bytes, to which the offsets refer. A model of several files has a model.safetensors.index.json whose
"weight_map" maps tensor names to file names.

Files are untrusted input: whatever is wrong ends in a `ModelLoadError` that names the file and the fault. Pickled
weights are never read.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import reprlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.mapping import MAX_HEADER_BYTES, map_file

__all__ = ["SafetensorsFolder"]

_SINGLE_NAME = "model.safetensors"
_INDEX_NAME = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_PICKLED_SUFFIXES = (".bin", ".pdparams", ".pt", ".pth", ".ckpt", ".pkl")
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8

# Paddle has no bfloat16 of its own in numpy: its checkpoints keep those bits as U16.
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16, "U16": TensorType.BF16}

# Bits per element of every type of the format (safetensors' enum Dtype); only their sizes are checked.
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

# The tensors that can be read, and for the others the reason why not.
_Contents: TypeAlias = tuple[dict[str, Tensor], dict[str, str]]


class SafetensorsFolder:
    """The tensors of a model folder, which are views of the mapped files.

    `tensors` holds those that Trivium can read, in the order of the files: F32, F16 and BF16 (also as U16) with at least
    one dimension and one element. Others may be present; asking for one is an error. Tensors need not be aligned to their
    element size.
    """

    def __init__(self, path: Path, tensors: dict[str, Tensor], refused: dict[str, str]) -> None:
        """`refused` maps names of tensors that are present but cannot be read to the reason."""
        self.path = path
        self.tensors = tensors
        self._refused = refused

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFolder:
        """Map the files of a model and read their headers.

        `path` is a .safetensors file or a folder with model.safetensors, with model.safetensors.index.json and the
        files that it names, or with exactly one *.safetensors file; the first of these that is there is taken.

        Raises `ModelNotFoundError` if there is no such path, `UnsupportedModelError` if the folder has pickled weights
        only, `ModelLoadError` for everything that is wrong with the files.
        """
        path = Path(path)
        file = _find(path)
        if file.name == _INDEX_NAME:
            return cls(path, *_read_shards(file))
        return cls(path, *_read_file(file))

    def tensor(self, name: str) -> Tensor:
        """The tensor; `ModelLoadError` if there is none, `UnsupportedModelError` if it is not F32, F16 or BF16."""
        if name in self.tensors:
            return self.tensors[name]
        if name in self._refused:
            raise UnsupportedModelError(f"{self.path}: tensor {name!r} {self._refused[name]}")
        raise ModelLoadError(f"{self.path}: there is no tensor {name!r}")

    def __contains__(self, name: object) -> bool:
        return name in self.tensors or name in self._refused

    def close(self) -> None:
        """Forget the tensors. The files are unmapped once the last `Tensor` or array taken from here is gone, too."""
        self.tensors = {}
        self._refused = {}


def _find(path: Path) -> Path:
    """The .safetensors file or the index to start from."""
    names = _list_folder(path)
    if names is None:
        _refuse_pickled(path, [path.name])
        return path
    for name in (_SINGLE_NAME, _INDEX_NAME):
        if name in names:
            return path / name
    candidates = [name for name in names if name.endswith(_SUFFIX)]
    if len(candidates) == 1:
        return path / candidates[0]
    if candidates:
        raise ModelLoadError(f"{path}: has {len(candidates)} {_SUFFIX} files but no {_INDEX_NAME} that says what is in which")
    _refuse_pickled(path, names)
    raise ModelNotFoundError(f"{path}: has neither {_SINGLE_NAME} nor {_INDEX_NAME}")


def _list_folder(path: Path) -> list[str] | None:
    """The sorted names in a folder; None if the path is no folder."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: no such file or folder") from error
    except NotADirectoryError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, such as one with a NUL
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error


def _refuse_pickled(path: Path, names: list[str]) -> None:
    pickled = [name for name in names if name.endswith(_PICKLED_SUFFIXES)]
    if pickled:
        raise UnsupportedModelError(
            f"{path}: has no {_SUFFIX} file but {pickled[0]}: pickled weights can run code and are never read; "
            f"convert the model to safetensors"
        )


def _read_shards(index: Path) -> _Contents:
    """The tensors that an index names; what else its files hold is ignored."""
    data = map_file(index)
    if len(data) > MAX_HEADER_BYTES:
        raise ModelLoadError(f"{index}: must have at most {MAX_HEADER_BYTES} bytes, has {len(data)}")
    weight_map = _parse_object(index, data).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelLoadError(f"{index}: weight_map must be an object, got {reprlib.repr(weight_map)}")
    shards: dict[str, _Contents] = {}
    tensors: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    for name, shard in weight_map.items():
        _check_shard_name(index, name, shard)
        if shard not in shards:
            shards[shard] = _read_shard(index, shard)
        present, rejected = shards[shard]
        if name in present:
            tensors[name] = present[name]
        elif name in rejected:
            refused[name] = rejected[name]
        else:
            raise ModelLoadError(f"{index}: says that tensor {name!r} is in {shard}, which does not have it")
    return tensors, refused


def _check_shard_name(index: Path, name: str, shard: object) -> None:
    """A shard lies beside its index: nothing that leads elsewhere is a shard's name."""
    if not isinstance(shard, str) or not shard.endswith(_SUFFIX) or "/" in shard or "\\" in shard:
        raise ModelLoadError(
            f"{index}: the file of tensor {name!r} must be the plain name of a {_SUFFIX} file, got {reprlib.repr(shard)}"
        )


def _read_shard(index: Path, shard: str) -> _Contents:
    try:
        return _read_file(index.parent / shard)
    except ModelNotFoundError as error:
        raise ModelLoadError(f"{index}: names the file {shard!r}, which is missing") from error


def _read_file(path: Path) -> _Contents:
    """The readable tensors of a file, and why the others are not."""
    data = map_file(path)
    if len(data) < _LENGTH_BYTES:
        raise ModelLoadError(
            f"{path}: the file is truncated: it has {len(data)} bytes, a header's length alone takes {_LENGTH_BYTES}"
        )
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise ModelLoadError(
            f"{path}: not a safetensors file: its header would have {length} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    start = _LENGTH_BYTES + length
    if start > len(data):
        raise ModelLoadError(f"{path}: the file is truncated: its header ends at {start}, the file at {len(data)}")
    header = _parse_object(path, data[_LENGTH_BYTES:start])
    _check_metadata(path, header.pop("__metadata__", {}))
    return _read_entries(path, header, data[start:])


def _parse_object(path: Path, data: NDArray[np.uint8]) -> dict[str, Any]:
    """A JSON object, strictly: no key twice, no NaN, no nesting or number that Python gives up on."""
    try:
        parsed = json.loads(str(data.data, "utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ModelLoadError(f"{path}: its JSON is nested too deep") from error
    except ValueError as error:
        raise ModelLoadError(f"{path}: its JSON is damaged: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelLoadError(f"{path}: its JSON must be an object, got {reprlib.repr(parsed)}")
    return parsed


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {reprlib.repr(twice)} is there twice")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_metadata(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelLoadError(f"{path}: __metadata__ must be an object of strings, got {reprlib.repr(metadata)}")


def _read_entries(path: Path, header: Mapping[str, object], data: NDArray[np.uint8]) -> _Contents:
    tensors: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _check_entry(path, name, entry, len(data))
        if begin < end:
            ranges.append((begin, end, name))
        if dtype not in _TYPES:
            refused[name] = f"has dtype {dtype}; supported are {', '.join(_TYPES)}: convert the model to one of them"
        elif not shape or begin == end:
            refused[name] = f"has the shape {list(shape)}, without a dimension or an element"
        else:
            tensors[name] = Tensor(name, _TYPES[dtype], shape, data[begin:end])
    ranges.sort()
    for (_, end, name), (begin, _, following) in itertools.pairwise(ranges):
        if end > begin:
            raise ModelLoadError(f"{path}: tensors {name!r} and {following!r} overlap")
    return tensors, refused


def _check_entry(path: Path, name: str, entry: object, available: int) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape and byte range of a header's entry, checked against each other and the bytes that are there."""

    def error(message: str) -> ModelLoadError:
        return ModelLoadError(f"{path}: tensor {name!r}: {message}")

    if not isinstance(entry, dict):
        raise error(f"must be an object with dtype, shape and data_offsets, got {reprlib.repr(entry)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise error(f"dtype must be a string, got {reprlib.repr(dtype)}")
    if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise error(f"shape must be a list of at most {_MAX_DIMENSIONS} sizes, got {reprlib.repr(shape)}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise error(f"data_offsets must be two ascending offsets, got {reprlib.repr(offsets)}")
    begin, end = offsets
    if end > available:
        raise error(f"takes bytes {begin} to {end} of the {available} that are there")
    if dtype in _BITS and math.prod(shape) * _BITS[dtype] != 8 * (end - begin):
        raise error(f"{dtype} of shape {shape} does not take the {end - begin} bytes of its data_offsets")
    return dtype, tuple(shape), begin, end


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    """Whether this is a list of integers from 0 to 2^63 - 1; booleans are none."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
