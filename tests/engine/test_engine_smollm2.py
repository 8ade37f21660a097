"""The whole engine with the real model, under load: structured output, stops, characters, deadlines, faults, a storm."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_parts import Answer, Door, ask, request

from trivium.config import EngineConfig
from trivium.engine import EmbeddingSpan, GenerationRequest, GuidedOptions, NativeEngine
from trivium.errors import EngineError, RequestError

NOVEL = Path(__file__).parents[1] / "data" / "pride_and_prejudice.txt"
LONG = 7000  # tokens; the model was made for 8,192
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
numbers = itertools.count()


@pytest.fixture(scope="module")
def engine(smollm2: str) -> Iterator[NativeEngine]:
    config = EngineConfig(model=smollm2, num_kv_blocks=136, max_num_seqs=16, max_num_batched_tokens=256)
    with NativeEngine.load(config) as engine:
        yield engine


@pytest.fixture(autouse=True)
def idle_afterwards(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    stats = request.getfixturevalue("engine").stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
    assert "books are wrong" not in caplog.text


@pytest.fixture(scope="module")
def novel(engine: NativeEngine) -> list[int]:
    return engine.tokenizer.encode(NOVEL.read_text(encoding="utf-8")[:60_000])


def asked(engine: NativeEngine, prompt: str, **options) -> GenerationRequest:
    return request(f"request {next(numbers)}", engine.tokenizer.encode(prompt), **{"max_tokens": 24, "seed": 0, **options})


def load(engine: NativeEngine) -> list[GenerationRequest]:
    """Requests that run beside those a test is about."""
    return [asked(engine, f"Chapter {i}. It was", temperature=1.0, seed=i, max_tokens=40) for i in range(6)]


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def test_structured_output_under_load(engine: NativeEngine) -> None:
    def guided(prompt: str, seed: int, **kind) -> GenerationRequest:
        return asked(engine, prompt, temperature=1.0, seed=seed, max_tokens=200, guided=GuidedOptions(**kind))

    schemas = [guided("Describe a person as JSON:", i, json=SCHEMA) for i in range(4)]
    patterns = [guided("A date:", i, regex=r"(19|20)\d\d-[01]\d-[0-3]\d(, [a-z]{3,8})?") for i in range(4)]
    choices = [guided("Yes or no?", i, choice=("yes", "no", "né, 何?")) for i in range(4)]
    answers = ask(engine, *load(engine), *schemas, *patterns, *choices)[6:]
    assert {answer.reason for answer in answers} == {"stop"}
    for text in texts(answers[:4]):
        value = json.loads(text)
        assert sorted(value) == ["age", "name", "tags"]
        assert len(value["name"]) <= 10
        assert type(value["age"]) is int
        assert 0 <= value["age"] <= 120
        assert 1 <= len(value["tags"]) <= 3
        assert set(value["tags"]) <= {"red", "green", "blue"}
    assert all(re.fullmatch(r"(19|20)\d\d-[01]\d-[0-3]\d(, [a-z]{3,8})?", text) for text in texts(answers[4:8]))
    assert set(texts(answers[8:])) <= {"yes", "no", "né, 何?"}
    assert len(set(texts(answers[:4]))) > 1


def test_stop_strings_never_leak_into_the_stream(engine: NativeEngine) -> None:
    prompt = "It is a truth universally acknowledged, that"
    (free,) = ask(engine, asked(engine, prompt, max_tokens=40))
    stops = [free.text[i : i + length] for i, length in zip(range(8, 80, 5), itertools.cycle([2, 6, 13]), strict=False)]
    requests = [asked(engine, prompt, max_tokens=40, stop=("\0", stop)) for stop in stops]
    answers = ask(engine, *load(engine), *requests)[6:]
    for stop, answer in zip(stops, answers, strict=True):
        assert answer.text == free.text[: free.text.index(stop)]
        assert (answer.reason, answer.last.stop_reason) == ("stop", stop)
        assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
        shown = ""
        for delta in answer.deltas:
            shown += delta.text
            assert stop not in shown
            assert free.text.startswith(shown)


def test_characters_are_never_cut(engine: NativeEngine) -> None:
    prompt = "Repeat: 🦊🐻🦊🐻🦊🐻🦊🐻🦊🐻 Repeat: 🦊🐻🦊🐻🦊🐻🦊"
    ends = [asked(engine, prompt, max_tokens=count) for count in range(1, 14)]
    answers = ask(engine, *load(engine), *ends, asked(engine, "你好,世界。你好,世界。你好,", max_tokens=30))[6:]
    assert "🐻" in answers[12].text
    for answer in answers:
        assert answer.text == engine.tokenizer.decode(answer.token_ids)
        assert not any("\ufffd" in delta.text for delta in answer.deltas[:-1])
    assert any(answer.text.endswith("\ufffd") for answer in answers[:13])  # the limit came inside a character
    assert any(answer.last.text.endswith("🐻") for answer in answers[:13])
    assert "世界" in answers[13].text


def test_deadlines(engine: NativeEngine, novel: list[int]) -> None:
    fine = load(engine)
    endless = [asked(engine, "On and on", max_tokens=4000, ignore_eos=True, timeout=1.5) for _ in range(3)]
    prefill = request("long", novel[1000 : 1000 + LONG], timeout=1.0)
    began = time.monotonic()
    answers = ask(engine, *endless, prefill, *fine)
    assert [answer.reason for answer in answers[:4]] == ["timeout"] * 4
    assert all(answer.text for answer in answers[:3])
    assert answers[3].token_ids == []
    assert {answer.reason for answer in answers[4:]} <= {"length", "stop"}
    assert time.monotonic() - began < 15


def test_abort_in_the_middle_of_a_long_prompt(engine: NativeEngine, novel: list[int]) -> None:
    alone = texts(ask(engine, *load(engine)))
    door, others = Door(), load(engine)
    before = engine.stats().prompt_tokens
    engine.submit([request("long", novel[2000 : 2000 + LONG]), *others], door)
    while engine.stats().prompt_tokens < before + 400:
        time.sleep(0.002)
    engine.abort(["long"])
    (aborted,) = door.wait("long")
    assert (aborted.reason, aborted.text, aborted.token_ids) == ("abort", "", [])
    assert engine.stats().prompt_tokens < before + LONG
    assert texts(door.wait(*[one.request_id for one in others])) == alone


def test_a_prompt_of_many_thousand_tokens(engine: NativeEngine, novel: list[int]) -> None:
    door = Door()
    engine.submit([request("cold", novel[:LONG], max_tokens=8, logprobs=1)], door)
    (cold,) = door.wait("cold", timeout=200)
    (warm,) = ask(engine, request("warm", novel[:LONG], max_tokens=8, logprobs=1))
    assert (len(cold.token_ids), cold.last.num_prompt_tokens) == (8, LONG)
    assert warm.last.num_cached_tokens == (LONG - 1) // 64 * 64
    assert (warm.token_ids, repr(warm.logprobs)) == (cold.token_ids, repr(cold.logprobs))


def test_a_shared_prefix_is_computed_once(engine: NativeEngine, novel: list[int]) -> None:
    shared = novel[8000 : 8000 + 1024]
    ask(engine, request("first", [*shared, *novel[:9]]))
    for length in (1, 16):
        before = engine.stats()
        (answer,) = ask(engine, request("second", [*shared, *novel[50 : 50 + length]]))
        after = engine.stats()
        assert answer.last.num_cached_tokens >= 960
        assert after.prompt_tokens - before.prompt_tokens <= 80
        assert after.prefix_hits - before.prefix_hits == answer.last.num_cached_tokens


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_end_one_request(engine: NativeEngine, novel: list[int], value: float) -> None:
    hidden_size = 576
    wanted = texts(ask(engine, *load(engine)))
    rows = np.zeros((4, hidden_size), np.float32)
    rows[2, 100] = value
    faulty = request("faulty", novel[:300], embeddings=(EmbeddingSpan(120, rows, b"faulty"),))
    before = load(engine)
    answers = ask(engine, *before[:3], faulty, *before[3:])
    assert answers[3].reason == "error"
    assert isinstance(answers[3].last.error, EngineError)
    assert texts(answers[:3] + answers[4:]) == wanted
    assert texts(ask(engine, *load(engine))) == wanted  # nothing of it stayed behind, neither KV nor prefixes
    (again,) = ask(engine, faulty)
    assert (again.reason, again.last.num_cached_tokens <= 120) == ("error", True)
    sound = request("sound", novel[:300])
    assert texts(ask(engine, sound)) == texts(ask(engine, request("again", novel[:300], cache_salt="new")))


# A storm


class Storm:
    """Random requests from several threads, some of them aborted, on an engine whose cache is small."""

    def __init__(self, engine: NativeEngine, prompts: list[int]) -> None:
        self.engine = engine
        self.prompts = prompts
        self.door = Door()
        self.requests: list[GenerationRequest] = []
        self.refused = 0
        self._lock = threading.Lock()

    def run(self, threads: int, each: int) -> None:
        """Two requests that fill the cache, and must make way, then those of the threads."""
        for name, start in (("first", 0), ("second", 600)):
            prompt = self.prompts[start : start + 230]
            self.requests.append(request(name, prompt, priority=9, max_tokens=60, ignore_eos=True))
        self.engine.submit(self.requests, self.door)
        self.door.wait_for_tokens("second", 1)
        workers = [threading.Thread(target=self._work, args=(seed, each)) for seed in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        mine: list[str] = []
        while count:
            batch = [self._request(chance, f"{seed}.{count - i}") for i in range(min(count, chance.randint(1, 5)))]
            count -= len(batch)
            try:
                self.engine.submit(batch, self.door)
            except RequestError:
                with self._lock:
                    self.refused += len(batch)
                continue
            with self._lock:
                self.requests += batch
            mine += [one.request_id for one in batch]
            time.sleep(chance.random() * 0.05)
            if chance.random() < 0.4:
                self.engine.abort(chance.sample(mine, 1))

    def _request(self, chance: random.Random, name: str) -> GenerationRequest:
        start = chance.choice([0, 0, 500, chance.randrange(9000)])
        prompt = self.prompts[start : start + chance.choice([1, 5, 40, 130, 200])]
        too_long = chance.random() < 0.03
        return request(
            name,
            self.prompts[:5000] if too_long else prompt,
            n=chance.choice([1, 1, 1, 2, 4]),
            priority=chance.choice([0, 1, 2, -1]),
            timeout=chance.choice([None] * 6 + [0.03, 2.0]),
            temperature=chance.choice([0.0, 0.8, 1.5]),
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([0, 40]),
            frequency_penalty=chance.choice([0.0, 0.3]),
            seed=chance.choice([None, 5]),
            max_tokens=chance.choice([1, 4, 12, 40]),
            stop=chance.choice([(), ("the",), ("\n", ". ")]),
            logprobs=chance.choice([None, None, 2]),
            prompt_logprobs=chance.choice([None] * 7 + [1]),
            guided=chance.choice([None] * 6 + [GuidedOptions(regex="[a-z]{1,20}")]),
        )


@pytest.fixture(scope="module")
def small_engine(smollm2: str) -> Iterator[NativeEngine]:
    config = EngineConfig(
        model=smollm2, num_kv_blocks=32, block_size=16, max_model_len=512, max_num_seqs=12, max_num_batched_tokens=64
    )
    with NativeEngine.load(config) as engine:
        yield engine


def test_storm(small_engine: NativeEngine, novel: list[int]) -> None:
    storm = Storm(small_engine, novel)
    storm.run(threads=4, each=38)
    reasons: Counter[str] = Counter()
    tokens = 0
    for one in storm.requests:
        for answer in storm.door.wait(one.request_id, n=one.n, timeout=60):
            reasons[answer.reason] += 1
            tokens += len(answer.token_ids)
            assert len(answer.token_ids) <= one.sampling.max_tokens
            assert len(answer.logprobs) == (0 if one.sampling.logprobs is None else len(answer.token_ids))
            assert not any(stop in answer.text for stop in one.sampling.stop)
    assert sum(len(deltas) for deltas in storm.door.deltas.values()) == sum(map(len, storm.door.calls))
    stats = small_engine.stats()
    assert stats.finished == reasons
    assert set(reasons) == {"stop", "length", "abort", "timeout"}
    assert sum(reasons.values()) == sum(one.n for one in storm.requests)
    assert stats.generated_tokens == tokens
    assert stats.rejected == storm.refused > 0
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
    replay = [one for one in storm.requests if storm.door.deltas[one.request_id, 0][-1].finish_reason in ("stop", "length")]
    for one in replay[::8]:  # alone, and with nothing cached, the engine says the same again
        (first, *_) = storm.door.wait(one.request_id, n=one.n)
        options = {**{name: getattr(one.sampling, name) for name in one.sampling.__slots__}, "seed": first.last.seed}
        (again,) = ask(small_engine, request("again", one.prompt_token_ids, **options, cache_salt=one.request_id))
        assert (again.token_ids, again.text, repr(again.logprobs)) == (first.token_ids, first.text, repr(first.logprobs))
