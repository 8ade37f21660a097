"""`KeywordTokens`: how a keyword model of sherpa-onnx spells phrases, from the files in its folder."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from trivium.doors.unit.voice.spotter import PhraseError
from trivium.errors import ModelLoadError
from trivium.models.sentencepiece_bpe import build_sentencepiece_bpe
from trivium.models.sentencepiece_model import SentencePieceModel, read_sentencepiece_model

__all__ = ["KeywordTokens", "SpelledPhrase"]

_SPACE = "\u2581"  # which pieces of words begin with
_CHINESE = re.compile(r"([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+)")
_OPTION = re.compile(r"[:#]\d+(\.\d+)?")
_LEXICON = "en.phone"  # words and their sounds

Spell = Callable[[str], "list[str]"]


@dataclass(frozen=True, slots=True)
class SpelledPhrase:
    """A phrase in a model's tokens. `score` and `threshold` are those of the folder's keywords.txt, if it has the phrase."""

    tokens: tuple[str, ...]
    score: str = ""
    threshold: str = ""


class KeywordTokens:
    """Spells a phrase as the folder's `keywords.txt` does, if that has it; else Chinese in characters or in pinyin, other words
    by `en.phone` or by `bpe.model`, whichever is there."""

    def __init__(self, folder: Path) -> None:
        """Raises `ModelLoadError` for a folder without tokens.txt, and for files that cannot be read."""
        self._tokens = {line[0] for line in _lines(folder / "tokens.txt") if len(line) == 2}
        if not self._tokens:
            raise ModelLoadError("tokens.txt has no tokens")
        self._ready = _read_keywords(folder / "keywords.txt")
        self._spell_words = self._words_speller(folder)
        letters = "".join(token for token in self._tokens if not token.startswith("<"))
        self._is_upper, self._is_lower = letters.isupper(), letters.islower()

    def spell(self, text: str) -> SpelledPhrase:
        """Raises `PhraseError` for what cannot be written in the model's tokens."""
        phrase = _clean(text)
        if not phrase:
            raise PhraseError(f"a wake word must have letters, got {text!r:.80}")
        ready = self._ready.get(_key(phrase))
        if ready is None:
            ready = SpelledPhrase(tuple(token for run in _CHINESE.split(phrase) for token in self._spell_run(run.strip())))
        missing = [token for token in ready.tokens if token not in self._tokens]
        if missing or not ready.tokens:
            lacking = f"it has no {missing[0]!r}" if missing else "it has none of them"
            raise PhraseError(f"the wake word {text!r:.80} cannot be written in the model's tokens: {lacking}")
        return ready

    def _spell_run(self, run: str) -> list[str]:
        """Tokens of a piece of a phrase that is Chinese, or has nothing of it."""
        if not run:
            return []
        if not _CHINESE.fullmatch(run):
            return self._spell_words(run)
        if all(char in self._tokens for char in run):
            return list(run)
        return self._spell_pinyin(run)

    def _spell_pinyin(self, run: str) -> list[str]:
        """Initials and finals, as most models have them, or whole syllables."""
        try:
            pypinyin: Any = importlib.import_module("pypinyin")
            convert: Any = importlib.import_module("pypinyin.contrib.tone_convert")
        except ImportError:
            raise PhraseError(
                f"the wake word {run!r} is Chinese, which needs the package pypinyin (`pip install 'trivium[sherpa]'`), "
                "or a line in the model's keywords.txt"
            ) from None
        syllables = [readings[0] for readings in pypinyin.pinyin(run)]
        if all(syllable in self._tokens for syllable in syllables):
            return syllables
        halves = [half(s, strict=False) for s in syllables for half in (convert.to_initials, convert.to_finals_tone)]
        return [half for half in halves if half]

    def _words_speller(self, folder: Path) -> Spell:
        if (folder / _LEXICON).is_file():
            sounds = {line[0]: line[1:] for line in _lines(folder / _LEXICON) if len(line) > 1}
            return lambda run: [sound for word in run.split() for sound in self._sounds(word, sounds)]
        if (folder / "bpe.model").is_file():
            split = _pieces_splitter(folder / "bpe.model")
            return lambda run: split(self._cased(run))
        return self._spell_nothing

    def _spell_nothing(self, run: str) -> list[str]:
        raise PhraseError(
            f"the wake word {run!r:.80} needs {_LEXICON} or bpe.model in the model's folder, or a line in its keywords.txt"
        )

    def _sounds(self, word: str, sounds: dict[str, list[str]]) -> list[str]:
        for spelling in (word, word.upper(), word.lower()):
            if spelling in sounds:
                return sounds[spelling]
        raise PhraseError(f"the wake word {word!r:.80} is not in the model's {_LEXICON}")

    def _cased(self, text: str) -> str:
        """A text in the letters that the tokens have."""
        return text.upper() if self._is_upper else text.lower() if self._is_lower else text


def _clean(text: str) -> str:
    """Words with one space between them. Raises `PhraseError` for what is no word."""
    phrase = " ".join(re.sub(r"[\s,.!?_\u3001\u3002]+", " ", unicodedata.normalize("NFKC", text)).split())
    if not re.fullmatch(r"[\w' -]*", phrase):
        raise PhraseError(f"a wake word may have letters, digits, ' and -, got {text!r:.80}")
    return phrase


def _key(phrase: str) -> str:
    return phrase.replace(" ", "").casefold()


def _lines(path: Path) -> Iterable[list[str]]:
    """The words of each line. Raises `ModelLoadError`."""
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise ModelLoadError(f"the folder has no {path.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error}") from error


def _read_keywords(path: Path) -> dict[str, SpelledPhrase]:
    """What a folder has ready: tokens, then perhaps `:score`, `#threshold` and `@phrase`."""
    ready = {}
    for line in _lines(path) if path.is_file() else ():
        options = {word[0]: word for word in line if _OPTION.fullmatch(word) or (word[0] == "@" and len(word) > 1)}
        tokens = tuple(word for word in line if word not in options.values())
        phrase = options.get("@", "@" + "".join(tokens).replace(_SPACE, " "))[1:].replace("_", " ")
        ready[_key(phrase)] = SpelledPhrase(tokens, options.get(":", ""), options.get("#", ""))
    return ready


def _pieces_splitter(path: Path) -> Spell:
    """What cuts text as the SentencePiece model does. Raises `ModelLoadError`."""
    try:
        model = read_sentencepiece_model(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"bpe.model cannot be read: {error}") from error
    if model.kind == "unigram":
        unigram = tokenizers.Tokenizer(_unigram(model))
        return lambda run: unigram.encode(_SPACE + run.replace(" ", _SPACE)).tokens
    if model.kind == "bpe":
        bpe = build_sentencepiece_bpe(model.pieces, unk_id=model.unk_id, add_space_prefix=True)
        return lambda run: bpe.encode(run, add_special_tokens=False).tokens
    raise ModelLoadError(f"bpe.model must be a unigram or bpe model, got {model.kind}")


def _unigram(model: SentencePieceModel) -> models.Unigram:
    return models.Unigram([(piece.text, piece.score) for piece in model.pieces], max(model.unk_id, 0), False)
