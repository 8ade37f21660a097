"""Reader of GGUF files, versions 2 and 3.

Layout, from the GGUF specification (docs/gguf.md of the ggml project): magic, version, number of tensors, number of
metadata entries; the entries (key, value type, value); the tensor table (name, dimensions with the contiguous one
first, element type, offset); padding to the alignment; the tensors' bytes. All numbers are little endian here.

A file is untrusted input: every count is compared with the bytes that are left before anything is allocated for it,
and whatever is wrong ends in a `ModelLoadError` that names the file and the fault.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.mapping import MAX_HEADER_BYTES, map_file

__all__ = ["GGUFFile"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 65_536  # of metadata, and of the tensor table
_MAX_NAME_BYTES = 65_535
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Metadata value types (enum gguf_metadata_value_type).
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
# The least bytes an element of an array takes.
_LEAST_BYTES = {**{kind: layout.size for kind, layout in _NUMBERS.items()}, _BOOL: 1, _STRING: 8, _ARRAY: 12}

# Element types of ggml.h that Trivium does not run; the number tells them, the name is for the error.
_UNSUPPORTED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
_TYPES = {int(kind): kind for kind in TensorType}


class GGUFFile:
    """An open GGUF file: its metadata and its tensors, which are views of the mapped file.

    `metadata` maps keys to int, float, bool, str, `list[str]` for arrays of strings, numpy arrays (copies) for arrays
    of numbers and booleans, and lists for arrays of arrays. Bytes of a string value that are not UTF-8 become U+FFFD,
    so that every string can be passed on; keys and tensor names must be UTF-8.

    `tensors` maps names to `Tensor`, in the file's order; shapes are row-major, the reverse of how GGUF writes them.
    """

    def __init__(self, path: Path, version: int, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.tensors = tensors

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file and read its header.

        Raises `ModelNotFoundError` if there is no such file, `UnsupportedModelError` for a big endian, split or
        version 1 file and for tensor types that are not in `TensorType`, `ModelLoadError` for everything else that is
        wrong with the file.
        """
        path = Path(path)
        data = map_file(path)
        cursor = _Cursor(path, data)
        version, num_tensors, num_entries = _read_preamble(cursor)
        metadata = _read_metadata(cursor, num_entries)
        _refuse_split(cursor, metadata)
        entries = _read_tensor_table(cursor, num_tensors)
        tensors = _place_tensors(cursor, entries, _alignment(cursor, metadata))
        return cls(path, version, metadata, tensors)

    def tensor(self, name: str) -> Tensor:
        """The tensor, or `ModelLoadError` naming it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelLoadError(f"{self.path}: there is no tensor {name!r}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def close(self) -> None:
        """Forget the tensors. The file is unmapped once the last `Tensor` or array taken from here is gone, too."""
        self.tensors = {}


class _TensorEntry(NamedTuple):
    """A row of the tensor table; `shape` is row-major, `offset` counts from the start of the tensors' bytes."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    size: int


class _Cursor:
    """A position in the header; every step is checked against the bytes that are left."""

    __slots__ = ("buffer", "data", "end", "path", "position")

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.buffer = data.data
        self.position = 0
        self.end = min(len(data), MAX_HEADER_BYTES)

    def error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {message}")

    def unsupported(self, message: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.path}: {message}")

    def require(self, count: int, what: str) -> None:
        """Check that `count` more bytes are there."""
        left = self.end - self.position
        if count <= left:
            return
        if self.end < len(self.data):
            raise self.error(f"{what} does not end within the first {self.end} bytes, the most that a header may take")
        raise self.error(f"the file is truncated: {what} needs {count} bytes at {self.position}, there are {left}")

    def skip(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they start."""
        self.require(count, what)
        start = self.position
        self.position = start + count
        return start

    def number(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack_from(self.buffer, self.skip(layout.size, what))[0]

    def name(self, what: str) -> str:
        """A key or tensor name."""
        length = self.number(_U64, what)
        if length > _MAX_NAME_BYTES:
            raise self.error(f"{what} must have at most {_MAX_NAME_BYTES} bytes, got {length}")
        start = self.skip(length, what)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {bytes(self.buffer[start : start + length])!r}") from error

    def strings(self, count: int, what: str) -> list[str]:
        """`count` string values. A vocabulary and its merges come to 10^5 or 10^6 of them, hence the local names."""
        buffer, position, end = self.buffer, self.position, self.end
        unpack = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        for _ in range(count):
            start = position + 8
            if start > end:
                break
            stop = start + unpack(buffer, position)[0]
            if stop > end:
                break
            append(str(buffer[start:stop], "utf-8", "replace"))
            position = stop
        self.position = position
        if len(strings) < count:
            self.skip(self.number(_U64, what), what)  # raises: the loop ended on what does not fit
        return strings


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata entries."""
    start = cursor.skip(len(_MAGIC), "the magic")
    magic = bytes(cursor.buffer[start : start + len(_MAGIC)])
    if magic != _MAGIC:
        raise cursor.error(f"not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}")
    version = cursor.number(_U32, "the version")
    # A big endian version has its small number in the high bytes.
    if version and not version & 0xFFFF:
        raise cursor.unsupported("a big endian GGUF file; convert the model to a little endian one")
    if version not in _VERSIONS:
        raise cursor.unsupported(f"GGUF version must be one of {_VERSIONS}, got {version}")
    num_tensors = cursor.number(_U64, "the number of tensors")
    num_entries = cursor.number(_U64, "the number of metadata entries")
    # The least an entry can take: key length, type and one byte; name length, number of dimensions, one dimension,
    # type and offset.
    for what, count, least in (("metadata entries", num_entries, 13), ("tensors", num_tensors, 32)):
        if count > _MAX_ENTRIES:
            raise cursor.error(f"the number of {what} must be at most {_MAX_ENTRIES}, got {count}")
        cursor.require(count * least, f"a header with {count} {what}")
    return version, num_tensors, num_entries


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.name(f"the key of metadata entry {index}")
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} is there twice")
        what = f"the value of {key!r}"
        metadata[key] = _read_value(cursor, cursor.number(_U32, f"the type of {key!r}"), what)
    return metadata


