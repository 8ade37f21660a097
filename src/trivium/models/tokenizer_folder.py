"""Tokenizers of Hugging Face model folders: tokenizer.json or tokenizer.model, and the small files beside them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from trivium.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from trivium.models.families.family import MAX_VOCAB
from trivium.models.sentencepiece_bpe import build_sentencepiece_bpe
from trivium.models.sentencepiece_model import SentencePieceModel, read_sentencepiece_model
from trivium.models.tokenizer_parts import TokenizerParts, guarded

__all__ = ["read_folder", "read_json_object"]

_MAX_FILE_BYTES = 512 * 1024 * 1024
_ROLES = (
    "bos_token",
    "eos_token",
    "eot_token",
    "eom_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_MAX_ID_DIGITS = 18  # Python's int() refuses thousands of them
_END_ROLES = ("eos_token", "eot_token", "eom_token")


def read_folder(path: str | os.PathLike[str]) -> TokenizerParts:
    """Read a folder, or a tokenizer.json with the files beside it; see `Tokenizer.from_folder`."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    json_file = path / "tokenizer.json" if path.is_dir() else path
    config = _Config.read(folder)
    if json_file.is_file():
        return _from_json(json_file, config)
    if (folder / "tokenizer.model").is_file():
        return _from_sentencepiece(folder / "tokenizer.model", config)
    raise ModelNotFoundError(f"{path}: there is neither tokenizer.json nor tokenizer.model")


@dataclass(frozen=True, slots=True)
class _Config:
    """tokenizer_config.json, special_tokens_map.json and added_tokens.json together.

    `roles` are the special tokens' texts by role; `added` maps ids to texts of added tokens; `special` holds the texts that are
    special, whether they are in the vocabulary or not.
    """

    values: dict[str, Any]
    roles: dict[str, str]
    added: dict[int, str]
    special: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> _Config:
        values = read_json_object(folder / "tokenizer_config.json")
        special_map = read_json_object(folder / "special_tokens_map.json")
        roles = _roles(special_map) | _roles(values)
        special = set(roles.values())
        added: dict[int, str] = {}
        for key, entry in _object(values.get("added_tokens_decoder"), "added_tokens_decoder").items():
            added[_id(key, "added_tokens_decoder")] = text = _text(entry, "added_tokens_decoder")
            if isinstance(entry, dict) and entry.get("special") is True:
                special.add(text)
        for text, token_id in read_json_object(folder / "added_tokens.json").items():
            added[_id(token_id, "added_tokens.json")] = _text(text, "added_tokens.json")
        for source in (values, special_map):
            listed = source.get("additional_special_tokens")
            special |= {_text(entry, "additional_special_tokens") for entry in (listed if isinstance(listed, list) else [])}
        return cls(values, roles, added, frozenset(special))

    @property
    def is_llama(self) -> bool:
        """Whether the tokenizer is of Llama's class; Llama 3 has the general one."""
        return "Llama" in str(self.values.get("tokenizer_class", ""))


def _from_json(path: Path, config: _Config) -> TokenizerParts:
    backend = guarded(lambda: tokenizers.Tokenizer.from_str(_read(path).decode()), str(path))
    if config.is_llama:  # the class has rules of its own, over the file's
        prefix, suffix = _affixes(backend, config, {"bos_token": "<s>", "eos_token": "</s>"} | config.roles)
    else:
        prefix, suffix = guarded(lambda: _around(backend), str(path))
    return _finish(backend, config, config.roles, prefix, suffix)


