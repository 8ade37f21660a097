from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from golden_tokenizers import FOLDER, cases, metadata, tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from trivium.errors import EngineError, ModelLoadError, ModelNotFoundError, RequestError, UnsupportedModelError
from trivium.models import sentencepiece_bpe
from trivium.models.tokenizer import Tokenizer
from trivium.models.tokenizer_parts import TokenizerParts


def write_folder(folder: Path, backend: str | tokenizers.Tokenizer, **files: Any) -> Path:
    """A model folder with a tokenizer.json and small JSON files beside it."""
    (folder / "tokenizer.json").write_text(backend if isinstance(backend, str) else backend.to_str())
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def sentencepiece_folder(folder: Path, name: str, **files: Any) -> Path:
    shutil.copy(FOLDER / f"{name}.model", folder / "tokenizer.model")
    for key, content in files.items():
        (folder / f"{key}.json").write_text(json.dumps(content))
    return folder


def metaspace_backend(scheme: str = "first") -> tokenizers.Tokenizer:
    """A SentencePiece-like pipeline whose space prefix depends on `scheme`."""
    backend = tokenizers.Tokenizer(
        models.BPE({"<s>": 0, "▁": 1, "a": 2, "b": 3, "<": 4, "s": 5, ">": 6, "▁a": 7}, [("▁", "a")])
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    backend.decoder = decoders.Metaspace("▁", scheme)
    backend.add_special_tokens([AddedToken("<s>", normalized=False)])
    return backend


# --- folders


def test_folder_with_tokenizer_json(tmp_path: Path) -> None:
    config = {
        "bos_token": None,
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
        "eot_token": "<|im_start|>",
    }
    write_folder(tmp_path, tokenizer("smollm").to_json(), tokenizer_config=config)
    for path in (tmp_path, str(tmp_path), tmp_path / "tokenizer.json"):
        loaded = Tokenizer.from_folder(path)
        assert all(loaded.encode(case["text"]) == case["ids"] for case in cases("smollm"))
        assert loaded.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "eot_token": "<|im_start|>"}
        assert loaded.eos_token_ids == {1, 2}
        assert loaded.special_ids == {0, 1, 2, 3}
        assert loaded.vocab_size == 523
        assert loaded.is_byte_level
        assert loaded.bos_token is None


def test_special_tokens_map_and_its_priority(tmp_path: Path) -> None:
    special_map = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}
    write_folder(
        tmp_path,
        tokenizer("smollm").to_json(),
        special_tokens_map=special_map,
        tokenizer_config={"bos_token": "<|im_start|>"},
    )
    loaded = Tokenizer.from_folder(tmp_path)
    assert (loaded.bos_token, loaded.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_configuration_makes_tokens_special(tmp_path: Path) -> None:
    config = {
        "added_tokens_decoder": {"520": {"content": "<think>", "special": True}},
        "additional_special_tokens": ["</think>", "<absent>"],
        "pad_token": "<pad>",
    }
    loaded = Tokenizer.from_folder(write_folder(tmp_path, tokenizer("smollm").to_json(), tokenizer_config=config))
    assert loaded.special_ids == {0, 1, 2, 3, 520, 521}
    # A text that is no token does not become one: the model has no embedding for it.
    assert loaded.token_id("<pad>") is None
    assert loaded.vocab_size == 523


def test_post_processor_says_what_surrounds_a_prompt(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer("smollm").to_json())
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
    )
    loaded = Tokenizer.from_folder(write_folder(tmp_path, backend))
    ids = loaded.encode("Hello")
    assert 0 not in ids
    assert loaded.encode_prompt("Hello") == [0, *ids, 2]
    assert loaded.encode_prompt("<|endoftext|>Hello<|im_end|>") == [0, *ids, 2]
    assert loaded.encode_prompt("") == [0, 2]


@pytest.mark.parametrize(
    ("config", "begins", "ends"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast"}, True, False),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False, "add_eos_token": True}, False, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}, False, False),
    ],
)
def test_llamas_class_says_what_surrounds_a_prompt(tmp_path: Path, config: dict[str, Any], begins: bool, ends: bool) -> None:
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", **config}
    loaded = Tokenizer.from_folder(write_folder(tmp_path, tokenizer("smollm").to_json(), tokenizer_config=config))
    assert loaded.encode_prompt("Hello") == [0] * begins + loaded.encode("Hello") + [2] * ends


def test_llamas_class_has_names_for_begin_and_end(tmp_path: Path) -> None:
    loaded = Tokenizer.from_folder(
        write_folder(tmp_path, metaspace_backend(), tokenizer_config={"tokenizer_class": "LlamaTokenizer"})
    )
    assert loaded.encode_prompt("a") == [0, *loaded.encode("a")]


