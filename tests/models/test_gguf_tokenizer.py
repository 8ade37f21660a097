from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_tokenizers import BYTE_LEVEL, SENTENCEPIECE, cases, metadata, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models import gguf_tokenizer
from trivium.models.tokenizer import Tokenizer


@pytest.mark.parametrize("name", BYTE_LEVEL + SENTENCEPIECE)
def test_ids_are_those_of_the_published_form(name: str) -> None:
    for case in cases(name):
        assert tokenizer(name).encode(case["text"]) == case["ids"], case["text"]


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_text_is_that_of_the_published_form(name: str) -> None:
    for case in cases(name):
        assert tokenizer(name).decode(case["ids"]) == case["decoded"]


def test_numpy_arrays_are_as_good_as_lists() -> None:
    values = metadata("llama")
    for key, dtype in (("token_type", np.int32), ("scores", np.float32)):
        values[f"tokenizer.ggml.{key}"] = np.array(values[f"tokenizer.ggml.{key}"], dtype)
    converted = Tokenizer.from_gguf(values)
    assert all(converted.encode(case["text"]) == case["ids"] for case in cases("llama"))


@pytest.mark.parametrize(("alias", "name"), [("llama3", "llama-bpe"), ("llama-v3", "llama-bpe"), ("deepseek-r1-qwen", "qwen2")])
def test_aliases(alias: str, name: str) -> None:
    converted = Tokenizer.from_gguf(metadata(name, pre=alias))
    assert all(converted.encode(case["text"]) == case["ids"] for case in cases(name))


def test_kinds_differ() -> None:
    digits = {name: [len(x) for x in pieces(name, "12345678")] for name in ("smollm", "llama-bpe", "default")}
    assert digits["smollm"] == [1] * 8
    assert max(digits["llama-bpe"]) <= 3
    assert pieces("qwen2", "e\u0301") == pieces("qwen2", "é")
    assert pieces("smollm", "e\u0301") != pieces("smollm", "é")


def pieces(name: str, text: str) -> list[str]:
    converted = Tokenizer.from_gguf(metadata("smollm", pre="default")) if name == "default" else tokenizer(name)
    return [converted.decode([i]) for i in converted.encode(text)]


def test_default_pre_tokenizer_cuts_symbols_from_words() -> None:
    tokens = [*map(chr, range(0x21, 0x7F)), "Ġ", "!a", "a!", "Ġa", "12", "123"]
    values = metadata("gpt-2", tokens=tokens, merges=["! a", "a !", "Ġ a", "1 2", "12 3"], token_type=None, pre=None)
    converted = Tokenizer.from_gguf(values | {"tokenizer.ggml.eos_token_id": 0})
    assert [converted.decode([i]) for i in converted.encode("!a a! a123123")] == ["!", "a", " a", "!", " a", "123", "123"]


def test_special_tokens_are_recognised_longest_first() -> None:
    converted = tokenizer("smollm")
    assert [converted.decode([i], False) for i in converted.encode("<|im_end|>|<|im_end|>")] == ["<|im_end|>|", "<|im_end|>"]


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    converted = tokenizer("smollm")
    ids = converted.encode("<|im_start|><think>hi")
    assert converted.decode(ids) == "<think>hi"
    assert converted.decode(ids, skip_special_tokens=False) == "<|im_start|><think>hi"
    plain = converted.encode("<|im_start|><think>hi", special=False)
    assert converted.token_id("<|im_start|>") not in plain
    assert converted.token_id("<think>") in plain
    assert converted.decode(plain) == "<|im_start|><think>hi"


def test_space_prefix_follows_special_tokens() -> None:
    converted = tokenizer("llama")
    assert converted.decode(converted.encode("a<|begin|>b"), False) == "a<|begin|> b"
    assert converted.encode("a<|begin|>b")[-1] == converted.encode("b")[-1]


