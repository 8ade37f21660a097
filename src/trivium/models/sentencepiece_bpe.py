"""SentencePiece's BPE as a `tokenizers` pipeline, built from pieces with scores (GGUF metadata, tokenizer.model files)."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from trivium.errors import ModelLoadError
from trivium.models.sentencepiece_model import Piece, PieceType
from trivium.models.tokenizer_parts import guarded

__all__ = ["build_sentencepiece_bpe"]

_SPACE = "\u2581"
# Every way to cut a piece in two is looked at, so long pieces cost the square of their length.
_MAX_PIECE_CHARS = 512
# Hundreds of bytes each; models have a few per piece, but pieces can be made that can all be cut anywhere.
_MAX_MERGES = 1 << 23


def build_sentencepiece_bpe(
    pieces: Sequence[Piece],
    *,
    unk_id: int | None,
    add_space_prefix: bool,
    charsmap: bytes = b"",
    remove_extra_whitespaces: bool = False,
) -> tokenizers.Tokenizer:
    """The pipeline: normalise, put a space before the text and after each special token, merge pieces, best score first.

    Characters without a piece become bytes if there are byte pieces, else the unknown token. Raises `ModelLoadError` for
    duplicate or oversized pieces.
    """
    vocab = {piece.text: index for index, piece in enumerate(pieces)}
    if len(vocab) < len(pieces):
        raise ModelLoadError(f"tokenizer: {len(pieces) - len(vocab)} of {len(pieces)} pieces are there twice")
    model = guarded(
        lambda: models.BPE(
            vocab,
            _merges(pieces),
            unk_token=None if unk_id is None else pieces[unk_id].text,
            fuse_unk=True,
            byte_fallback=any(piece.type == PieceType.BYTE for piece in pieces),
        ),
        "tokenizer",
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = _normalizer(add_space_prefix, charsmap, remove_extra_whitespaces)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    special = (PieceType.CONTROL, PieceType.UNKNOWN)
    backend.add_special_tokens([AddedToken(p.text, normalized=False, special=True) for p in pieces if p.type in special])
    backend.add_tokens([AddedToken(p.text, normalized=False) for p in pieces if p.type == PieceType.USER_DEFINED])
    return backend


def _normalizer(add_space_prefix: bool, charsmap: bytes, remove_extra_whitespaces: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if charsmap:
        steps.append(guarded(lambda: normalizers.Precompiled(charsmap), "tokenizer: its normalisation rules are damaged"))
    if remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if add_space_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    return normalizers.Sequence(steps)


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, in the order in which SentencePiece merges: best score of the result first.

    SentencePiece takes the leftmost of several cuts with the same score, for which a ranked list has no words; the cut with the
    longer left half comes first because text is merged from the left.
    """
    scores = {piece.text: piece.score for piece in pieces if piece.type == PieceType.NORMAL}
    ranked: list[tuple[float, int, str, str]] = []
    for text, score in scores.items():
        if len(text) > _MAX_PIECE_CHARS:
            raise ModelLoadError(f"tokenizer: a piece may have {_MAX_PIECE_CHARS} characters, got {len(text)}")
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in scores and right in scores:
                ranked.append((-score, -cut, left, right))
        if len(ranked) > _MAX_MERGES:
            raise ModelLoadError(f"tokenizer: its pieces may be made of others in {_MAX_MERGES} ways, these are in more")
    ranked.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in ranked]