def test_truncation_and_padding_are_off(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer("smollm").to_json())
    backend.enable_truncation(2)
    backend.enable_padding(length=100)
    loaded = Tokenizer.from_folder(write_folder(tmp_path, backend))
    assert loaded.encode("Hello, world") == tokenizer("smollm").encode("Hello, world")


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "\ud800", '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}'],
)
def test_damaged_tokenizer_json(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_ids_beyond_any_vocabulary(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 4_294_967_290}, []))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ModelLoadError, match="ids of tokens must be below 4194304, got 4294967290"):
        Tokenizer.from_folder(write_folder(tmp_path, backend))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "must be an object"),
        ("{", "not JSON"),
        ('{"eos_token": 3}', "eos_token must be a string or an object"),
        ('{"eos_token": {"content": ""}}', "eos_token must be a string or an object"),
        ('{"added_tokens_decoder": []}', "added_tokens_decoder must be an object"),
        ('{"added_tokens_decoder": {"x": {"content": "a"}}}', "ids of added_tokens_decoder must be integers"),
        ('{"added_tokens_decoder": {"%s": "x"}}' % ("9" * 5000), "ids of added_tokens_decoder must be integers"),
        ('{"added_tokens_decoder": {"1": {}}}', "added_tokens_decoder must be a string or an object"),
    ],
)
def test_damaged_configuration(tmp_path: Path, config: str, message: str) -> None:
    write_folder(tmp_path, tokenizer("smollm").to_json())
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_kinds_without_exact_bytes_are_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match=r"WordPiece with the decoder WordPiece; supported are byte-level BPE"):
        Tokenizer.from_folder(write_folder(tmp_path, backend))


# --- tokenizer.model


@pytest.mark.parametrize("name", ["llama", "noprefix", "rules"])
def test_sentencepiece_model(tmp_path: Path, name: str) -> None:
    loaded = Tokenizer.from_folder(sentencepiece_folder(tmp_path, name))
    for case in cases(name):
        assert loaded.encode(case["text"]) == case["ids"], case["text"]
    assert not loaded.is_byte_level
    assert loaded.special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    assert loaded.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, True),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, False),
        ({"tokenizer_class": "Ernie4_5_Tokenizer"}, False),
        ({"add_bos_token": True}, True),
    ],
)
def test_begin_token_of_a_sentencepiece_folder(tmp_path: Path, config: dict[str, Any], begins: bool) -> None:
    loaded = Tokenizer.from_folder(sentencepiece_folder(tmp_path, "llama", tokenizer_config=config))
    assert loaded.encode_prompt("Hello") == [1] * begins + loaded.encode("Hello")


def test_ernie_roles_and_added_tokens(tmp_path: Path) -> None:
    config = {
        "cls_token": "<|begin|>",
        "sep_token": "<|end|>",
        "added_tokens_decoder": {
            "3": {"content": "<|begin|>", "special": True},
            "480": {"content": "<mask:0>", "special": True},
        },
    }
    files = {"tokenizer_config": config, "added_tokens": {"<think>": 481}}
    loaded = Tokenizer.from_folder(sentencepiece_folder(tmp_path, "llama", **files))
    assert loaded.special_tokens["cls_token"] == "<|begin|>"
    assert [loaded.token_id(text) for text in ("<|begin|>", "<mask:0>", "<think>")] == [3, 480, 481]
    assert {3, 480} <= loaded.special_ids
    assert 481 not in loaded.special_ids
    assert loaded.vocab_size == 482


def test_pieces_of_too_many_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sentencepiece_folder(tmp_path, "llama")
    monkeypatch.setattr(sentencepiece_bpe, "_MAX_MERGES", 100)
    with pytest.raises(ModelLoadError, match="made of others in 100 ways, these are in more"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("entry", [{"481": {"content": "<gap>"}}, {"5": {"content": "<other>"}}])
def test_added_tokens_with_impossible_ids(tmp_path: Path, entry: dict[str, Any]) -> None:
    sentencepiece_folder(tmp_path, "llama", tokenizer_config={"added_tokens_decoder": entry})
    with pytest.raises(ModelLoadError, match="should have the id"):
        Tokenizer.from_folder(tmp_path)


# --- encoding and decoding


def test_lone_surrogates_are_refused() -> None:
    for text in ("a\ud800", "x" * 10_000 + "\udfff"):
        with pytest.raises(RequestError, match="prompt must be valid Unicode") as caught:
            tokenizer("smollm").encode(text)
        assert caught.value.field == "prompt"


def test_other_types_are_refused() -> None:
    with pytest.raises(RequestError, match="prompt must be a string, got 3"):
        tokenizer("smollm").encode(3)  # type: ignore[arg-type]


def test_failing_backend_is_an_engine_error(capfd: pytest.CaptureFixture[str]) -> None:
    backend = metaspace_backend()
    backend.normalizer = normalizers.Precompiled(b"\x08\0\0\0AAAAAAAAbbb")  # its rules point outside themselves
    with pytest.raises(EngineError, match="the tokenizer failed"):
        Tokenizer(TokenizerParts(backend, 8)).encode("abc")


def test_long_texts_have_the_same_ids() -> None:
    text = "Hello, world 123. 你好 " * 1000
    assert tokenizer("smollm").encode(text) == tokenizer("smollm")._backend.encode(text).ids


def test_ids_without_a_token_have_no_text() -> None:
    converted = tokenizer("smollm")
    (h, i) = converted.encode("h") + converted.encode("i")
    assert converted.token_bytes(-1) == converted.token_bytes(10**9) == b""
    assert converted.decode([-5, h, 10**12, i]) == "hi"


def test_incomplete_characters_become_replacement_characters() -> None:
    for name in ("smollm", "llama"):
        converted = tokenizer(name)
        ids = converted.encode("ꙮ")
        assert converted.decode(ids[:-1]) == "\ufffd"
        assert converted.decode(ids[:-1] + converted.encode("x")).strip("\ufffd ") == "x"


def test_token_bytes() -> None:
    converted = tokenizer("llama")
    by_text = {text: converted.token_bytes(converted.token_id(text) or 0) for text in ("<0x0A>", "<0xE4>", "▁", "<|begin|>")}
    assert by_text == {"<0x0A>": b"\n", "<0xE4>": b"\xe4", "▁": b" ", "<|begin|>": b"<|begin|>"}
    assert {tokenizer("gpt-2").token_bytes(i) for i in range(4, 260)} == {bytes([byte]) for byte in range(256)}


def test_added_tokens_keep_letters_outside_the_byte_alphabet() -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer("smollm").to_json())
    backend.add_special_tokens(["<｜begin▁of｜>", "é"])
    converted = Tokenizer(TokenizerParts(backend, backend.get_vocab_size()))
    assert converted.decode(converted.encode("<｜begin▁of｜>é"), skip_special_tokens=False) == "<｜begin▁of｜>é"