def _from_sentencepiece(path: Path, config: _Config) -> TokenizerParts:
    model = read_sentencepiece_model(_read(path))
    if model.kind != "bpe" or model.whitespace_as_suffix or not model.escape_whitespaces:
        raise UnsupportedModelError(
            f"{path}: a SentencePiece {model.kind} model"
            f"{' with spaces after words' if model.whitespace_as_suffix else ''}; supported is bpe"
        )
    backend = build_sentencepiece_bpe(
        model.pieces,
        unk_id=model.unk_id if model.unk_id >= 0 else None,
        add_space_prefix=model.add_dummy_prefix,
        charsmap=model.charsmap,
        remove_extra_whitespaces=model.remove_extra_whitespaces,
    )
    for token_id, text in sorted(config.added.items()):
        if backend.token_to_id(text) is None or token_id < len(model.pieces):
            backend.add_tokens([AddedToken(text, normalized=False)])
        if backend.token_to_id(text) != token_id:
            raise ModelLoadError(
                f"{path}: added token {text!r} should have the id {token_id}, gets {backend.token_to_id(text)}"
            )
    roles = _piece_roles(model) | config.roles
    prefix, suffix = _affixes(backend, config, roles)
    return _finish(backend, config, roles, prefix, suffix)


def _finish(
    backend: tokenizers.Tokenizer, config: _Config, roles: dict[str, str], prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> TokenizerParts:
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for text in config.special:
        token = known.get(text, AddedToken(text, normalized=False))
        # A token that is in no vocabulary would get an id the model does not have.
        if not token.special and backend.token_to_id(text) is not None:
            token.special = True
            backend.add_tokens([token])
    # A few tokens may have ids of any size, and everything that is kept per id would be as large.
    vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if vocab_size > MAX_VOCAB:
        raise ModelLoadError(f"tokenizer: ids of tokens must be below {MAX_VOCAB}, got {vocab_size - 1}")
    ends = (backend.token_to_id(roles[role]) for role in _END_ROLES if role in roles)
    return TokenizerParts(
        backend,
        vocab_size=vocab_size,
        special_tokens=roles,
        prefix=prefix,
        suffix=suffix,
        end_ids=frozenset(token_id for token_id in ends if token_id is not None),
    )


def _around(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text, found by giving it one."""
    inner = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a").ids
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    return (), ()


def _affixes(backend: tokenizers.Tokenizer, config: _Config, roles: dict[str, str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tokenizer_config.json, or else the tokenizer's class, wants before and after a text."""
    # Llama's tokenizer class puts a begin token before a text unless told otherwise; ERNIE's has its template do it.
    prefix = _affix(backend, config.values.get("add_bos_token", config.is_llama), roles.get("bos_token"))
    suffix = _affix(backend, config.values.get("add_eos_token", False), roles.get("eos_token"))
    return prefix, suffix


def _affix(backend: tokenizers.Tokenizer, wanted: object, text: str | None) -> tuple[int, ...]:
    token_id = backend.token_to_id(text) if wanted and text is not None else None
    return () if token_id is None else (token_id,)


def _piece_roles(model: SentencePieceModel) -> dict[str, str]:
    ids = {"unk_token": model.unk_id, "bos_token": model.bos_id, "eos_token": model.eos_id, "pad_token": model.pad_id}
    return {role: model.pieces[i].text for role, i in ids.items() if i >= 0}


def _roles(config: dict[str, Any]) -> dict[str, str]:
    """Special tokens' texts by role."""
    return {role: _text(config[role], role) for role in _ROLES if config.get(role) is not None}


def _text(value: object, name: str) -> str:
    """A token is written as its text or as an object with a "content"."""
    content = value.get("content") if isinstance(value, dict) else value
    if not isinstance(content, str) or not content:
        raise ModelLoadError(f"tokenizer configuration: {name} must be a string or an object with a content, got {value!r:.80}")
    return content


def _id(value: object, name: str) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_ID_DIGITS:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelLoadError(f"tokenizer configuration: ids of {name} must be integers >= 0, got {value!r:.80}")
    return value


def _object(value: object, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelLoadError(f"{name} must be an object, got a {type(value).__name__}")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file. Raises `ModelLoadError` if it holds anything else."""
    if not path.is_file():
        return {}
    try:
        return _object(json.loads(_read(path)), str(path))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not JSON: {error}") from error


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise ModelLoadError(f"{path}: a tokenizer file may have {_MAX_FILE_BYTES} bytes, got {size}")
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from error
