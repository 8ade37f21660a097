"""Parts for tests of keyword models: folders with tokens, and SentencePiece files."""

from __future__ import annotations

import struct


def write_tokens(folder, tokens, **texts):
    """A folder with tokens.txt and other text files: `en_phone` is en.phone."""
    lines = [f"{token} {number}" for number, token in enumerate(["<blk>", "<sos/eos>", "<unk>", *tokens])]
    folder.mkdir(exist_ok=True)
    for name, text in {"tokens_txt": "\n".join(lines) + "\n", **texts}.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def sentencepiece_file(pieces, *, kind=1):
    """A SentencePiece model of the pieces, better ones first; `kind` 1 is unigram, 2 bpe."""
    first = [_piece("<unk>", 0.0, 2)]
    return b"".join(first + [_piece(text, -1.0 - rank) for rank, text in enumerate(pieces)]) + _field(2, _field(3, kind))


def _piece(text, score, kind=1):
    return _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _field(3, kind))


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
