"""Drafts change how many tokens a step gives, never which."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from engine_parts import ask, request
from tiny_models import LENGTH, MODELS, SHARED, Tiny, alone, answers, bits, crowd, interrupted, tiny_engine

from trivium.engine.scheduler import MAX_DRAFTS
from trivium.engine.sequence import Sequence
from trivium.engine.step_batch import StepBatch

LLAMA = MODELS[0]


class Guesser:
    """Proposes what `known` answers go on with, each token wrong with the chance `wrong`."""

    def __init__(self, known: dict[tuple[str, int], list[int]], wrong: float = 0.0, most: int = 1000) -> None:
        self.known = known
        self.wrong = wrong
        self.most = most
        self.chance = random.Random(1)
        self.asked: set[str] = set()

    def __call__(self, sequence: Sequence, limit: int, num_decoding: int) -> list[int]:
        assert 1 <= limit <= MAX_DRAFTS
        self.asked.add(sequence.request.request_id)
        right = self.known[sequence.key][sequence.num_output_tokens :][: self.most]
        return [(token + 1) % 256 if self.chance.random() < self.wrong else token for token in right]


def tokens_of(answered: dict[tuple[str, int], tuple]) -> dict[tuple[str, int], list[int]]:
    return {key: answer[0] for key, answer in answered.items()}


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_answers_are_those_of_plain_decoding(model: Tiny, wrong: float) -> None:
    guesser = Guesser(tokens_of(alone(model)), wrong)
    with tiny_engine(model, guesser) as engine:
        for _ in range(2):  # the second time on blocks that were filled by drafts
            assert answers(engine, crowd(model)) == alone(model)
        assert engine.stats().generated_tokens == 2 * sum(map(len, guesser.known.values()))
        assert guesser.asked == {one.request_id for one in crowd(model)} - {"guided"}


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_in_a_small_cache_and_a_small_budget(model: Tiny) -> None:
    guesser = Guesser(tokens_of(alone(model)), wrong=0.1, most=4)
    with tiny_engine(model, guesser, num_kv_blocks=13, max_num_batched_tokens=32) as engine:
        assert interrupted(engine, crowd(model)) == alone(model)


def test_what_drafts_confirmed_before_a_fault_is_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StepBatch.run

    def faulty(*args: Any) -> Any:
        result = run(*args)
        tokens = [[*sampled[:-1], -1] if len(sampled) > 2 else sampled for sampled in result.tokens]
        return SimpleNamespace(tokens=tokens, logprobs=result.logprobs, prompt_logprobs=result.prompt_logprobs)

    monkeypatch.setattr(StepBatch, "run", faulty)
    wanted = alone(LLAMA)["greedy", 0]
    (one,) = (one for one in crowd(LLAMA) if one.request_id == "greedy")
    with tiny_engine(LLAMA, Guesser({("greedy", 0): wanted[0]}, most=5)) as engine:
        (answer,) = ask(engine, one)
    assert answer.reason == "error"
    assert answer.token_ids == wanted[0][:6]  # the first, and the five that were guessed
    assert len(answer.logprobs) == 6


def test_right_drafts_take_fewer_steps() -> None:
    wanted = alone(LLAMA)["greedy", 0]
    (one,) = (one for one in crowd(LLAMA) if one.request_id == "greedy")
    with tiny_engine(LLAMA, Guesser({("greedy", 0): wanted[0]}, most=5)) as engine:
        (answer,) = ask(engine, one)
        assert bits(answer) == wanted
        assert [len(delta.token_ids) for delta in answer.deltas] == [1, 6, 6, 6, 5]
        assert [len(delta.logprobs) for delta in answer.deltas] == [1, 6, 6, 6, 5]
        assert engine.stats().steps == 5


@pytest.mark.parametrize("kind", ["stop", "stop_token_ids", "stop_token_sequences"])
@pytest.mark.parametrize("include", [False, True])
def test_what_ends_an_answer_ends_it_inside_the_drafts(kind: str, include: bool) -> None:
    letters = {"temperature": 1.0, "seed": 4, "max_tokens": LENGTH, "logit_bias": dict.fromkeys(range(97, 123), 50.0)}
    with tiny_engine(LLAMA) as engine:
        (free,) = ask(engine, request("free", SHARED, **letters))
        tail = free.token_ids[11:14]
        stop = {"stop": bytes(tail).decode(), "stop_token_ids": tail[-1], "stop_token_sequences": tuple(tail)}[kind]
        one = request("a", SHARED, **letters, **{kind: (stop,)}, include_stop=include)
        (plain,) = ask(engine, one)
    with tiny_engine(LLAMA, Guesser({("a", 0): free.token_ids})) as engine:
        (drafted,) = ask(engine, one)
        assert bits(drafted) == bits(plain)
        assert len(drafted.deltas) == 2
        assert engine.stats().generated_tokens == len(plain.token_ids)
    assert plain.reason == "stop"
    assert 1 < len(plain.token_ids) <= 14


def test_many_drafts_are_cut_to_what_the_core_takes() -> None:
    one = request("a", [5], max_tokens=150, ignore_eos=True)
    with tiny_engine(LLAMA) as engine:
        (plain,) = ask(engine, one)
    with tiny_engine(LLAMA, Guesser({("a", 0): plain.token_ids})) as engine:
        (drafted,) = ask(engine, one)
    assert drafted.token_ids == plain.token_ids
    assert [len(delta.token_ids) for delta in drafted.deltas] == [1, MAX_DRAFTS + 1, MAX_DRAFTS + 1, 21]


def test_no_drafts_inside_a_limited_thought() -> None:
    guesser = Guesser({})
    with tiny_engine(LLAMA, guesser) as engine:
        (answer,) = ask(engine, request("a", SHARED, thinking=True, reasoning_max_tokens=5, max_tokens=LENGTH))
    assert "</think>" in answer.text
    assert guesser.asked == set()
