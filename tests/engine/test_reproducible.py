"""Greedy and seeded answers are the same to the last bit, whatever runs beside them and however the engine goes about it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from engine_parts import Door, ask, request
from tiny_models import (
    LENGTH,
    MAX_MODEL_LEN,
    MODELS,
    SHARED,
    Tiny,
    alone,
    answers,
    bits,
    crowd,
    interrupted,
    tiny_engine,
    token_ids,
)

from trivium import _native
from trivium.config import EngineConfig
from trivium.engine import GenerationRequest, NativeEngine

EXACT = [
    Tiny("llama", quantization="wint4", activation_dtype="int16"),
    Tiny("llama", quantization="wint8", activation_dtype="int8"),
    Tiny("mistral", hidden_size=72, activation_dtype="float32"),
    Tiny("qwen3_moe", activation_dtype="float32", heat=4.0),
]


@pytest.fixture(params=MODELS, ids=str)
def model(request: pytest.FixtureRequest) -> Tiny:
    return request.param


@pytest.fixture
def restore_threads() -> Iterator[None]:
    count = _native.num_threads()
    yield
    _native.set_num_threads(count)


def test_the_crowd_is_worth_comparing(model: Tiny) -> None:
    found = alone(model)
    assert len(found) == 15
    assert all(last_error is None for *_, last_error in found.values())
    assert len({tuple(token_ids) for token_ids, *_ in found.values()}) == 15
    assert len(found["stops", 0][0]) < LENGTH
    assert found["guided", 0][3] == "stop" or len(found["guided", 0][0]) == LENGTH
    assert len(found["greedy", 0][0]) == LENGTH


@pytest.mark.parametrize("model", [*MODELS, *EXACT], ids=str)
@pytest.mark.parametrize("budget", [16, 64, 512])
def test_alone_or_together_in_chunks_of_any_size(model: Tiny, budget: int) -> None:
    with tiny_engine(model, max_num_batched_tokens=budget) as engine:
        assert answers(engine, crowd(model)) == alone(model)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_arrival(model: Tiny, seed: int) -> None:
    chance = random.Random(seed)
    requests = crowd(model)
    chance.shuffle(requests)
    door = Door()
    with tiny_engine(model, max_num_seqs=chance.choice([2, 5, 16])) as engine:
        while requests:
            count = chance.randint(1, 4)
            engine.submit(requests[:count], door)
            door.wait_for_tokens(requests[0].request_id, chance.randint(1, 3))
            del requests[:count]
        for one in crowd(model):
            for answer in door.wait(one.request_id, n=one.n):
                assert bits(answer) == alone(model)[one.request_id, answer.last.index]


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(model: Tiny, threads: int) -> None:
    _native.set_num_threads(threads)
    with tiny_engine(model) as engine:
        assert answers(engine, crowd(model)) == alone(model)


def test_any_block_size(model: Tiny) -> None:
    with tiny_engine(model, block_size=64, num_kv_blocks=60) as engine:
        assert answers(engine, crowd(model)) == alone(model)


@pytest.mark.parametrize("block_size", [16, 64])
def test_with_a_prefix_hit(model: Tiny, block_size: int) -> None:
    with tiny_engine(model, block_size=block_size, max_num_batched_tokens=64) as engine:
        first, second = (ask(engine, *crowd(model)) for _ in range(2))
        for answer in [*first, *second]:
            assert bits(answer) == alone(model)[answer.last.request_id, answer.last.index]
        for answer in second:
            last = answer.last
            whole = (last.num_prompt_tokens - 1) // block_size * block_size
            assert last.num_cached_tokens == (0 if last.request_id == "scored" else whole)


def test_with_a_hit_inside_a_longer_prompt(model: Tiny) -> None:
    with tiny_engine(model) as engine:
        ask(engine, request("before", SHARED))
        for answer in ask(engine, *crowd(model)):
            name = answer.last.request_id
            assert bits(answer) == alone(model)[name, answer.last.index]
            if name in ("greedy", "samples"):
                assert answer.last.num_cached_tokens == 96


def test_with_a_hit_on_generated_tokens(model: Tiny) -> None:
    """A conversation: the second prompt holds the first answer, whose KV came from decoding and not from a prefill."""
    answer = alone(model)["greedy", 0][0]
    longer = request("longer", SHARED + token_ids(1, 9) + answer + token_ids(11, 5), max_tokens=LENGTH, seed=0, logprobs=3)
    with tiny_engine(model, enable_prefix_caching=False) as engine:
        (cold,) = ask(engine, longer)
    with tiny_engine(model) as engine:
        ask(engine, *[one for one in crowd(model) if one.request_id == "greedy"])
        (warm,) = ask(engine, longer)
    assert warm.last.num_cached_tokens == 128
    assert bits(warm) == bits(cold)


@pytest.mark.parametrize("caching", [False, True])
def test_after_preemption(model: Tiny, caching: bool) -> None:
    blocks = -(-MAX_MODEL_LEN // 16)
    with tiny_engine(model, num_kv_blocks=blocks, max_num_batched_tokens=64, enable_prefix_caching=caching) as engine:
        assert answers(engine, crowd(model)) == alone(model)
        assert engine.stats().preemptions > 0


def test_preempted_by_more_urgent_requests(model: Tiny) -> None:
    with tiny_engine(model, max_num_seqs=2) as engine:
        assert interrupted(engine, crowd(model)) == alone(model)


def test_each_sample_is_a_request_of_its_own(model: Tiny) -> None:
    with tiny_engine(model) as engine:
        for index in range(3):
            wanted = alone(model)["samples", index]
            again = request(
                "again", SHARED + token_ids(6, 6), temperature=1.1 * model.heat, seed=wanted[5], logprobs=0, max_tokens=LENGTH
            )
            assert answers(engine, [again])["again", 0] == wanted


def test_unseeded_requests_report_the_seed_that_repeats_them(model: Tiny) -> None:
    def asked(name: str, **options):
        return request(name, SHARED[:30], temperature=1.2 * model.heat, max_tokens=LENGTH, logprobs=1, **options)

    with tiny_engine(model) as engine:
        free = ask(engine, asked("a"), asked("b", n=2))
        assert len({tuple(answer.token_ids) for answer in free}) == 3
        for answer in free:
            assert bits(ask(engine, asked("again", seed=answer.last.seed))[0]) == bits(answer)


# The real model

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm sun of the afternoon. "


def real_crowd(engine: NativeEngine) -> list[GenerationRequest]:
    questions = ["", "Why?", "What does the fox do next?", TEXT * 3, "李白", "1, 2, 3, 4,"]
    prompts = [engine.tokenizer.encode(TEXT * 4 + question) for question in questions] + [engine.tokenizer.encode("A")]
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
    requests = [request(f"greedy {i}", prompt, max_tokens=10, seed=0, logprobs=3) for i, prompt in enumerate(prompts[:4])]
    requests += [
        request(f"drawn {i}", prompt, max_tokens=10, temperature=0.9, top_p=0.95, seed=i, logprobs=i, **penalties)
        for i, prompt in enumerate(prompts)
    ]
    return [*requests, request("samples", prompts[2], max_tokens=10, n=3, temperature=1.0, seed=99)]


@pytest.fixture(scope="module")
def real_alone(smollm2: str) -> dict[tuple[str, int], tuple]:
    found = {}
    with NativeEngine.load(EngineConfig(model=smollm2, num_kv_blocks=64, enable_prefix_caching=False)) as engine:
        for one in real_crowd(engine):
            found |= answers(engine, [one])
    return found


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 16, "num_threads": 1}, {"max_num_batched_tokens": 64, "num_threads": 3, "block_size": 16}],
    ids=["chunks of 16", "three threads"],
)
def test_the_real_model(smollm2: str, real_alone: dict[tuple[str, int], tuple], options: dict[str, int]) -> None:
    with NativeEngine.load(EngineConfig(**{"model": smollm2, "num_kv_blocks": 64, **options})) as engine:
        for _ in range(2):  # the second time with prefix hits
            assert answers(engine, real_crowd(engine)) == real_alone
        assert engine.stats().prefix_hits > 0


def test_the_real_model_after_preemption(smollm2: str, real_alone: dict[tuple[str, int], tuple]) -> None:
    with NativeEngine.load(EngineConfig(model=smollm2, num_kv_blocks=64, max_num_seqs=2)) as engine:
        assert interrupted(engine, real_crowd(engine)) == real_alone
