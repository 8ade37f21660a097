"""Text to token ids and back."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from trivium.errors import EngineError, RequestError, UnsupportedModelError
from trivium.models.tokenizer_parts import TokenizerParts, is_backend_fault

__all__ = ["Tokenizer"]

# `tokenizers` holds the GIL while it encodes one text, but not while it encodes a batch: longer texts go as a batch of one.
_LONG_TEXT = 8192
# It needs hundreds of bytes per character. Huge texts take turns, and what they needed goes back to the system at once.
_HUGE_TEXT = 262_144
_huge = threading.Lock()

_SPACE = "\u2581"  # how SentencePiece writes a space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


class Tokenizer:
    """A model's tokenizer. Immutable after construction; all methods may be called from any thread.

    Decoding is defined on bytes: the bytes of the tokens one after the other, read as UTF-8, each ill-formed part replaced by
    U+FFFD; a SentencePiece tokenizer that puts a space before a text takes one away from the start of the result.

    Attributes:
        vocab_size: number of ids, added tokens included.
        eos_token_ids: ids that end an answer according to the tokenizer's files.
        special_ids: tokens that are recognised in prompts and left out of answers.
        special_tokens: texts by role, "bos_token", "eos_token", …, as chat templates read them.
        is_byte_level: whether tokens are byte strings (GPT-2's alphabet), not SentencePiece's.
        strips_leading_space: whether decoding takes one space away from the start.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Raises `UnsupportedModelError` for kinds of tokenizers whose tokens have no exact bytes (WordPiece and the like)."""
        self._backend = parts.backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._prefix = list(parts.prefix)
        self._suffix = list(parts.suffix)
        self.vocab_size = parts.vocab_size
        self.special_tokens = dict(parts.special_tokens)
        self.eos_token_ids = parts.end_ids
        self.is_byte_level, self.strips_leading_space, self._byte_fallback = _decoder_kind(self._backend)

        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._ids_of_special = {self._added[token_id]: token_id for token_id in self.special_ids}
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._variants = {(True, True): self._backend}
        self._spaces_only_start = '"prepend_scheme":"first"' in _state(self._backend.pre_tokenizer)

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a Hugging Face model folder, or a tokenizer.json.

        In a folder, tokenizer.json is preferred to tokenizer.model (SentencePiece BPE). Raises `ModelNotFoundError` if there is
        neither, `ModelLoadError` for damaged files, `UnsupportedModelError` for other kinds of tokenizers.
        """
        from trivium.models.tokenizer_folder import read_folder

        return cls(read_folder(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], cache_key: str | None = None) -> Tokenizer:
        """Convert the tokenizer in GGUF metadata.

        `cache_key` identifies the file; with it, conversions that take long are kept in the cache folder. Raises
        `ModelLoadError`, `UnsupportedModelError`.
        """
        from trivium.models.gguf_tokenizer import convert_gguf

        return cls(convert_gguf(metadata, cache_key))

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens.get("unk_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens.get("pad_token")

    @property
    def special_texts(self) -> Collection[str]:
        """The texts of the special tokens."""
        return self._ids_of_special.keys()

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the vocabulary, None if there is none."""
        return self._backend.token_to_id(text)

    def token_text(self, token_id: int) -> str:
        """The text of a token as the vocabulary writes it ("Ġthe"), the inverse of `token_id`; "" for an id without one."""
        return (self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None) or ""

    def to_json(self) -> str:
        """The whole tokenizer in the tokenizer.json format."""
        return self._backend.to_str()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text, without begin and end tokens.

        Special tokens in the text become their ids; with `special=False` they are text like any other. Added tokens that are
        not special (`<think>` in many models) are recognised either way. Raises `RequestError` for text that is not valid
        Unicode.
        """
        return self._encode(text, special=special, start=True)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt with the begin and end tokens the model wants, unless the text already has them."""
        ids = self.encode(text)
        if self._prefix and ids[: len(self._prefix)] != self._prefix:
            ids = self._prefix + ids
        if self._suffix and ids[-len(self._suffix) :] != self._suffix:
            ids = ids + self._suffix
        return ids

    def encode_around(self, text: str, plain_starts: Collection[int]) -> list[int]:
        """Like `encode`, but no special token is recognised that begins at one of the character positions `plain_starts`."""
        if not plain_starts:
            return self.encode(text)
        ids: list[int] = []
        trusted = 0  # start of text that is waiting to be encoded with its special tokens
        for start, end, plain in _runs(text, self._ids_of_special, plain_starts):
            if plain:
                ids += self._encode(text[trusted:start], special=True, start=trusted == 0)
                ids += self._encode(text[start:end], special=False, start=start == 0)
                trusted = end
        return ids + self._encode(text[trusted:], special=True, start=trusted == 0)

    def fewest_tokens(self, text: str) -> int:
        """A bound that needs no encoding: no text of this length has fewer tokens, unless its whitespace is stripped."""
        return -(-len(text) // self._longest)

    @functools.cached_property
    def _longest(self) -> int:
        """Bytes of the longest token, and so the most characters that one can stand for."""
        return max((len(self.token_bytes(token_id)) for token_id in range(self.vocab_size)), default=1) or 1

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Ids without a token have no text."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join([self.token_bytes(i) for i in ids if i not in skipped]).decode("utf-8", "replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token (of a special token: its text); empty for an id without a token."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._read_bytes(token_id)
        return data

    def _read_bytes(self, token_id: int) -> bytes:
        text = self._added.get(token_id)
        if text is not None:
            return text.encode()
        text = self._backend.id_to_token(token_id)
        if text is None:
            return b""
        if self.is_byte_level:
            try:
                return bytes([_BYTE_OF_CHAR[char] for char in text])
            except KeyError:
                return text.encode()
        byte = _BYTE_TOKEN.fullmatch(text) if self._byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()

    def _encode(self, text: str, *, special: bool, start: bool) -> list[int]:
        if not isinstance(text, str):
            raise RequestError.out_of_range("prompt", "a string", text)
        backend = self._variants.get((special, start)) or self._make_variant(special, start)
        try:
            if len(text) < _LONG_TEXT:
                return list(backend.encode(text, add_special_tokens=False).ids)
            with _huge if len(text) > _HUGE_TEXT else contextlib.nullcontext():
                ids = list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)  # without offsets
                if len(text) > _HUGE_TEXT:
                    _give_back_memory()
            return ids
        except BaseException as error:
            if not is_backend_fault(error):
                raise
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise RequestError(
                    "prompt must be valid Unicode, got a lone surrogate", field="prompt", allowed="valid Unicode"
                ) from error
            raise EngineError(f"the tokenizer failed: {error}") from error

    def _make_variant(self, special: bool, start: bool) -> tokenizers.Tokenizer:
        """A copy of the pipeline that leaves special tokens alone, or does not take its text for the start of one.

        A copy, because switching the pipeline itself back and forth would not be thread safe.
        """
        if not start and not self._spaces_only_start:
            return self._variants.get((special, True)) or self._make_variant(special, True)
        data = json.loads(self._backend.to_str())
        if not start:
            _stop_prepending(data["pre_tokenizer"])
        variant = tokenizers.Tokenizer.from_str(json.dumps(data))
        variant.encode_special_tokens = not special
        self._variants[special, start] = variant
        return variant


def _give_back_memory() -> None:
    """Have glibc return what has been freed, which it keeps for each thread; other C libraries do so by themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _runs(text: str, special: Mapping[str, int], plain_starts: Collection[int]) -> Iterable[tuple[int, int, bool]]:
    """Cut a text at its special tokens: (start, end, whether a special token's text in it is to be plain)."""
    pattern = re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)))
    begin = position = 0
    plain = False
    while match := pattern.search(text, position):
        if match.start() in plain_starts:
            plain = True
            position = match.start() + 1
            continue
        yield begin, match.start(), plain
        begin = position = match.end()
        plain = False
    yield begin, len(text), plain


def _state(component: Any) -> str:
    """The JSON of a part of a pipeline, "null" if it has none."""
    return "null" if component is None else component.__getstate__().decode()


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[bool, bool, bool]:
    """(byte level, strips one leading space, has byte tokens) of a pipeline's decoder."""
    decoder = json.loads(_state(backend.decoder)) or {}
    steps: Sequence[dict[str, Any]] = decoder.get("decoders", [decoder])
    kinds = {step.get("type"): step for step in steps}
    model = type(backend.model).__name__
    if model == "BPE" and "ByteLevel" in kinds:
        return True, False, False
    metaspace = kinds.get("Metaspace")
    replaces = kinds.get("Replace", {}).get("pattern") == {"String": _SPACE}
    if model in ("BPE", "Unigram") and (metaspace or replaces):
        strips = "Strip" in kinds or (metaspace is not None and metaspace.get("prepend_scheme", "always") != "never")
        return False, strips, "ByteFallback" in kinds
    raise UnsupportedModelError(
        f"tokenizer: {model} with the decoder {', '.join(map(str, kinds))}; supported are byte-level BPE, and BPE or Unigram "
        "as SentencePiece writes them"
    )


def _stop_prepending(pre_tokenizer: dict[str, Any]) -> None:
    for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
