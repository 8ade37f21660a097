from __future__ import annotations

import json
import os
import random
import re
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from trivium import thread_stack
from trivium.engine.sampling import GuidedOptions
from trivium.errors import ConfigError, RequestError
from trivium.parsing import structured
from trivium.parsing.structured import GuidedCompiler, GuidedMatcher

ENDS = (0, 1)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST = 'start: "(" [item ("," item)*] ")"\nitem: NUMBER | start\nNUMBER: /[0-9]{1,3}/'
GBNF = 'root ::= greeting " " ("you" | "all")\ngreeting ::= "hi" | "hey"'
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])"


class SmallTokenizer:
    """A byte-level BPE with two end tokens, <end> (0) and <turn> (1), and a special token that ends nothing (2)."""

    def __init__(self) -> None:
        self.inner = Tokenizer(models.BPE())
        self.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<end>", "<turn>", "<other>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self.inner.train_from_iterator(
            ['{"name": "Ann", "age": 21, "tags": ["a", null]}', "2024-05 hey you yes no"] * 5, trainer
        )

    @property
    def vocab_size(self) -> int:
        return int(self.inner.get_vocab_size())

    def to_json(self) -> str:
        return str(self.inner.to_str())


TOKENIZER = SmallTokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size + 37  # more logits than tokens, and not a multiple of 32
COMPILER = GuidedCompiler(TOKENIZER, VOCAB_SIZE, ENDS)


def token(text: str) -> int:
    (only,) = TOKENIZER.inner.encode(text).ids
    return int(only)


