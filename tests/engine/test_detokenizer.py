from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.detokenizer import Detokenizer
from trivium.engine.stop_strings import StopPatterns
from trivium.models.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenizers"
TOKENIZERS = {
    name: Tokenizer.from_gguf(json.loads((GOLDEN / f"{name}.json").read_text())["metadata"])
    for name in ("smollm", "llama", "noprefix")
}
SMOLLM = TOKENIZERS["smollm"]


def ids(text: str) -> list[int]:
    return SMOLLM.encode(text)


@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    tokens=st.lists(st.lists(st.integers(0, 530), max_size=3), max_size=25),
    skip=st.booleans(),
)
def test_equals_decoding_the_whole(name: str, tokens: list[list[int]], skip: bool) -> None:
    detokenizer = Detokenizer(TOKENIZERS[name], skip_special_tokens=skip)
    shown = "".join([detokenizer.push(part) for part in tokens]) + detokenizer.flush()
    assert shown == detokenizer.text == TOKENIZERS[name].decode([i for part in tokens for i in part], skip)
    assert detokenizer.num_tokens == sum(map(len, tokens))
    assert detokenizer.stopped is None


@given(name=st.sampled_from(sorted(TOKENIZERS)), text=st.text())
def test_never_shows_part_of_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    tokens = tokenizer.encode(text)
    whole = tokenizer.decode(tokens, skip_special_tokens=False)
    for token in tokens:
        detokenizer.push([token])
        assert whole.startswith(detokenizer.text)
    assert detokenizer.text == whole


def test_incomplete_character_waits_and_becomes_a_replacement_at_the_end() -> None:
    tokens = ids("ꙮ")
    detokenizer = Detokenizer(SMOLLM)
    assert [detokenizer.push([token]) for token in tokens[:-1]] == [""] * (len(tokens) - 1)
    assert detokenizer.push([], final=True) == "\ufffd"
    complete = Detokenizer(SMOLLM)
    assert [complete.push([token]) for token in tokens][-1] == "ꙮ"


def test_special_tokens() -> None:
    tokens = ids("a<|im_end|>b")
    assert Detokenizer(SMOLLM).push(tokens) == "ab"
    assert Detokenizer(SMOLLM, skip_special_tokens=False).push(tokens) == "a<|im_end|>b"


def test_leading_space_is_stripped_only_at_the_start() -> None:
    tokenizer = TOKENIZERS["llama"]
    detokenizer = Detokenizer(tokenizer)
    tokens = [*tokenizer.encode("<s>"), *tokenizer.encode("Hello world")]
    assert "".join(detokenizer.push([token]) for token in tokens) == "Hello world"


@pytest.mark.parametrize(("include", "text"), [(False, "Hello "), (True, "Hello wor")])
def test_stop_string(include: bool, text: str) -> None:
    detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(["wor", "zzz"]), include_stop=include)
    tokens = ids("Hello world and more")
    shown = "".join(detokenizer.push([token]) for token in tokens) + detokenizer.flush()
    assert shown == detokenizer.text == text
    assert detokenizer.stopped == "wor"


def test_number_of_tokens_up_to_the_stop_string() -> None:
    tokens = ids("one two three four")
    expected = next(n for n in range(len(tokens)) if "two" in SMOLLM.decode(tokens[:n]))
    for step in (1, 2, len(tokens)):
        detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(["two"]))
        for start in range(0, len(tokens), step):
            detokenizer.push(tokens[start : start + step])
        assert detokenizer.num_tokens == expected
        assert detokenizer.text == "one "


def test_held_back_text_comes_at_the_end() -> None:
    detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(["###"]))
    assert detokenizer.push(ids("a ##")) == "a "
    assert detokenizer.flush() == "##"
    assert detokenizer.stopped is None
    assert detokenizer.text == "a ##"


def test_replacement_character_at_the_end_may_complete_a_stop_string() -> None:
    detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(["x\ufffd"]))
    assert detokenizer.push(ids("ax") + ids("ꙮ")[:-1], final=True) == "a"
    assert detokenizer.stopped == "x\ufffd"


def test_after_the_end_tokens_are_ignored() -> None:
    detokenizer = Detokenizer(SMOLLM)
    detokenizer.push(ids("a"), final=True)
    assert detokenizer.push(ids("b")) == detokenizer.flush() == ""
    assert (detokenizer.text, detokenizer.num_tokens) == ("a", 1)


@given(
    text=st.text("ab \nꙮ", max_size=30),
    stops=st.lists(st.text("ab ꙮ", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_stop_strings_do_not_depend_on_the_steps(text: str, stops: list[str], include: bool) -> None:
    tokens = ids(text)
    whole = Detokenizer(SMOLLM, stop=StopPatterns(stops), include_stop=include)
    whole.push(tokens, final=True)
    stepwise = Detokenizer(SMOLLM, stop=StopPatterns(stops), include_stop=include)
    for token in tokens:
        stepwise.push([token])
    stepwise.flush()
    assert (whole.text, whole.stopped, whole.num_tokens) == (stepwise.text, stepwise.stopped, stepwise.num_tokens)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert (whole.stopped is not None) == bool(ends)
    if ends:
        assert text[: min(ends)].startswith(whole.text)
        assert not include or whole.text.endswith(whole.stopped or "")


def test_stop_strings_are_text_until_min_tokens() -> None:
    tokens = ids("one two, one two, one two")
    second = next(n for n in range(len(tokens)) if SMOLLM.decode(tokens[:n]).count("two") == 2)
    for min_tokens, text in ((second, "one two, one "), (second + 1, "one two, one two, one ")):
        detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(["two"]), min_tokens=min_tokens)
        assert "".join(detokenizer.push([token]) for token in tokens) == text
        assert detokenizer.stopped == "two"
    unarmed = Detokenizer(SMOLLM, stop=StopPatterns(["two"]), min_tokens=50)
    assert unarmed.push(tokens[:-1]) + unarmed.push(tokens[-1:], final=True) == "one two, one two, one two"
    assert unarmed.stopped is None


@given(
    text=st.text("ab \nꙮ", max_size=30),
    stops=st.lists(st.text("ab ꙮ", min_size=1, max_size=4), min_size=1, max_size=3),
    min_tokens=st.integers(0, 12),
)
def test_first_match_from_min_tokens_on(text: str, stops: list[str], min_tokens: int) -> None:
    tokens = ids(text)
    detokenizer = Detokenizer(SMOLLM, stop=StopPatterns(stops), min_tokens=min_tokens)
    for token in tokens:
        detokenizer.push([token])
    detokenizer.flush()
    lengths = [len(SMOLLM.decode(tokens[:n]).rstrip("\ufffd")) for n in range(len(tokens) + 1)]
    ends = [end for end in range(1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    ends = [end for end in ends if next(n for n, length in enumerate(lengths) if length >= end) >= min_tokens]
    if not ends:
        assert (detokenizer.text, detokenizer.stopped) == (text, None)
    else:
        stop = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        assert (detokenizer.text, detokenizer.stopped) == (text[: ends[0] - len(stop)], stop)
