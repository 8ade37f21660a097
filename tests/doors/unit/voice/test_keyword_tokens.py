"""How keyword models of sherpa-onnx spell phrases."""

from __future__ import annotations

import sys

import pytest
from sherpa_parts import sentencepiece_file, write_tokens

from trivium.doors.unit.voice.keyword_tokens import KeywordTokens, SpelledPhrase
from trivium.doors.unit.voice.spotter import PhraseError
from trivium.errors import ModelLoadError

PIECES = ["▁HE", "LL", "O", "▁WORLD", "▁", "H", "E", "L", "W", "R", "D", "I", "'", "S", "▁I"]


@pytest.fixture
def bpe(tmp_path):
    """A model for English, in pieces of words."""
    folder = write_tokens(tmp_path, PIECES)
    (folder / "bpe.model").write_bytes(sentencepiece_file(PIECES))
    return KeywordTokens(folder)


def spell(model, text):
    return " ".join(model.spell(text).tokens)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("HELLO WORLD", "▁HE LL O ▁WORLD"),
        ("hello world", "▁HE LL O ▁WORLD"),
        ("  Hello,  World! ", "▁HE LL O ▁WORLD"),
        ("HELLO_WORLD", "▁HE LL O ▁WORLD"),
        ("HELLO", "▁HE LL O"),
        ("it's", None),  # no T
        ("HI'S", "▁ H I ' S"),
    ],
)
def test_pieces_of_words(bpe, text, tokens):
    if tokens is None:
        with pytest.raises(PhraseError, match=r"cannot be written in the model's tokens: it has no '[tT]'"):
            bpe.spell(text)
    else:
        assert spell(bpe, text) == tokens


def test_pieces_that_are_merged(tmp_path):
    folder = write_tokens(tmp_path, PIECES)
    (folder / "bpe.model").write_bytes(sentencepiece_file([*PIECES, "▁H"], kind=2))
    assert spell(KeywordTokens(folder), "hello") == "▁HE LL O"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have letters, got ''"),
        ("...", "must have letters"),
        ("<unk>", "letters, digits, ' and -"),
        ("HELLO @0", "letters, digits, ' and -"),
        ("HELLO #0", "letters, digits, ' and -"),
        ("a/b", "letters, digits, ' and -"),
        ("_", "must have letters"),
        ("你好", "cannot be written in the model's tokens"),
        ("HELLO 你好", "cannot be written in the model's tokens"),
        ("Привет", "cannot be written in the model's tokens"),
    ],
)
@pytest.mark.usefixtures("pinyin")
def test_what_cannot_be_spelled(bpe, text, words):
    with pytest.raises(PhraseError, match=words):
        bpe.spell(text)


def test_chinese_in_characters(tmp_path):
    model = KeywordTokens(write_tokens(tmp_path, ["你", "好", "小"]))
    assert spell(model, "你好, 小") == "你 好 小"


@pytest.mark.parametrize(
    ("tokens", "spelled"),
    [
        (["n", "ǐ", "h", "ǎo", "x", "iǎo", "ài", "t", "óng", "x", "ué"], "n ǐ h ǎo x iǎo ài"),
        (["nǐ", "hǎo", "xiǎo", "ài"], "nǐ hǎo xiǎo ài"),
    ],
)
def test_chinese_in_pinyin(tmp_path, pinyin, tokens, spelled):
    model = KeywordTokens(write_tokens(tmp_path, list(dict.fromkeys(tokens))))
    assert spell(model, "你好小爱") == spelled


@pytest.fixture
def pinyin(monkeypatch):
    """What pypinyin says of a few characters."""
    import types

    sounds = {"你": ("n", "ǐ"), "好": ("h", "ǎo"), "小": ("x", "iǎo"), "爱": ("", "ài")}
    halves = {"".join(sound): sound for sound in sounds.values()}
    package, convert = types.ModuleType("pypinyin"), types.ModuleType("pypinyin.contrib.tone_convert")
    package.pinyin = lambda text: [["".join(sounds[char]), "another"] for char in text]
    convert.to_initials = lambda syllable, strict: halves[syllable][0]
    convert.to_finals_tone = lambda syllable, strict: halves[syllable][1]
    modules = {"pypinyin": package, "pypinyin.contrib": types.ModuleType("contrib"), "pypinyin.contrib.tone_convert": convert}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_chinese_without_what_knows_pinyin(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypinyin", None)
    model = KeywordTokens(write_tokens(tmp_path, ["n", "ǐ"]))
    with pytest.raises(
        PhraseError, match=r"'你好' is Chinese, which needs the package pypinyin \(`pip install 'trivium\[sherpa"
    ):
        model.spell("你好")


def test_words_by_their_sounds_beside_chinese(tmp_path, pinyin):
    lexicon = "HELLO HH AH0 L OW1\nhey HH EY1\nlonely\n"
    tokens = ["HH", "AH0", "L", "OW1", "EY1", "n", "ǐ", "h", "ǎo"]
    model = KeywordTokens(write_tokens(tmp_path, tokens, en_phone=lexicon))
    assert spell(model, "Hello") == "HH AH0 L OW1"
    assert spell(model, "HEY hello") == "HH EY1 HH AH0 L OW1"
    assert spell(model, "hey你好") == "HH EY1 n ǐ h ǎo"
    with pytest.raises(PhraseError, match=r"'trivium' is not in the model's en\.phone"):
        model.spell("hey trivium")


def test_a_folder_with_neither_words_nor_pieces(tmp_path):
    model = KeywordTokens(write_tokens(tmp_path, PIECES))
    with pytest.raises(PhraseError, match=r"'HELLO' needs en\.phone or bpe\.model in the model's folder, or a line"):
        model.spell("HELLO")


def test_phrases_that_the_folder_has_ready(tmp_path):
    keywords = "▁HE LL O ▁WORLD :1.5 #0.35 @HELLO_WORLD\n\nn ǐ h ǎo @你好\n▁HE LL O\nX Y @broken\n"
    model = KeywordTokens(write_tokens(tmp_path, [*PIECES, "n", "ǐ", "h", "ǎo"], keywords_txt=keywords))
    assert model.spell("hello world") == SpelledPhrase(("▁HE", "LL", "O", "▁WORLD"), ":1.5", "#0.35")
    assert spell(model, "你好") == "n ǐ h ǎo"
    assert spell(model, "Hello") == "▁HE LL O"
    with pytest.raises(PhraseError, match="'broken' cannot be written in the model's tokens: it has no 'X'"):
        model.spell("broken")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokens.txt": None}, "the folder has no tokens.txt"),
        ({"tokens.txt": b""}, "tokens.txt has no tokens"),
        ({"tokens.txt": b"\xff 1\n"}, "tokens.txt cannot be read"),
        ({"keywords.txt": b"\xff 1\n"}, "keywords.txt cannot be read"),
        ({"en.phone": b"\xff 1\n"}, "en.phone cannot be read"),
        ({"bpe.model": b"no model"}, "tokenizer.model"),
        ({"bpe.model": sentencepiece_file(PIECES, kind=3)}, "bpe.model must be a unigram or bpe model, got word"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, files, words):
    write_tokens(tmp_path, PIECES)
    for name, data in files.items():
        (tmp_path / name).unlink(missing_ok=True)
        if data is not None:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelLoadError, match=words):
        KeywordTokens(tmp_path)
