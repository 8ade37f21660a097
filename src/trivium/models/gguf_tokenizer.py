"""Tokenizers out of GGUF metadata, as `tokenizers` pipelines.

Keys and token types are those of the GGUF specification (`tokenizer.ggml.*`). A byte-level tokenizer names its pre-tokenizer in
`tokenizer.ggml.pre`; what each name stands for is taken from the tokenizer.json of the models that use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from trivium.config import cache_home
from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.fields import Fields
from trivium.models.sentencepiece_bpe import build_sentencepiece_bpe
from trivium.models.sentencepiece_model import Piece, PieceType
from trivium.models.tokenizer_parts import TokenizerParts, guarded

__all__ = ["convert_gguf"]

# Part of the cache's file names: raise it when a conversion changes.
_CONVERSION = 1

_TOKENS = "tokenizer.ggml.tokens"
_ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "eot_token": "tokenizer.ggml.eot_token_id",
    "eom_token": "tokenizer.ggml.eom_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",  # the specification's own spelling
    "pad_token": "tokenizer.ggml.padding_token_id",
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
}
_END_ROLES = ("eos_token", "eot_token", "eom_token")
# Many files name only the end of text although the model ends its turns with one of these.
_END_OF_TURN_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")
# Others name only the end of turn, and the end of text in another role. Elsewhere (SmolLM2's unknown token) these end nothing.
_END_OF_TEXT_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How a byte-level tokenizer cuts text into words: by `splits`, one after the other, then with GPT-2's rule if `gpt2`."""

    splits: tuple[str, ...] = ()
    digits: bool = False  # each digit on its own
    gpt2: bool = False
    nfc: bool = False
    whole_words: bool = False  # a word that is a token is not built from merges
    add_bos: bool = False  # when the file does not say


def _words(digits: str, symbols_end: str = r"[\r\n]*") -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+" + symbols_end
        + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )  # fmt: skip


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_QWEN2 = _PreTokenizer((_words(r"\p{N}"),), nfc=True)
# "default" has no tokenizer.json: it is what llama.cpp does with files that name no pre-tokenizer.
_PRE_TOKENIZERS = {
    "default": _PreTokenizer(
        (
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        )
    ),
    "gpt-2": _PreTokenizer(gpt2=True),
    "smollm": _PreTokenizer(digits=True, gpt2=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
}


def convert_gguf(metadata: Mapping[str, Any], cache_key: str | None = None) -> TokenizerParts:
    """The tokenizer that GGUF metadata describes; arrays of strings are lists, those of numbers lists or numpy arrays.

    With `cache_key`, which identifies the source, a SentencePiece conversion is kept in the cache folder, since its merges
    take long to find; byte-level tokenizers are built faster from the metadata than from any file. Raises `ModelLoadError`
    for metadata that contradicts itself, `UnsupportedModelError` for kinds that are not supported.
    """
    fields = Fields(metadata, "GGUF metadata")
    kind = fields.text("tokenizer.ggml.model")
    tokens = _strings(fields, _TOKENS)
    if kind == "gpt2":
        pre_name = fields.text("tokenizer.ggml.pre", "default")
        pre = _PRE_TOKENIZERS.get(pre_name)
        if pre is None:
            raise UnsupportedModelError(
                f"GGUF metadata: pre-tokenizer {pre_name!r} is not supported; supported are {', '.join(_PRE_TOKENIZERS)}"
            )
        return _finish(fields, tokens, _byte_level(fields, tokens, pre), add_bos=pre.add_bos, ids={})
    if kind == "llama":
        ids = {role: i for role, i in (("unk_token", 0), ("bos_token", 1), ("eos_token", 2)) if i < len(tokens)}
        unk_id = fields.integer(_ROLES["unk_token"], 0, len(tokens) - 1, ids.get("unk_token"))
        backend = _cached(cache_key, len(tokens), lambda: _sentencepiece(fields, tokens, unk_id))
        return _finish(fields, tokens, backend, add_bos=True, ids=ids)
    raise UnsupportedModelError(f"GGUF metadata: tokenizer {kind!r} is not supported; supported are gpt2, llama")


def _byte_level(fields: Fields, tokens: list[str], pre: _PreTokenizer) -> tokenizers.Tokenizer:
    types = _types(fields, len(tokens))
    vocab = {text: index for index, text in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise ModelLoadError(f"GGUF metadata: {_TOKENS}: {len(tokens) - len(vocab)} tokens are there twice")
    merges: list[Any] = [tuple(merge.split(" ")) for merge in _strings(fields, "tokenizer.ggml.merges")]
    try:
        model = guarded(lambda: models.BPE(vocab, merges, ignore_merges=pre.whole_words), "tokenizer.ggml.merges")
    except ModelLoadError:
        _blame_merge(vocab, merges)
        raise
    backend = tokenizers.Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    if pre.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.gpt2)]
    )
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, types)
    return backend


