"""`PromptLookup`: what it guesses, when it stops guessing, and that the real model's answers stay the same."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from engine_parts import Door

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine
from trivium.engine.prompt_lookup import PromptLookup
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.engine.sequence import Sequence


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(GenerationRequest("a", list(tokens)), 0, list(tokens), len(tokens), 1000, None, 0, 0)


def test_it_guesses_what_followed_the_last_occurrence() -> None:
    item = sequence([1, 2, 3, 4, 5, 9, 1, 2, 3, 6, 7, 8, 1, 2, 3])
    assert tuple(PromptLookup()(item, 1, 1)) == (6,)


def test_an_occurrence_with_more_in_common_goes_before_a_later_one() -> None:
    item = sequence([30, 31, 1, 2, 3, 4, 40, 1, 2, 3, 5, 30, 31, 1, 2, 3])
    assert tuple(PromptLookup()(item, 1, 1)) == (4,)


def edited(left_out: int, put_in: list[int]) -> list[int]:
    """What is guessed one token after an answer that repeats a text has put other tokens in the place of some."""
    text = list(range(100, 140))
    lookup, item = PromptLookup(), sequence(text + text[:3])
    given = 3
    while given < 20:
        right = len(tuple(lookup(item, 20 - given, 1)))
        item.tokens += text[given : given + right + 1]
        given += right + 1
    for token in put_in:
        lookup(item, 10, 1)
        item.tokens.append(token)
    lookup(item, 10, 1)
    item.tokens.append(text[given + left_out])
    guesses = list(lookup(item, 10, 1))
    return [guess - text[given + left_out] for guess in guesses]


@pytest.mark.parametrize(("left_out", "put_in"), [(1, [900]), (1, [900, 901]), (2, [900]), (0, [900, 901, 902]), (4, [900])])
def test_after_an_edit_it_goes_on_with_the_text(left_out: int, put_in: list[int]) -> None:
    assert edited(left_out, put_in)[0] == 1


def test_a_text_left_for_good_is_not_guessed_from() -> None:
    assert edited(12, [900]) == []


def test_single_tokens_of_a_text_not_repeated_so_far_are_no_reason_to_guess() -> None:
    assert tuple(PromptLookup()(sequence([*range(20), 900, 5]), 10, 1)) == ()


def test_it_guesses_nothing_without_an_occurrence() -> None:
    assert tuple(PromptLookup()(sequence([1, 2, 3, 4, 5, 2, 3]), 10, 1)) == ()
    assert tuple(PromptLookup()(sequence([1, 2]), 10, 1)) == ()
    assert tuple(PromptLookup()(sequence([1, 2, 3]), 10, 1)) == ()


def test_a_loop_goes_on() -> None:
    item = sequence([7, 8] * 10)
    guessed = tuple(PromptLookup()(item, 24, 1))
    assert len(guessed) > 2
    assert guessed == tuple(([7, 8] * 12)[: len(guessed)])


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_holds(limit: int) -> None:
    assert len(tuple(PromptLookup()(sequence([7] * 40), limit, 1))) <= limit


def lengths(follow: list[int], num_decoding: int) -> list[int]:
    """Numbers of guesses while an answer goes on with `follow`, whatever was guessed."""
    lookup, item, found = PromptLookup(), sequence(list(range(50)) * 2), []
    while follow:
        guesses = tuple(lookup(item, 63, num_decoding))
        found.append(len(guesses))
        right = 0
        while right < min(len(guesses), len(follow) - 1) and guesses[right] == follow[right]:
            right += 1
        item.tokens += follow[: right + 1]
        follow = follow[right + 1 :]
    return found


def test_right_guesses_become_more() -> None:
    found = lengths(list(range(50)) * 4, 1)
    assert found[0] < max(found)
    assert len(found) < 40  # steps for 200 tokens


def test_wrong_guesses_become_rare() -> None:
    chance = random.Random(0)
    runs = [chance.sample(range(50), 50)[0] for _ in range(100)]
    follow = [token for first in runs for token in (first, (first + 1) % 50, (first + 2) % 50, 1000 + chance.randrange(10**6))]
    found = lengths(follow, 1)
    assert sum(found[:20]) > 0
    assert sum(found[-200:]) <= 20


def test_a_busy_step_has_no_room_for_doubtful_guesses() -> None:
    item = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    assert tuple(PromptLookup()(sequence(item), 10, 1))
    assert not tuple(PromptLookup()(sequence(item), 10, 32))


def test_a_busy_step_does_not_look_for_guesses() -> None:
    lookup, item = PromptLookup(), sequence([7, 8] * 20)
    assert len(tuple(lookup(item, 24, 1))) > 2
    item.tokens += [7, 8] * 20
    assert not tuple(lookup(item, 24, 13))
    item.tokens += [7, 8] * 20
    assert len(tuple(lookup(item, 24, 12))) > 2  # and what came meanwhile is known


def test_guesses_that_were_not_tried_are_no_mistakes() -> None:
    lookup, item, text = PromptLookup(), sequence([*range(50), 0, 1, 2]), list(range(50))
    for token in text[3:40]:  # each time there was no room for the guesses
        assert tuple(lookup(item, 10, 1))[:1] == (token,)
        item.tokens.append(token)
    assert len(tuple(lookup(item, 10, 1))) == 10


def test_what_it_remembers_is_small() -> None:
    item = sequence(random.Random(1).choices(range(50_000), k=20_000))
    tracemalloc.start()
    PromptLookup()(item, 10, 1)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 200 * 20_000


PROSE = (
    "Repeat this text word for word, twice: The committee met on Tuesday in the old town hall, and after three hours it agreed "
    "that the bridge over the river should be repaired before the winter, that the cost should be shared by both villages, and "
    "that a report should be given to the mayor every month. Text: The committee met on Tuesday"
)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.05, "logprobs": 3},
        {"temperature": 0.0, "presence_penalty": 0.3, "stop": ("winter",), "min_tokens": 40},
    ],
    ids=["greedy", "sampled", "penalised"],
)
def test_the_real_model_says_the_same_in_fewer_steps(smollm2: str, options: dict) -> None:
    answers = []
    for guess in (False, True):
        config = EngineConfig(model=smollm2, prompt_lookup=guess, max_model_len=512, kv_cache_memory=2**25, seed=0)
        with NativeEngine.load(config) as engine:
            door = Door()
            prompt = engine.tokenizer.encode_prompt(PROSE)
            engine.submit([GenerationRequest("a", prompt, SamplingOptions(max_tokens=120, **options))], door)
            (answer,) = door.wait("a")
            answers.append((answer.token_ids, answer.text, answer.logprobs, answer.reason))
            stats = engine.stats()
            assert stats.used_blocks == 0
            assert (stats.accepted > 0) == guess
            assert stats.accepted <= stats.drafted
            steps = stats.steps
            assert (steps < len(answer.token_ids)) == guess
    assert answers[0] == answers[1]