def allowed(matcher: GuidedMatcher) -> list[int]:
    row: NDArray[np.uint32] = np.full(-(-VOCAB_SIZE // 32), 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(row)
    return [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]


def generate(matcher: GuidedMatcher, rng: random.Random, limit: int = 400) -> str | None:
    """Text of randomly drawn allowed tokens, None if it did not end."""
    tokens: list[int] = []
    for _ in range(limit):
        choices = allowed(matcher)
        assert choices
        assert matcher.is_finished() <= (set(choices) <= set(ENDS))
        drawn = rng.choice(choices)
        assert matcher.accept(drawn)
        if drawn in ENDS:
            assert matcher.is_finished()
            assert set(allowed(matcher)) == set(ENDS)
            return str(TOKENIZER.inner.decode(tokens))
        tokens.append(drawn)
    return None


def consume(matcher: GuidedMatcher, text: str) -> None:
    for encoded in TOKENIZER.inner.encode(text).ids:
        assert matcher.accept(encoded), text


def check_person(text: str) -> None:
    value = json.loads(text)
    assert set(value) <= {"name", "age", "tags"}
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 8
    assert type(value["age"]) is int
    assert 0 <= value["age"] <= 150
    tags = value.get("tags", [])
    assert len(tags) <= 3
    assert all(tag in ("a", "b", None) for tag in tags)


def check_list(text: str) -> None:
    assert re.fullmatch(r"[(),0-9]+", text)
    value = json.loads(re.sub(r"\b0+(?=\d)", "", text).replace("(", "[").replace(")", "]"))
    assert isinstance(value, list)


KINDS: dict[str, tuple[GuidedOptions, Any]] = {
    "json": (GuidedOptions(json=PERSON), check_person),
    "json text": (GuidedOptions(json=json.dumps(PERSON)), check_person),
    "json_object": (GuidedOptions(json_object=True), lambda text: isinstance(json.loads(text), dict) or pytest.fail(text)),
    "regex": (GuidedOptions(regex=DATE), lambda text: re.fullmatch(DATE, text) or pytest.fail(text)),
    "choice": (
        GuidedOptions(choice=("yes", "yes, you", "", "ja\n\"'\\")),
        lambda text: text in ("yes", "yes, you", "", "ja\n\"'\\") or pytest.fail(text),
    ),
    "lark": (GuidedOptions(grammar=LIST), check_list),
    "gbnf": (GuidedOptions(grammar=GBNF), lambda text: text in ("hi you", "hi all", "hey you", "hey all") or pytest.fail(text)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_random_draws_under_the_mask_are_valid(kind: str, seed: int) -> None:
    options, check = KINDS[kind]
    text = generate(COMPILER.compile(options), random.Random(seed))
    if text is not None:
        check(text)


@pytest.mark.parametrize("kind", KINDS)
def test_random_draws_come_to_an_end(kind: str) -> None:
    options, check = KINDS[kind]
    texts = [generate(COMPILER.compile(options), random.Random(seed)) for seed in range(15)]
    ended = [text for text in texts if text is not None]
    assert len(ended) >= 5
    for text in ended:
        check(text)


@settings(max_examples=30, deadline=None)
@given(choice=st.lists(st.text(max_size=6), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_any_strings_can_be_choices(choice: list[str], seed: int) -> None:
    options = GuidedOptions(choice=tuple(choice))
    assert generate(COMPILER.compile(options), random.Random(seed)) in choice
    for answer in choice:
        matcher = COMPILER.compile(options)
        consume(matcher, answer)
        assert set(ENDS) <= set(allowed(matcher))


def test_valid_json_is_accepted_with_and_without_white_space() -> None:
    for indent in (None, 2, 8):
        matcher = COMPILER.compile(GuidedOptions(json=PERSON))
        consume(matcher, json.dumps({"name": "Ann", "age": 21, "tags": ["a", None]}, indent=indent))
        assert matcher.is_finished()


def test_white_space_cannot_go_on_for_ever() -> None:
    matcher = COMPILER.compile(GuidedOptions(json_object=True))
    consume(matcher, "{" + " " * 32)
    assert not matcher.accept(token(" "))


def test_end_tokens_only_when_the_answer_may_be_complete() -> None:
    matcher = COMPILER.compile(GuidedOptions(regex="ab?"))
    a, b = map(token, "ab")
    assert allowed(matcher) == [a]
    assert not matcher.accept(ENDS[0])
    assert not matcher.is_finished()
    assert matcher.accept(a)
    assert sorted(allowed(matcher)) == sorted([*ENDS, b])
    assert not matcher.is_finished()
    assert matcher.accept(b)
    assert matcher.is_finished()
    assert sorted(allowed(matcher)) == list(ENDS)
    assert matcher.accept(ENDS[1])
    assert not matcher.accept(ENDS[1])


def test_special_and_missing_tokens_are_never_allowed() -> None:
    matcher = COMPILER.compile(GuidedOptions(regex=r"(.|\n)*"))
    choices = allowed(matcher)
    assert 2 not in choices
    assert max(choices) < TOKENIZER.vocab_size
    assert set(ENDS) <= set(choices)


def test_refused_tokens_change_nothing() -> None:
    matcher = COMPILER.compile(GuidedOptions(regex="ab"))
    a, b = map(token, "ab")
    for wrong in (b, 2, -1, VOCAB_SIZE, 10**9):
        assert not matcher.accept(wrong)
    assert matcher.accept(a)
    assert allowed(matcher) == [b]


def test_fewer_logits_than_tokens() -> None:
    compiler = GuidedCompiler(TOKENIZER, 100, [0])
    row = np.zeros(4, np.uint32)
    compiler.compile(GuidedOptions(regex=r"(.|\n)*")).fill_mask(row)
    assert row[3] >> 4 == 0
    assert row[0] & 1
    assert row.any()


def test_without_end_tokens_nothing_ends_an_answer() -> None:
    matcher = GuidedCompiler(TOKENIZER, VOCAB_SIZE, []).compile(GuidedOptions(choice=("a",)))
    a = token("a")
    assert allowed(matcher) == [a]
    assert matcher.accept(a)
    assert matcher.is_finished()
    assert allowed(matcher) == []


def test_a_tokenizer_that_cannot_be_used_is_an_error_of_the_request() -> None:
    class Strange(SmallTokenizer):
        def to_json(self) -> str:
            return '{"version": "1.0"}'

    with pytest.raises(RequestError, match="not available with this model's tokenizer") as caught:
        GuidedCompiler(Strange(), VOCAB_SIZE, ENDS).compile(GuidedOptions(regex="a"))
    assert caught.value.field == "guided_decoding"


def test_end_tokens_must_be_in_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match="eos_token_ids must be from 0 to 99, got 100"):
        GuidedCompiler(TOKENIZER, 100, [1, 100])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_rollback_returns_to_the_same_masks(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    matcher = COMPILER.compile(GuidedOptions(json=PERSON))
    masks = [allowed(matcher)]
    tokens: list[int] = []
    while len(tokens) < 60 and not matcher.is_finished():
        tokens.append(rng.choice(masks[-1]))
        assert matcher.accept(tokens[-1])
        masks.append(allowed(matcher))
    kept = data.draw(st.integers(0, len(tokens)))
    matcher.rollback(len(tokens) - kept)
    assert allowed(matcher) == masks[kept]
    for i in range(kept, len(tokens)):
        assert matcher.accept(tokens[i])
        assert allowed(matcher) == masks[i + 1]


def test_rollback_past_an_end_token() -> None:
    matcher = COMPILER.compile(GuidedOptions(choice=("a",)))
    consume(matcher, "a")
    assert matcher.accept(ENDS[0])
    matcher.rollback(1)
    assert matcher.is_finished()
    assert sorted(allowed(matcher)) == list(ENDS)
    assert matcher.accept(ENDS[1])
    matcher.rollback(2)
    assert not matcher.is_finished()
    consume(matcher, "a")


@pytest.mark.parametrize("count", [-1, 2])
def test_rollback_only_over_accepted_tokens(count: int) -> None:
    matcher = COMPILER.compile(GuidedOptions(regex="aa"))
    consume(matcher, "a")
    with pytest.raises(ValueError, match=f"num_tokens must be from 0 to 1, got {count}"):
        matcher.rollback(count)
    matcher.rollback(0)
    consume(matcher, "a")


def test_copies_move_on_by_themselves() -> None:
    matcher = COMPILER.compile(GuidedOptions(choice=("ab", "ac")))
    consume(matcher, "a")
    before = allowed(matcher)
    twin = matcher.copy()
    consume(twin, "b")
    assert twin.is_finished()
    assert twin.accept(ENDS[0])
    assert allowed(matcher) == before
    consume(matcher, "c")
    twin.rollback(2)
    assert allowed(twin) == before
    ended = matcher.copy()
    assert ended.accept(ENDS[1])
    assert ended.copy().is_finished()


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        (GuidedOptions(json="{"), "json", "line 1 column 2"),
        (GuidedOptions(json="[]"), "json", "json must be a schema that is an object, got []"),
        (GuidedOptions(json={"type": "nonsense"}), "json", "Invalid type: nonsense"),
        (GuidedOptions(json={"type": "string", "minLength": 2, "maxLength": 1}), "json", "Unsatisfiable"),
        (GuidedOptions(json={"not": {}}), "json", 'Unimplemented keys: ["not"]'),
        (GuidedOptions(json={"$ref": "#/nowhere"}), "json", "nowhere"),
        (GuidedOptions(json={"const": object()}), "json", "not JSON serializable"),
        (GuidedOptions(json={"const": float("nan")}), "json", "json cannot be compiled"),
        (GuidedOptions(json='{"items":' * 50_000 + "{}" + "}" * 50_000), "json", "json cannot be compiled"),
        (GuidedOptions(regex="a(b"), "regex", "unclosed group"),
        (GuidedOptions(regex="(?=a)b"), "regex", "look-around"),
        (GuidedOptions(regex="\ud800"), "regex", "surrogates"),
        (GuidedOptions(choice=("a\ud800",)), "choice", "error parsing string"),
        (GuidedOptions(choice=()), "choice", "non-empty list of strings"),
        (GuidedOptions(choice=("a", 1)), "choice", "non-empty list of strings"),  # type: ignore[arg-type]
        (GuidedOptions(grammar=""), "grammar", "grammar cannot be compiled"),
        (GuidedOptions(grammar="start: nothing"), "grammar", 'unknown name: "nothing"'),
        (GuidedOptions(grammar='start: T\nT: "a" U\nU: "b" T'), "grammar", "may not refer to themselves"),
        (GuidedOptions(grammar="start: start"), "grammar", "grammar cannot be compiled"),
        (GuidedOptions(grammar='root ::= "a'), "grammar", "Failed to convert"),
    ],
)
def test_what_cannot_be_compiled_is_refused(options: GuidedOptions, field: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        COMPILER.compile(options)
    assert caught.value.field == field
    assert caught.value.error_code == 400
    assert len(str(caught.value)) < 700
    assert "<non-verbose/>" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        GuidedOptions(json={"description": "x" * 200_000}),
        GuidedOptions(json={"properties": {str(i): {} for i in range(3000)}}),
        GuidedOptions(json={"items": [{"pattern": "a?" * 2000}]}),
        GuidedOptions(json={"patternProperties": {"a?" * 2000: {}}}),
        GuidedOptions(regex="a?" * 4000),
        GuidedOptions(choice=tuple(str(i) for i in range(30_000))),
        GuidedOptions(grammar="start: " + '"a"\n| ' * 8000 + '"b"'),
        GuidedOptions(grammar="start: /" + "a?" * 4000 + "/"),
        GuidedOptions(grammar='start: C\nA: "x"? "y"? "z"?\nB: ' + "A " * 100 + "\nC: " + "B " * 100),
        GuidedOptions(grammar='root ::= c\na ::= "x"? "y"? "z"?\nb ::= ' + "a " * 100 + "\nc ::= " + "b " * 100),
    ],
)
def test_what_would_take_too_long_is_refused(options: GuidedOptions) -> None:
    with pytest.raises(RequestError, match=r"must have at most \d+ (characters|members), got \d+") as caught:
        COMPILER.compile(options)
    assert caught.value.field in ("json", "regex", "choice", "grammar")
    assert caught.value.allowed is not None
    assert isinstance(caught.value.value, int)


@pytest.mark.parametrize(
    "options",
    [
        GuidedOptions(
            json={"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1900)} | {"1900": {}}, "$ref": "#/$defs/0"}
        ),
        GuidedOptions(
            json={
                "$defs": {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(1900)} | {"1900": {}},
                "$ref": "#/$defs/0",
            }
        ),
        GuidedOptions(grammar="start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(2500)) + 'r2500: "a"'),
        GuidedOptions(grammar="start: T0\n" + "".join(f"T{i}: T{i + 1}\n" for i in range(700)) + 'T700: "a"'),
    ],
)
def test_long_chains_of_references_do_not_overflow_the_stack(options: GuidedOptions) -> None:
    assert allowed(COMPILER.compile(options).copy())


def test_a_grammar_that_grows_too_complex_is_an_error_of_the_request() -> None:
    matcher = COMPILER.compile(GuidedOptions(regex="a?" * 2000))
    consume(matcher, "a")
    with pytest.raises(RequestError, match="guided decoding with this regex became too complex"):
        allowed(matcher)


def test_many_threads_may_compile_at_once() -> None:
    compiler = GuidedCompiler(TOKENIZER, VOCAB_SIZE, ENDS)
    masks: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: masks.append(allowed(compiler.compile(GuidedOptions(regex=DATE))))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks) == 8
    assert all(mask == masks[0] for mask in masks)


class ToolTokenizer(SmallTokenizer):
    """Added tokens that are not marked as special, one of them written like one; merges of its parts make it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("??", normalized=False)])

    def to_json(self) -> str:
        content = json.loads(super().to_json())
        vocab = content["model"]["vocab"]
        vocab |= {token["content"]: token["id"] for token in content["added_tokens"]}
        vocab["<tool_call"] = len(vocab)
        content["model"]["merges"].append(["<tool_call", ">"])
        return json.dumps(content)


SPECIAL_TEXTS = [
    GuidedOptions(choice=("a<end>b",)),
    GuidedOptions(choice=("<other>x",)),
    GuidedOptions(choice=("ok <tool_call>x??",)),
    GuidedOptions(json={"const": {"html": "<turn>"}}),
    GuidedOptions(json={"enum": ["<other>"]}),
    GuidedOptions(grammar='start: "<tool_call>" /[0-9]/ "<end>"'),
]


@pytest.mark.parametrize("options", SPECIAL_TEXTS)
@pytest.mark.parametrize("tokenizer", [TOKENIZER, ToolTokenizer()])
def test_texts_of_special_tokens_are_spelt_with_ordinary_tokens(tokenizer: SmallTokenizer, options: GuidedOptions) -> None:
    size = len(json.loads(tokenizer.to_json())["model"]["vocab"])
    compiler = GuidedCompiler(tokenizer, size, ENDS)
    special = {
        i for i in range(tokenizer.vocab_size) if str(tokenizer.inner.id_to_token(i)).startswith("<") and i != token("<")
    }
    for seed in range(5):
        matcher, rng, tokens = compiler.compile(options), random.Random(seed), []
        while not matcher.is_finished():
            row: NDArray[np.uint32] = np.zeros(-(-size // 32), np.uint32)
            matcher.fill_mask(row)
            choices = [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]
            tokens.append(rng.choice(choices))
            assert matcher.accept(tokens[-1])
        if tokens[-1] in ENDS:
            tokens.pop()
        assert not special.intersection(tokens)
        text = tokenizer.inner.decode(tokens, skip_special_tokens=False)
        if options.choice is not None:
            assert text in options.choice
        elif options.grammar is not None:
            assert re.fullmatch("<tool_call>[0-9]<end>", text)
        else:
            assert json.loads(text) in ({"html": "<turn>"}, "<other>")


def test_where_only_an_end_token_may_come_it_is_named() -> None:
    matcher = COMPILER.compile(GuidedOptions(choice=("",)))
    assert allowed(matcher) == list(ENDS)
    assert matcher.forced_end() == ENDS[0]
    matcher = COMPILER.compile(GuidedOptions(choice=("", "a")))
    assert len(allowed(matcher)) == 3
    assert matcher.forced_end() is None
    matcher = GuidedCompiler(TOKENIZER, VOCAB_SIZE, []).compile(GuidedOptions(choice=("",)))
    assert allowed(matcher) == []
    assert matcher.forced_end() is None


def test_a_grammar_is_compiled_once_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = structured._build
    monkeypatch.setattr(structured, "_build", lambda tokenizer, grammar: built.append(grammar) or build(tokenizer, grammar))
    monkeypatch.setattr(structured, "_MAX_COMPILED", 2)
    compiler = GuidedCompiler(TOKENIZER, VOCAB_SIZE, ENDS)
    first = compiler.compile(GuidedOptions(regex="ab"))
    consume(first, "a")
    second = compiler.compile(GuidedOptions(regex="ab"))
    assert allowed(second) == [token("a")]
    assert len(built) == 1
    for regex, count in (("c", 2), ("ab", 2), ("d", 3), ("ab", 3), ("c", 4)):
        compiler.compile(GuidedOptions(regex=regex))
        assert len(built) == count, regex
    assert allowed(first) == [token("b")]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_compile_whatever_the_parent_was_doing() -> None:
    compiler = GuidedCompiler(TOKENIZER, VOCAB_SIZE, ENDS)
    compiler.compile(GuidedOptions(regex="a"))
    with compiler._lock, thread_stack._lock:
        pid = os.fork()
        if pid == 0:
            free = not compiler._lock.locked() and not thread_stack._lock.locked()
            if free:
                compiler.compile(GuidedOptions(regex="ab"))
            os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