def _blame_merge(vocab: Mapping[str, int], merges: Sequence[tuple[str, ...]]) -> None:
    """Raise the error that names the merge `tokenizers` would not take."""
    for index, merge in enumerate(merges):
        if len(merge) != 2 or any(part not in vocab for part in (*merge, "".join(merge))):
            raise ModelLoadError(
                f"GGUF metadata: tokenizer.ggml.merges[{index}] must be two tokens with a space between that make a third, "
                f"got {' '.join(merge)!r:.80}"
            ) from None


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    special, added = [], []
    for index, kind in enumerate(types):
        if kind in (PieceType.NORMAL, PieceType.UNUSED, PieceType.BYTE):
            continue
        if not tokens[index]:
            raise ModelLoadError(f"GGUF metadata: {_TOKENS}[{index}] is a special token without a text")
        if kind == PieceType.USER_DEFINED:
            added.append(AddedToken(tokens[index], normalized=False))
        else:
            special.append(AddedToken(tokens[index], normalized=False, special=True))
    backend.add_special_tokens(special)
    backend.add_tokens(added)


def _sentencepiece(fields: Fields, tokens: list[str], unk_id: int) -> tokenizers.Tokenizer:
    types = _types(fields, len(tokens))
    scores = _numbers(fields, "tokenizer.ggml.scores", len(tokens))
    if not all(map(math.isfinite, scores)):
        raise ModelLoadError("GGUF metadata: tokenizer.ggml.scores must be finite numbers")
    return build_sentencepiece_bpe(
        [Piece(text, score, PieceType(kind)) for text, score, kind in zip(tokens, scores, types, strict=True)],
        unk_id=unk_id,
        add_space_prefix=fields.boolean("tokenizer.ggml.add_space_prefix", True),
        remove_extra_whitespaces=fields.boolean("tokenizer.ggml.remove_extra_whitespaces", False),
    )


def _finish(
    fields: Fields, tokens: list[str], backend: tokenizers.Tokenizer, *, add_bos: bool, ids: dict[str, int]
) -> TokenizerParts:
    """Read the ids of the special tokens, over the defaults `ids`, and what goes around a prompt."""
    ids = dict(ids)
    for role, key in _ROLES.items():
        if fields.get(key) is not None:
            ids[role] = fields.integer(key, 0, len(tokens) - 1)
    end_ids = {ids[role] for role in _END_ROLES if role in ids}
    added = backend.get_added_tokens_decoder()
    end_ids |= {i for i, token in added.items() if token.special and token.content in _END_OF_TURN_TEXTS}
    end_ids |= {ids[role] for role in ("bos_token", "pad_token") if role in ids and tokens[ids[role]] in _END_OF_TEXT_TEXTS}
    return TokenizerParts(
        backend,
        vocab_size=len(tokens),
        special_tokens={role: tokens[i] for role, i in ids.items()},
        prefix=_affix(fields, "tokenizer.ggml.add_bos_token", add_bos, ids.get("bos_token")),
        suffix=_affix(fields, "tokenizer.ggml.add_eos_token", False, ids.get("eos_token")),
        end_ids=frozenset(end_ids),
    )


def _affix(fields: Fields, key: str, default: bool, token_id: int | None) -> tuple[int, ...]:
    if not fields.boolean(key, default):
        return ()
    if token_id is not None:
        return (token_id,)
    if fields.get(key) is None:
        return ()
    raise ModelLoadError(f"GGUF metadata: {key} is true, but there is no id of that token")


def _strings(fields: Fields, key: str) -> list[str]:
    values = fields.get(key)
    if not isinstance(values, list) or not values or not all(type(value) is str for value in values):
        raise ModelLoadError(f"{fields.name(key)} must be a non-empty array of strings, got {_describe(values)}")
    return values


def _types(fields: Fields, count: int) -> Sequence[int]:
    key = "tokenizer.ggml.token_type"
    if fields.get(key) is None:
        return [int(PieceType.NORMAL)] * count
    types = _numbers(fields, key, count)
    wrong = set(types) - PieceType._value2member_map_.keys()
    if wrong:
        raise ModelLoadError(f"{fields.name(key)} must hold numbers 1..6, got {min(wrong)}")
    return types


def _numbers(fields: Fields, key: str, count: int) -> list[Any]:
    values = fields.get(key)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    if not isinstance(values, list) or len(values) != count or not all(type(value) in (int, float) for value in values):
        raise ModelLoadError(f"{fields.name(key)} must be an array of {count} numbers, got {_describe(values)}")
    return values


def _describe(values: object) -> str:
    if isinstance(values, list):
        return f"{len(values)} values of the types {sorted({type(value).__name__ for value in values})}"
    return "nothing" if values is None else f"a {type(values).__name__}"


def _cached(cache_key: str | None, size: int, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """The pipeline from the cache if it is there and sound, else built and put there."""
    if cache_key is None:
        return build()
    name = hashlib.sha256(f"{_CONVERSION}:{tokenizers.__version__}:{cache_key}".encode()).hexdigest()
    path = cache_home() / "tokenizers" / f"{name}.json"
    try:
        backend = guarded(lambda: tokenizers.Tokenizer.from_file(str(path)), str(path))
        if backend.get_vocab_size() == size:
            return backend
    except ModelLoadError:
        pass  # not there, or damaged: it is written anew
    backend = build()
    _write(path, backend.to_str())
    return backend


def _write(path: Path, text: str) -> None:
    """Write a whole file or none. A cache folder that cannot be written only costs time at the next start."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