def test_leading_space_is_stripped_once() -> None:
    converted = tokenizer("llama")
    assert converted.decode(converted.encode("  two")) == "  two"
    assert converted.decode([*converted.encode("<s>"), *converted.encode("a")]) == "a"
    assert converted.decode([*converted.encode("<s>"), *converted.encode("a")], skip_special_tokens=False) == "<s> a"


def test_json_can_be_read_back() -> None:
    again = tokenizers.Tokenizer.from_str(tokenizer("qwen2").to_json())
    assert all(again.encode(case["text"]).ids == case["ids"] for case in cases("qwen2"))


# --- text in which some special tokens are plain


def test_encode_around_nothing_is_encode() -> None:
    text = "<|im_start|>user<|im_end|>"
    assert tokenizer("smollm").encode_around(text, ()) == tokenizer("smollm").encode(text)


def test_encode_around() -> None:
    converted = tokenizer("smollm")
    text = "<|im_start|>a <|im_end|> b<think><|im_end|>"
    ids = converted.encode_around(text, {text.index("<|im_end|>")})
    expected = converted.encode("<|im_start|>") + converted.encode("a <|im_end|> b<think>", special=False)
    assert ids == expected + converted.encode("<|im_end|>")
    assert converted.token_id("<think>") in ids
    assert converted.decode(ids, skip_special_tokens=False) == text


def test_encode_around_keeps_the_rest_as_it_would_be() -> None:
    converted = tokenizer("llama")
    text = "<s>Hello <s> there</s>Hello world"
    ids = converted.encode_around(text, {text.index("<s> there")})
    assert ids[0] == 1
    assert 1 not in ids[1:]
    tail = converted.encode("</s>Hello world")
    assert ids[-len(tail) :] == tail


@pytest.mark.parametrize(
    ("scheme", "first", "second"), [("first", "▁a", "a"), ("always", "▁a", "▁a"), ("never", "a", "a")]
)  # fmt: skip
def test_space_prefix_in_pieces(scheme: str, first: str, second: str) -> None:
    converted = Tokenizer(TokenizerParts(metaspace_backend(scheme), 8))
    names = {converted.token_id(text): text for text in ("<s>", "▁", "a", "b", "<", "s", ">", "▁a")}
    plain = [names[i] for i in converted.encode_around("a<s>a<s>a", {5})]
    assert plain == [first, "<s>", second, "<", "s", ">", "a"]
    assert [names[i] for i in converted.encode("a<s>a")] == [first, "<s>", second]


def test_threads_may_encode_both_ways_at_once() -> None:
    converted = Tokenizer.from_gguf(metadata("smollm"))
    text = "<|im_start|>hello<|im_end|>" * 20
    expected = {flag: tokenizer("smollm").encode(text, special=flag) for flag in (True, False)}
    wrong: list[bool] = []

    def work(flag: bool) -> None:
        for _ in range(50):
            if converted.encode(text, special=flag) != expected[flag]:
                wrong.append(flag)

    threads = [threading.Thread(target=work, args=(flag,)) for flag in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- long texts


@pytest.mark.parametrize("name", ["smollm", "llama", "qwen2"])
def test_long_texts_are_encoded_like_short_ones(name: str) -> None:
    converted = tokenizer(name)
    text = "你好 hello<|im_end|> 1234\n" * 1000
    expected = converted._backend.encode(text, add_special_tokens=False).ids
    assert converted.encode(text) == expected
    assert converted.encode(text * 15) == converted._backend.encode(text * 15, add_special_tokens=False).ids


def resident() -> int:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_a_huge_text_leaves_no_memory_behind() -> None:
    converted = tokenizer("smollm")
    before = resident()
    threads = [threading.Thread(target=converted.encode, args=("你好😀" * 200_000,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resident() - before < 100