def _read_value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind], what)
    if kind == _STRING:
        return cursor.strings(1, what)[0]
    if kind == _BOOL:
        return bool(_read_booleans(cursor, 1, what)[0])
    if kind == _ARRAY:
        return _read_array(cursor, what, 1)
    raise cursor.error(f"{what} has an unknown type, {kind}")


def _read_array(cursor: _Cursor, what: str, depth: int) -> list[Any] | NDArray[Any]:
    if depth > _MAX_ARRAY_DEPTH:
        raise cursor.error(f"{what} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
    kind = cursor.number(_U32, what)
    count = cursor.number(_U64, what)
    if kind not in _LEAST_BYTES:
        raise cursor.error(f"{what} is an array of an unknown type, {kind}")
    cursor.require(count * _LEAST_BYTES[kind], f"{what}, an array of {count} elements,")
    if kind == _STRING:
        return cursor.strings(count, what)
    if kind == _ARRAY:
        return [_read_array(cursor, what, depth + 1) for _ in range(count)]
    if kind == _BOOL:
        return _read_booleans(cursor, count, what)
    layout = _NUMBERS[kind]
    start = cursor.skip(count * layout.size, what)
    # A copy, so that metadata keeps no mapping alive.
    return np.array(cursor.data[start : cursor.position].view(np.dtype(layout.format)))


def _read_booleans(cursor: _Cursor, count: int, what: str) -> NDArray[np.bool_]:
    start = cursor.skip(count, what)
    values = cursor.data[start : cursor.position]
    if count and values.max() > 1:
        raise cursor.error(f"{what} holds a boolean that is neither 0 nor 1: {values.max()}")
    return values.astype(np.bool_)


def _refuse_split(cursor: _Cursor, metadata: dict[str, Any]) -> None:
    parts = _integer(cursor, metadata, "split.count", 1)
    if parts > 1:
        raise cursor.unsupported(
            f"one of {parts} parts of a split GGUF model; merge them first: "
            f"llama-gguf-split --merge FIRST_PART.gguf MERGED.gguf"
        )


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = _integer(cursor, metadata, "general.alignment", _DEFAULT_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment must be a power of two, got {alignment}")
    return alignment


def _integer(cursor: _Cursor, metadata: dict[str, Any], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise cursor.error(f"{key} must be an integer, got a {type(value).__name__}")
    return value


def _read_tensor_table(cursor: _Cursor, count: int) -> list[_TensorEntry]:
    entries: list[_TensorEntry] = []
    names: set[str] = set()
    for index in range(count):
        entry = _read_tensor_entry(cursor, index)
        if entry.name in names:
            raise cursor.error(f"tensor {entry.name!r} is there twice")
        names.add(entry.name)
        entries.append(entry)
    return entries


def _read_tensor_entry(cursor: _Cursor, index: int) -> _TensorEntry:
    name = cursor.name(f"the name of tensor {index}")
    what = f"tensor {name!r}"
    num_dimensions = cursor.number(_U32, what)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"{what} must have 1 to {_MAX_DIMENSIONS} dimensions, got {num_dimensions}")
    dimensions = [cursor.number(_U64, what) for _ in range(num_dimensions)]
    kind = _tensor_type(cursor, what, cursor.number(_U32, what))
    offset = cursor.number(_U64, what)
    if not all(dimensions):
        raise cursor.error(f"{what} has a dimension of zero: {dimensions}")
    if dimensions[0] % kind.block_size:
        raise cursor.error(f"{what} has rows of {dimensions[0]} elements, not a multiple of {kind.name}'s {kind.block_size}")
    size = math.prod(dimensions) // kind.block_size * kind.block_bytes
    return _TensorEntry(name, kind, tuple(reversed(dimensions)), offset, size)


def _tensor_type(cursor: _Cursor, what: str, number: int) -> TensorType:
    if number in _TYPES:
        return _TYPES[number]
    name = _UNSUPPORTED_TYPES.get(number, f"number {number}, unknown to this version")
    supported = ", ".join(kind.name for kind in TensorType)
    raise cursor.unsupported(
        f"{what} has element type {name}; supported are {supported}. "
        f"Use another quantisation of the model, such as Q4_K_M or Q8_0"
    )


def _place_tensors(cursor: _Cursor, entries: list[_TensorEntry], alignment: int) -> dict[str, Tensor]:
    """Find every tensor's bytes and check that they are aligned, inside the file and nobody else's."""
    start = -(-cursor.position // alignment) * alignment
    left = max(len(cursor.data) - start, 0)
    for name, _, _, offset, size in entries:
        if offset % alignment:
            raise cursor.error(f"tensor {name!r} is at offset {offset}, not a multiple of the alignment {alignment}")
        if offset + size > left:
            raise cursor.error(f"tensor {name!r} takes bytes {offset} to {offset + size} of the {left} that are there")
    ordered = sorted(entries, key=lambda entry: entry.offset)
    for entry, following in itertools.pairwise(ordered):
        if entry.offset + entry.size > following.offset:
            raise cursor.error(f"tensors {entry.name!r} and {following.name!r} overlap")
    data = cursor.data[start:]
    return {name: Tensor(name, kind, shape, data[offset : offset + size]) for name, kind, shape, offset, size in entries}