@pytest.mark.parametrize(
    ("name", "changes", "begins", "ends"),
    [
        ("llama", {}, True, False),
        ("llama", {"add_bos_token": False, "add_eos_token": True}, False, True),
        ("smollm", {}, False, False),
        ("smollm", {"add_bos_token": True}, True, False),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"bos_token_id": None}, False, False),
    ],
)
def test_begin_and_end_tokens(name: str, changes: dict[str, Any], begins: bool, ends: bool) -> None:
    converted = Tokenizer.from_gguf(metadata(name, **changes))
    ids = converted.encode("Hello")
    bos = [converted.token_id(converted.bos_token or "")] if begins else []
    eos = [converted.token_id(converted.eos_token or "")] if ends else []
    assert converted.encode_prompt("Hello") == [*bos, *ids, *eos]


def test_begin_token_is_not_doubled() -> None:
    converted = tokenizer("llama")
    assert converted.encode_prompt("<s>Hello") == converted.encode_prompt("Hello")


def test_end_tokens() -> None:
    assert Tokenizer.from_gguf(metadata("smollm", bos_token_id=1)).eos_token_ids == {2}
    assert Tokenizer.from_gguf(metadata("smollm", bos_token_id=1, padding_token_id=0)).eos_token_ids == {0, 2}
    assert tokenizer("smollm").eos_token_ids == {0, 2}  # the token that begins a text is <|endoftext|>
    smollm2 = metadata("smollm", bos_token_id=1, unknown_token_id=0, padding_token_id=2)
    assert Tokenizer.from_gguf(smollm2).eos_token_ids == {2}
    values = metadata("smollm", eos_token_id=0, eot_token_id=1, eom_token_id=3)
    assert Tokenizer.from_gguf(values).eos_token_ids == {0, 1, 2, 3}  # 2 is <|im_end|>


def test_roles() -> None:
    values = metadata("smollm", unknown_token_id=1, padding_token_id=2)
    converted = Tokenizer.from_gguf(values)
    assert (converted.bos_token, converted.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert (converted.unk_token, converted.pad_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer("llama").special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'chatglm-bpe' is not supported.*smollm"):
        Tokenizer.from_gguf(metadata("smollm", pre="chatglm-bpe"))
    with pytest.raises(UnsupportedModelError, match=r"'bert' is not supported.*gpt2, llama"):
        Tokenizer.from_gguf(metadata("smollm", model="bert"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("smollm", {"model": None}, r"tokenizer\.ggml\.model must be a string, got nothing"),
        ("smollm", {"model": 3}, r"tokenizer\.ggml\.model must be a string, got 3"),
        ("smollm", {"pre": 3}, r"tokenizer\.ggml\.pre must be a string"),
        ("smollm", {"tokens": None}, r"tokens must be a non-empty array of strings, got nothing"),
        ("smollm", {"tokens": []}, r"tokens must be a non-empty array of strings"),
        ("smollm", {"tokens": "abc"}, r"tokens must be a non-empty array of strings, got a str"),
        ("smollm", {"tokens": ["a", 3]}, r"tokens must be a non-empty array of strings"),
        ("smollm", {"tokens": ["a", "a"], "token_type": [1, 1]}, r"1 tokens are there twice"),
        ("smollm", {"tokens": ["a\ud800"], "token_type": [1]}, r"tokenizer\.ggml\.merges"),
        ("smollm", {"token_type": [1]}, r"token_type must be an array of \d+ numbers, got 1 values"),
        ("smollm", {"token_type": [7] * 523}, r"token_type must hold numbers 1..6, got 7"),
        ("smollm", {"token_type": ["1"] * 523}, r"token_type must be an array of 523 numbers"),
        ("smollm", {"token_type": np.ones((523, 1))}, r"token_type must be an array of 523 numbers, got a ndarray"),
        ("smollm", {"merges": None}, r"merges must be a non-empty array of strings"),
        ("smollm", {"merges": ["ab"]}, r"merges\[0\] must be two tokens with a space between.*got 'ab'"),
        ("smollm", {"merges": ["t h", "a b c"]}, r"merges"),
        ("smollm", {"merges": ["\ua000 b"]}, r"merges\[0\] must be two tokens"),
        ("smollm", {"merges": ["Ă Ă"]}, r"merges\[0\] must be two tokens with a space between that make a third"),
        ("smollm", {"eos_token_id": 523}, r"eos_token_id must be an integer 0..522, got 523"),
        ("smollm", {"bos_token_id": -1}, r"bos_token_id must be an integer 0..522, got -1"),
        ("smollm", {"bos_token_id": "1"}, r"bos_token_id must be an integer"),
        ("smollm", {"add_bos_token": 1}, r"add_bos_token must be true or false"),
        ("smollm", {"add_bos_token": True, "bos_token_id": None}, r"add_bos_token is true, but there is no id"),
        ("llama", {"scores": None}, r"scores must be an array of 480 numbers, got nothing"),
        ("llama", {"scores": [0.0]}, r"scores must be an array of 480 numbers"),
        ("llama", {"scores": [float("nan")] * 480}, r"scores must be finite"),
        ("llama", {"unknown_token_id": 480}, r"unknown_token_id must be an integer 0..479, got 480"),
        ("llama", {"add_space_prefix": "yes"}, r"add_space_prefix must be true or false"),
        ("llama", {"tokens": ["a", "a", "b"], "scores": [0.0] * 3, "token_type": [1] * 3}, r"1 of 3 pieces are there twice"),
        ("llama", {"tokens": ["a", "b" * 513], "scores": [0.0] * 2, "token_type": [1] * 2}, r"at most 512|512 characters"),
    ],
)
def test_hostile_metadata(name: str, changes: dict[str, Any], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_gguf(metadata(name, **changes))


def test_special_token_without_a_text() -> None:
    tokens = ["", *metadata("smollm")["tokenizer.ggml.tokens"][1:]]
    with pytest.raises(ModelLoadError, match=r"tokens\[0\] is a special token without a text"):
        Tokenizer.from_gguf(metadata("smollm", tokens=tokens))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path))
    return tmp_path / "tokenizers"


def refuse_to_convert(*args: object) -> None:
    pytest.fail("converted although the cache has it")


def check_llama(converted: Tokenizer) -> None:
    assert all(converted.encode(case["text"]) == case["ids"] for case in cases("llama"))
    assert converted.encode_prompt("a")[0] == 1
    assert converted.eos_token_ids == {2}


def test_cache_is_written_and_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_llama(Tokenizer.from_gguf(metadata("llama"), cache_key="some file"))
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    monkeypatch.setattr(gguf_tokenizer, "_sentencepiece", refuse_to_convert)
    check_llama(Tokenizer.from_gguf(metadata("llama"), cache_key="some file"))


def test_cache_keeps_sources_apart(cache: Path) -> None:
    for key in ("one", "two"):
        Tokenizer.from_gguf(metadata("llama"), cache_key=key)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["", "{", '{"version":"1.0"}', "other"])
