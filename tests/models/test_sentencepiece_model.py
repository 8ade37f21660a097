from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from golden_tokenizers import FOLDER, metadata
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.sentencepiece_model import PieceType, read_sentencepiece_model
from trivium.models.tokenizer import Tokenizer

LLAMA = (FOLDER / "llama.model").read_bytes()


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    return field(1, field(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, kind))


def test_fields_of_a_trained_model() -> None:
    model = read_sentencepiece_model(LLAMA)
    expected = metadata("llama")
    assert [p.text for p in model.pieces] == expected["tokenizer.ggml.tokens"]
    assert [p.score for p in model.pieces] == expected["tokenizer.ggml.scores"]
    assert [p.type for p in model.pieces] == expected["tokenizer.ggml.token_type"]
    assert (model.kind, model.unk_id, model.bos_id, model.eos_id, model.pad_id) == ("bpe", 0, 1, 2, -1)
    assert (model.add_dummy_prefix, model.remove_extra_whitespaces, model.escape_whitespaces) == (True, False, True)
    assert model.charsmap == b""
    rules = read_sentencepiece_model((FOLDER / "rules.model").read_bytes())
    assert rules.charsmap
    assert rules.remove_extra_whitespaces


def test_defaults_and_unknown_fields() -> None:
    unknown = field(99, 7) + field(98, b"x") + varint(97 << 3 | 1) + b"8 bytes."
    model = read_sentencepiece_model(unknown + piece(b"a") + piece(b"b") + piece(b"c", kind=4))
    assert [p.type for p in model.pieces] == [PieceType.NORMAL, PieceType.NORMAL, PieceType.USER_DEFINED]
    assert (model.kind, model.unk_id, model.bos_id, model.eos_id, model.pad_id) == ("unigram", 0, 1, 2, -1)


def test_negative_ids_are_none() -> None:
    trainer = field(2, field(41, -1) + field(42, -1) + field(3, 2))
    model = read_sentencepiece_model(piece(b"a") + trainer)
    assert (model.bos_id, model.eos_id, model.kind) == (-1, -1, "bpe")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no pieces"),
        (b"\x0a", "truncated within a number"),
        (b"\x0a\x05ab", "truncated: a field of 5 bytes"),
        (b"\xff" * 11, "more than 10 bytes"),
        (b"\x0b", "wire type 3"),
        (field(1, 5), "a piece must be bytes"),
        (field(1, field(1, b"\xff")), "piece 0 is not UTF-8"),
        (field(1, field(1, 5)), "a piece's text must be bytes"),
        (field(1, b""), "piece 0 must have a text"),
        (piece(b"a", float("nan")), "piece 0 must have a text, a finite score"),
        (piece(b"a", kind=7), "type 1..6, got 'a', 0.0, 7"),
        (field(1, field(1, b"a") + field(2, b"12")), "finite score"),
        (field(1, field(1, b"a") + field(3, b"x")), "a piece's type must be a number"),
        (piece(b"a") + field(2, field(40, 1)), "unk_id must be below 1, got 1"),
        (piece(b"a") + field(2, 1), "a specification must be bytes"),
        (piece(b"a") + field(3, field(2, 1)), "charsmap must be bytes"),
    ],
)
def test_hostile_files(data: bytes, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read_sentencepiece_model(data)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (field(3, 1), "unigram"),
        (field(3, 3), "word"),
        (field(3, 9), "type 9"),
        (field(3, 2) + field(24, 1), "spaces after words"),
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, trainer: bytes, message: str) -> None:
    data = piece(b"<unk>", kind=2) + piece(b"<s>", kind=3) + piece(b"</s>", kind=3) + field(2, trainer)
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(UnsupportedModelError, match=f"{message}.*supported is bpe"):
        Tokenizer.from_folder(tmp_path)


def test_damaged_normalisation_rules(tmp_path: Path) -> None:
    data = (
        piece(b"<unk>", kind=2)
        + piece(b"<s>", kind=3)
        + piece(b"</s>", kind=3)
        + field(2, field(3, 2))
        + field(3, field(2, b"xx"))
    )
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelLoadError, match="normalisation rules are damaged"):
        Tokenizer.from_folder(tmp_path)


@given(st.integers(0, len(LLAMA) - 1), st.binary(min_size=1, max_size=4))
def test_changed_bytes_never_surprise(position: int, change: bytes) -> None:
    with contextlib.suppress(ModelLoadError):
        read_sentencepiece_model(LLAMA[:position] + change + LLAMA[position + len(change) :])


@given(st.integers(0, len(LLAMA) - 1))
def test_truncated_files_never_surprise(length: int) -> None:
    with contextlib.suppress(ModelLoadError):
        read_sentencepiece_model(LLAMA[:length])
