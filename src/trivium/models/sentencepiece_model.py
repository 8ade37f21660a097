"""Reader of SentencePiece's tokenizer.model files.

The file is one protocol buffer message, ModelProto of sentencepiece_model.proto; the wire format (a key of field number and
wire type, then a varint, 4, 8 or length-prefixed bytes) is described in the protocol buffers' encoding guide.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from trivium.errors import ModelLoadError

__all__ = ["Piece", "PieceType", "SentencePieceModel", "read_sentencepiece_model"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_PIECES = 4_000_000


class PieceType(IntEnum):
    """Kinds of tokens, numbered alike in SentencePiece (ModelProto.SentencePiece.Type) and GGUF (tokenizer.ggml.token_type)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A token: its text with U+2581 for spaces, its score (higher merges first), its type."""

    text: str
    score: float
    type: PieceType


@dataclass(slots=True)
class SentencePieceModel:
    """The fields of a ModelProto that encoding depends on, with that format's defaults. An id of -1 means none."""

    pieces: list[Piece]
    model_type: int = 1
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""  # compiled normalisation rules
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    whitespace_as_suffix: bool = False

    @property
    def kind(self) -> str:
        """The name of the model type."""
        return {1: "unigram", 2: "bpe", 3: "word", 4: "char"}.get(self.model_type, f"type {self.model_type}")


# Field numbers -> attributes.
_TRAINER_FIELDS = {3: "model_type", 24: "whitespace_as_suffix", 40: "unk_id", 41: "bos_id", 42: "eos_id", 43: "pad_id"}
_NORMALIZER_FIELDS = {2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}
_BOOLEANS = {"whitespace_as_suffix", "add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"}


def read_sentencepiece_model(data: bytes) -> SentencePieceModel:
    """Parse a ModelProto. Raises `ModelLoadError` for whatever is wrong with it."""
    model = SentencePieceModel([])
    for number, value in _fields(data):
        if number == 1:
            model.pieces.append(_read_piece(_as_bytes(value, "a piece"), len(model.pieces)))
            if len(model.pieces) > _MAX_PIECES:
                raise ModelLoadError(f"tokenizer.model: more than {_MAX_PIECES} pieces")
        elif number in (2, 3):
            _read_spec(model, _as_bytes(value, "a specification"), _TRAINER_FIELDS if number == 2 else _NORMALIZER_FIELDS)
    if not model.pieces:
        raise ModelLoadError("tokenizer.model: there are no pieces")
    for name in ("unk_id", "bos_id", "eos_id", "pad_id"):
        if getattr(model, name) >= len(model.pieces):
            raise ModelLoadError(f"tokenizer.model: {name} must be below {len(model.pieces)}, got {getattr(model, name)}")
    return model


def _read_piece(data: bytes, index: int) -> Piece:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(data):
        if number == 1:
            try:
                text = _as_bytes(value, "a piece's text").decode()
            except UnicodeDecodeError as error:
                raise ModelLoadError(f"tokenizer.model: piece {index} is not UTF-8") from error
        elif number == 2:
            raw = _as_bytes(value, "a piece's score")
            score = struct.unpack("<f", raw)[0] if len(raw) == 4 else math.nan
        elif number == 3:
            kind = _as_int(value, "a piece's type")
    if not text or not math.isfinite(score) or kind not in PieceType._value2member_map_:
        raise ModelLoadError(
            f"tokenizer.model: piece {index} must have a text, a finite score and a type 1..6, got {text!r}, {score}, {kind}"
        )
    return Piece(text, score, PieceType(kind))


def _read_spec(model: SentencePieceModel, data: bytes, names: dict[int, str]) -> None:
    for number, value in _fields(data):
        name = names.get(number)
        if name is None:
            continue
        if name == "charsmap":
            model.charsmap = _as_bytes(value, name)
        elif name in _BOOLEANS:
            setattr(model, name, _as_int(value, name) != 0)
        else:
            setattr(model, name, _as_int(value, name))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of one message: integers of varints, bytes of everything else."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(data, position)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ModelLoadError(f"tokenizer.model: wire type {wire_type} at byte {position}; it is not a SentencePiece model")
        if size > end - position:
            raise ModelLoadError(
                f"tokenizer.model: truncated: a field of {size} bytes at byte {position}, {end - position} are left"
            )
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position` (7 bits a byte, lowest first) and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ModelLoadError("tokenizer.model: truncated within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ModelLoadError(f"tokenizer.model: a number of more than 10 bytes before byte {position}")


def _as_bytes(value: int | bytes, what: str) -> bytes:
    if isinstance(value, int):
        raise ModelLoadError(f"tokenizer.model: {what} must be bytes, got a number")
    return value


def _as_int(value: int | bytes, what: str) -> int:
    """A varint as the int32 it stands for: negative numbers are written as 64-bit two's complement."""
    if not isinstance(value, int):
        raise ModelLoadError(f"tokenizer.model: {what} must be a number, got bytes")
    return value - 2**64 if value >= 2**63 else value