def test_damaged_cache_is_written_anew(cache: Path, damage: str) -> None:
    Tokenizer.from_gguf(metadata("llama"), cache_key="key")
    (path,) = cache.iterdir()
    sound = path.read_text()
    path.write_text(tokenizer("smollm").to_json() if damage == "other" else damage)
    check_llama(Tokenizer.from_gguf(metadata("llama"), cache_key="key"))
    assert path.read_text() == sound


def test_cache_folder_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    check_llama(Tokenizer.from_gguf(metadata("llama"), cache_key="key"))


def test_failed_write_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(gguf_tokenizer.os, "replace", fail)
    check_llama(Tokenizer.from_gguf(metadata("llama"), cache_key="key"))
    assert list(cache.iterdir()) == []


def test_without_a_key_nothing_is_written(cache: Path) -> None:
    Tokenizer.from_gguf(metadata("llama"))
    assert not cache.exists()


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "tekken"])
@given(text=st.text())
def test_byte_level_round_trip(name: str, text: str) -> None:
    converted = tokenizer(name)
    for special in (True, False):
        ids = converted.encode(text, special=special)
        assert converted.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(converted.token_bytes, ids)) == text.encode()


@given(text=st.text())
def test_sentencepiece_round_trip(text: str) -> None:
    text = text.replace("\u2581", "")  # SentencePiece's own sign for a space
    for name, lead in (("llama", b" " if text else b""), ("noprefix", b"")):
        converted = tokenizer(name)
        ids = converted.encode(text, special=False)
        assert converted.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(converted.token_bytes, ids)) == lead + text.encode()
