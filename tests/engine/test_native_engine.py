"""What requests get: tokens, text, samples, logprobs, counts, refusals. The model is a fake that reads its own KV pages."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_parts import EOS, VOCAB_SIZE, Door, ask, make_engine, request
from fake_native import FakeModel, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.engine import EmbeddingSpan, GenerationRequest, GuidedOptions
from trivium.engine.sampler_factory import sample_seed
from trivium.errors import ConfigError, EngineDeadError, PromptTooLongError, QueueFullError, RequestError
from trivium.models.tokenizer import Tokenizer


def prompts(count, length=20):
    return [[97 + (7 * i + j * (i + 3)) % 26 for j in range(length + i)] for i in range(count)]


def expected(prompt, count=8, **options):
    return continuation(list(prompt.encode()) if isinstance(prompt, str) else prompt, count, **options)


def test_one_request():
    with make_engine() as engine:
        (answer,) = ask(engine, request("a"))
        assert answer.token_ids == expected("hello")
        assert answer.text == bytes(answer.token_ids).decode()
        assert (answer.reason, answer.last.stop_reason, answer.last.error) == ("length", None, None)
        assert len(answer.deltas) == 8
        assert all(delta.num_prompt_tokens == 5 and delta.num_cached_tokens == 0 for delta in answer.deltas)
        times = answer.last.times
        assert 0 < times.arrival <= times.scheduled <= times.first_token < times.last_token <= time.monotonic()


def test_many_requests_do_not_disturb_each_other():
    with make_engine(max_num_seqs=8) as engine:
        requests = [request(str(i), prompt) for i, prompt in enumerate(prompts(20))]
        for one, answer in zip(requests, ask(engine, *requests), strict=True):
            assert answer.token_ids == expected(one.prompt_token_ids)
        assert max(len(call["lengths"]) for call in engine.native.calls) == 8


def test_requests_start_in_order_of_priority_then_arrival():
    with make_engine(max_num_seqs=1) as engine:
        engine.native.gate.clear()
        door = Door()
        engine.submit([request("first")], door)
        assert engine.native.entered.wait(10)
        engine.submit([request("b"), request("c")], door)
        engine.submit([request("urgent", priority=0)], door)
        engine.native.gate.set()
        door.wait("first", "b", "c", "urgent")
        order = [delta.request_id for call in door.calls for delta in call if delta.finished]
        assert order == ["first", "b", "c", "urgent"]
        engine.native.gate.clear()
        engine.submit([request("d", priority=1), request("e", priority=-1)], door)
        engine.native.gate.set()
        door.wait("d", "e")
        assert [delta.request_id for call in door.calls for delta in call if delta.finished][-2:] == ["e", "d"]


def test_a_sink_is_called_once_per_step():
    with make_engine() as engine:
        doors = [Door(), Door()]
        engine.native.gate.clear()
        engine.submit([request("0", "ab"), request("1", "cd")], doors[0])
        engine.submit([request("2", "ef")], doors[1])
        engine.native.gate.set()
        doors[0].wait("0", "1")
        doors[1].wait("2")
        assert {len(call) for call in doors[0].calls[1:-1]} == {2}
        assert len(doors[1].calls) == 8


def test_chunked_prefill_and_tiny_cache_with_preemption():
    with make_engine(max_model_len=96, num_blocks=6, max_num_seqs=4, enable_prefix_caching=False) as engine:
        requests = [request(str(i), prompt, max_tokens=40) for i, prompt in enumerate(prompts(4, length=30))]
        answers = ask(engine, *requests)
        for one, answer in zip(requests, answers, strict=True):
            assert answer.token_ids == expected(one.prompt_token_ids, 40)
        assert engine.stats().preemptions > 0
        assert sum(answer.last.times.preemptions for answer in answers) == engine.stats().preemptions
        assert engine.stats().used_blocks == 0


def test_long_prompts_are_cut_into_chunks():
    with make_engine(max_num_batched_tokens=32) as engine:
        (prompt,) = prompts(1, length=200)
        (answer,) = ask(engine, request("a", prompt))
        assert answer.token_ids == expected(prompt)
        assert max(sum(call["lengths"]) for call in engine.native.calls) <= 32


def test_prefix_hits_are_counted_and_can_be_forgotten():
    with make_engine() as engine:
        (prompt,) = prompts(1, length=50)
        assert ask(engine, request("a", prompt))[0].last.num_cached_tokens == 0
        answer = ask(engine, request("b", prompt))[0]
        assert (answer.last.num_cached_tokens, answer.token_ids) == (48, expected(prompt))
        stats = engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (100, 48)
        assert stats.prompt_tokens == 100 - 48
        assert ask(engine, request("c", prompt, cache_salt="other"))[0].last.num_cached_tokens == 0
        engine.reset_prefix_cache()
        assert ask(engine, request("d", prompt))[0].last.num_cached_tokens == 0


@pytest.mark.parametrize("length", [1, 16, 17, 40])
def test_samples_share_the_prompt_and_have_their_own_seeds(length):
    with make_engine() as engine:
        prompt = prompts(1, length=length)[0]
        answers = ask(engine, request("a", prompt, n=4, seed=5, temperature=1.0))
        seeds = [5, *(sample_seed(5, index) for index in (1, 2, 3))]
        assert [answer.last.seed for answer in answers] == seeds
        for seed, answer in zip(seeds, answers, strict=True):
            assert answer.token_ids == expected(prompt, seed=seed, temperature=1.0)
        assert len({answer.text for answer in answers}) == 4
        assert sum(sum(call["lengths"]) for call in engine.native.calls) == length + 3 + 4 * 7


def test_sample_seeds():
    assert sample_seed(7, 0) == 7
    assert len({sample_seed(7, index) for index in range(100)}) == 100
    assert all(0 <= sample_seed(2**64 - 1, index) < 2**64 for index in range(10))


def test_unseeded_requests_draw_seeds_that_the_configuration_repeats():
    def seeds(**options):
        with make_engine(**options) as engine:
            return [answer.last.seed for answer in ask(engine, request("a"), request("b"))]

    assert seeds(seed=1) == seeds(seed=1) != seeds(seed=2)
    assert len(set(seeds() + seeds())) == 4


def test_end_token():
    with make_engine() as engine:
        (answer,) = ask(engine, request("a", logit_bias={EOS: 100}))
        assert (answer.token_ids, answer.text) == ([EOS], "")
        assert (answer.reason, answer.last.stop_reason) == ("stop", None)
        (answer,) = ask(engine, request("b", logit_bias={EOS: 100}, skip_special_tokens=False))
        assert answer.text == "<|end|>"
        (answer,) = ask(engine, request("c", logit_bias={EOS: 100}, ignore_eos=True, max_tokens=3))
        assert (answer.token_ids, answer.text, answer.reason) == ([EOS] * 3, "", "length")


def test_end_tokens_wait_for_min_tokens():
    with make_engine() as engine:
        (answer,) = ask(engine, request("a", logit_bias={EOS: 100}, min_tokens=3))
        assert answer.token_ids == [*expected("hello", 3), EOS]
        (answer,) = ask(engine, request("b", logit_bias={97: 100}, stop_token_ids=(97,), min_tokens=2))
        assert (len(answer.token_ids), answer.last.stop_reason) == (3, 97)


def test_stop_token():
    with make_engine() as engine:
        tokens = expected("hello")
        (answer,) = ask(engine, request("a", stop_token_ids=(tokens[3],)))
        end = tokens.index(tokens[3]) + 1
        assert answer.token_ids == tokens[:end]
        assert answer.text == bytes(tokens[: end - 1]).decode()
        assert (answer.reason, answer.last.stop_reason) == ("stop", tokens[3])
        (answer,) = ask(engine, request("b", stop_token_ids=(tokens[3],), include_stop=True))
        assert answer.text == bytes(tokens[:end]).decode()


def test_stop_token_sequence_is_held_back_until_it_is_certain():
    with make_engine() as engine:
        tokens = expected("hello")
        stops = ((tokens[2], tokens[3], 0), tuple(tokens[4:7]))
        (answer,) = ask(engine, request("a", stop_token_sequences=stops))
        assert answer.token_ids == tokens[:7]
        assert answer.text == bytes(tokens[:4]).decode()
        assert (answer.reason, answer.last.stop_reason) == ("stop", tokens[6])
        (answer,) = ask(engine, request("b", stop_token_sequences=stops, include_stop=True))
        assert answer.text == bytes(tokens[:7]).decode()
        (answer,) = ask(engine, request("c", stop_token_sequences=stops, max_tokens=6))
        assert answer.text == bytes(tokens[:6]).decode()


def test_stop_string_across_tokens():
    with make_engine() as engine:
        text = bytes(expected("hello")).decode()
        (answer,) = ask(engine, request("a", stop=("nothing", text[2:5])))
        assert (answer.text, answer.reason, answer.last.stop_reason) == (text[:2], "stop", text[2:5])
        assert answer.token_ids == expected("hello", 5)
        (answer,) = ask(engine, request("b", stop=(text[2:5],), include_stop=True))
        assert answer.text == text[:5]
        (answer,) = ask(engine, request("c", stop=(text[7] + "!",)))
        assert (answer.text, answer.reason) == (text, "length")


def test_stop_strings_wait_for_min_tokens():
    with make_engine() as engine:
        text = bytes(expected("hello", 30)).decode()
        stop = text[3:5]
        (answer,) = ask(engine, request("a", stop=(stop, text[9:12]), min_tokens=6, max_tokens=30))
        assert stop in text[:6]
        assert stop not in text[6:12]
        assert (answer.text, answer.last.stop_reason) == (text[:9], text[9:12])
        (answer,) = ask(engine, request("b", stop=(stop,), min_tokens=5, max_tokens=30))
        assert (answer.text, len(answer.token_ids)) == (text[:3], 5)


def test_stop_string_at_the_last_token_counts_as_stop():
    with make_engine() as engine:
        text = bytes(expected("hello")).decode()
        (answer,) = ask(engine, request("a", stop=(text[6:8],)))
        assert (answer.text, answer.reason, answer.last.stop_reason) == (text[:6], "stop", text[6:8])


def test_characters_of_several_tokens_come_whole():
    snowman = "☃".encode()
    with make_engine() as engine:
        bias = dict.fromkeys(snowman, 100.0)
        words = tuple(
            (a, b) for a in snowman for b in snowman if (a, b) not in zip(snowman, snowman[1:] + snowman[:1], strict=True)
        )
        (answer,) = ask(engine, request("a", logit_bias=bias, bad_words_token_ids=words, max_tokens=6))
        assert bytes(answer.token_ids) == snowman[2:] + snowman + snowman[:2]
        assert [delta.text for delta in answer.deltas] == ["\ufffd", "", "", "☃", "", "\ufffd"]


def test_bad_words_are_forbidden_with_and_without_a_space():
    with make_engine() as engine:
        text = bytes(expected("hello")).decode()
        (answer,) = ask(engine, request("a", bad_words=(text[0], text[0])))
        assert text[0] not in answer.text
        resolved = engine._samplers.resolve(request("b", bad_words=(" no",)).sampling)
        assert resolved.arguments["bad_words"] == [[110, 111], [32, 110, 111]]


def test_requests_with_one_sampling_object_share_what_follows_from_it(monkeypatch):
    encoded = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: encoded.append(text) or encode(self, text))
    with make_engine() as engine:
        first = request("0", bad_words=("zz", "yy"), stop=("xx",))
        requests = [first, *(GenerationRequest(str(i), first.prompt_token_ids, first.sampling) for i in range(1, 20))]
        for one in requests:
            engine.validate(one)
        for answer in ask(engine, *requests):
            assert answer.token_ids == expected("hello")
        assert encoded == ["zz", " zz", "yy", " yy"]
        assert engine._samplers._last.resolved is None  # what a thread remembers may be megabytes
        actives = [engine._prepare(one, Door()) for one in requests]
        assert len({id(active.sampler_arguments) for active in actives}) == 1
        assert len({id(active.stop_rule) for active in actives}) == 1
        assert len({id(active.stop_patterns) for active in actives}) == 1
        other = request("other", bad_words=("ww",))
        assert engine._prepare(other, Door()).sampler_arguments["bad_words"] == [[119, 119], [32, 119, 119]]


def test_each_thread_has_its_own_last_sampling_object():
    with make_engine() as engine, ThreadPoolExecutor(8) as pool:

        def check(letter):
            one = request(letter, bad_words=(letter,))
            return all(engine._samplers.resolve(one.sampling).arguments["bad_words"][0] == [ord(letter)] for _ in range(100))

        assert all(pool.map(check, "abcdefgh" * 4))


def test_output_ends_with_the_context():
    with make_engine(max_model_len=20) as engine:
        (answer,) = ask(engine, request("a", prompts(1, length=15)[0], max_tokens=None))
        assert (len(answer.token_ids), answer.reason) == (5, "length")


def test_logprobs():
    with make_engine() as engine:
        (answer,) = ask(engine, request("a", logprobs=2))
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
        assert answer.logprobs[0].logprob == -answer.token_ids[0] / 256
        assert (answer.logprobs[0].rank, answer.logprobs[0].top) == (1, ((0, 0.0), (1, -1.0)))
        (answer,) = ask(engine, request("b", logprobs=0))
        assert [entry.top for entry in answer.logprobs] == [()] * 8


def test_prompt_logprobs_come_once_even_when_chunked_or_cached():
    with make_engine(max_num_batched_tokens=16) as engine:
        (prompt,) = prompts(1, length=50)
        ask(engine, request("before", prompt))
        answers = ask(engine, request("a", prompt, prompt_logprobs=1, n=2))
        rows = answers[0].deltas[0].prompt_logprobs
        assert rows[0] is None
        assert [row.token_id for row in rows[1:]] == prompt[1:]
        assert [row.logprob for row in rows[1:]] == [-float(token) for token in prompt[1:]]
        assert all(delta.prompt_logprobs is None for delta in [*answers[0].deltas[1:], *answers[1].deltas])


def test_embeddings_and_layer_additions_reach_the_rows_they_belong_to():
    values = np.arange(80, dtype=np.float32).reshape(20, 4)
    span = EmbeddingSpan(5, values, b"picture", {1: values + 1})
    (prompt,) = prompts(1, length=40)
    cells = list(prompt)
    for i, row in enumerate(values):
        cells[5 + i] = 1_000_000 + int(row.sum()) + 2000 * int((row + 1).sum())
    with make_engine(max_num_batched_tokens=16) as engine:
        other = request("b", "abcdefgh")
        answers = ask(engine, other, request("a", prompt, embeddings=(span,)))
        assert answers[0].token_ids == expected("abcdefgh")
        assert answers[1].token_ids == expected(prompt, cells=cells)


def test_positions_of_three_components_go_on_after_the_prompt():
    places = np.array([[0, 1, 1, 1, 2], [0, 1, 1, 2, 3], [0, 1, 2, 1, 4]], np.int32)
    with make_engine(sections=(2, 2, 2)) as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("a", position_ids=places, max_tokens=3), request("b", "xy", max_tokens=3)], door)
        engine.native.gate.set()
        door.wait("a", "b")
        seen = [call["positions"] for call in engine.native.calls]
        assert seen[0].tolist() == np.hstack([places, [[0, 1]] * 3]).tolist()
        assert [call.tolist() for call in seen[1:3]] == [[[5, 2]] * 3, [[6, 3]] * 3]


class LetterMatcher:
    """Allows the letters of a word one after the other."""

    def __init__(self, word):
        self.word, self.place = word, 0

    def fill_mask(self, row):
        row[:] = 0
        if self.place < len(self.word):
            token = self.word[self.place]
            row[token // 32] = np.uint32(1) << np.uint32(token % 32)

    def accept(self, token):
        self.place += 1
        return token == self.word[self.place - 1]

    def is_finished(self):
        return self.place == len(self.word)

    def forced_end(self):
        return None

    def copy(self):
        return LetterMatcher(self.word)


def compile_word(options):
    if options.regex == "(":
        raise RequestError("bad regex", field="guided_decoding")
    return LetterMatcher(options.regex.encode())


def test_guided_output_ends_when_the_grammar_does():
    with make_engine(compile_guided=compile_word) as engine:
        guided = GuidedOptions(regex="yes!")
        answers = ask(engine, request("plain"), request("a", guided=guided, n=2), request("b", guided=guided, max_tokens=2))
        assert [answer.text for answer in answers[1:]] == ["yes!", "yes!", "ye"]
        assert [answer.reason for answer in answers[1:]] == ["stop", "stop", "length"]
        assert answers[0].token_ids == expected("hello")
        for call in (engine.validate, lambda one: engine.submit([one], Door())):
            with pytest.raises(RequestError, match="bad regex"):
                call(request("c", guided=GuidedOptions(regex="(")))


class EmptyAnswer:
    """Allows the end token only."""

    ended = False

    def fill_mask(self, row):
        row[:] = 0
        row[EOS // 32] = np.uint32(1) << np.uint32(EOS % 32)

    def forced_end(self):
        return EOS

    def accept(self, token):
        self.ended = token == EOS
        return self.ended

    def is_finished(self):
        return self.ended


@pytest.mark.parametrize("options", [{"min_tokens": 3}, {"min_tokens": 0}, {"min_tokens": 1, "ignore_eos": True}])
def test_an_answer_that_must_be_empty_ends_before_min_tokens(options):
    with make_engine(compile_guided=lambda _: EmptyAnswer()) as engine:
        (answer,) = ask(engine, request("a", guided=GuidedOptions(choice=("",)), **options))
        assert (answer.reason, answer.text, answer.token_ids) == ("stop", "", [EOS])


def test_empty_mask_is_an_error_of_that_request_only():
    with make_engine(compile_guided=lambda options: LetterMatcher(b"")) as engine:
        answers = ask(engine, request("a", guided=GuidedOptions(regex="x")), request("b"))
        assert (answers[0].reason, answers[0].token_ids) == ("error", [])
        assert answers[0].last.error.error_code == 500
        assert answers[1].token_ids == expected("hello")


def test_thought_is_cut_at_its_limit():
    with make_engine() as engine:
        tokens = expected("hello", 40)
        (answer,) = ask(engine, request("a", thinking=True, reasoning_max_tokens=4, max_tokens=20))
        assert answer.token_ids[:12] == [*tokens[:4], *b"</think>"]
        assert b"</think>" not in bytes(answer.token_ids[12:])
        (answer,) = ask(engine, request("b", thinking=True, reasoning_max_tokens=0))
        assert answer.text == "</think>"
        (answer,) = ask(engine, request("c", reasoning_max_tokens=2))
        assert answer.token_ids == tokens[:8]


def test_grammar_waits_for_the_end_of_thought():
    with make_engine(compile_guided=compile_word) as engine:
        guided = GuidedOptions(regex="yes")
        (answer,) = ask(engine, request("a", thinking=True, reasoning_max_tokens=3, guided=guided, max_tokens=30))
        assert answer.token_ids == [*expected("hello", 3), *b"</think>yes"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": [VOCAB_SIZE]}, "prompt_token_ids"),
        ({"prompt": [-1]}, "prompt_token_ids"),
        ({"prompt": [1.0]}, "prompt_token_ids"),
        ({"n": 513}, "n"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
        ({"stop_token_sequences": ((1, VOCAB_SIZE),)}, "stop_token_sequences"),
        ({"bad_words_token_ids": ((VOCAB_SIZE,),)}, "bad_words_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"embeddings": (EmbeddingSpan(0, np.zeros((2, 5), np.float32), b""),)}, "embeddings"),
        ({"embeddings": (EmbeddingSpan(0, np.zeros((2, 4)), b""),)}, "embeddings"),
        ({"embeddings": (EmbeddingSpan(4, np.zeros((2, 4), np.float32), b""),)}, "embeddings"),
        ({"embeddings": (EmbeddingSpan(0, z := np.zeros((2, 4), np.float32), b"", {2: z}),)}, "layer_additions"),
        ({"embeddings": (EmbeddingSpan(0, z, b"", {0: z[:1]}),)}, "layer_additions"),
        ({"embeddings": (EmbeddingSpan(0, z, "digest"),)}, "embeddings"),
        ({"position_ids": np.zeros((3, 4), np.int32)}, "position_ids"),
        ({"position_ids": np.full((3, 5), -1, np.int32)}, "position_ids"),
    ],
)
def test_wrong_requests_are_refused_by_name(options, field):
    with make_engine(sections=(2, 2, 2)) as engine:
        bad = request("bad", **options)
        for call in (engine.validate, lambda one: engine.submit([request("good"), one], Door())):
            with pytest.raises(RequestError, match=field) as caught:
                call(bad)
            assert caught.value.field == field
            assert caught.value.allowed
        assert engine.stats().rejected == 2
        assert not engine.native.calls


@pytest.mark.parametrize("salt", ["x" * 1025, b"x", 1])
def test_a_wrong_salt_is_refused(salt):
    with pytest.raises(RequestError, match="at most 1024 characters") as caught:
        request("a", cache_salt=salt)
    assert caught.value.field == "cache_salt"
    assert len(str(caught.value)) < 200
    assert request("a", cache_salt="é" * 1024).cache_salt


def test_positions_need_a_model_that_has_them():
    with make_engine() as engine, pytest.raises(RequestError, match="one component"):
        engine.validate(request("a", position_ids=np.zeros((3, 5), np.int32)))


def test_all_logprobs_need_the_configuration():
    with make_engine(max_logprobs=-1) as engine:
        engine.validate(request("a", logprobs=-1, prompt_logprobs=100))


def test_counts_are_limited_to_the_vocabulary():
    with make_engine(max_logprobs=-1) as engine:
        answers = ask(engine, request("a", logprobs=2**70, prompt_logprobs=2**40), request("b", penalty_window=10**30))
        assert [answer.reason for answer in answers] == ["length", "length"]
        assert len(answers[0].logprobs[0].top) == VOCAB_SIZE
        asked = [count for call in engine.native.calls for _, count, _ in call.get("prompt_logprobs", ())]
        assert asked == [VOCAB_SIZE]


@pytest.mark.parametrize(
    ("message", "field", "allowed"),
    [
        ("bad_words must be token ids from 0 to 9, got 12", "bad_words", "token ids from 0 to 9"),
        ("bias_values must be below infinity, got inf", "logit_bias", "below infinity"),
        ("incompatible function arguments", None, None),
    ],
)
def test_what_no_sampler_can_be_made_of_is_refused_before_anything_runs(message, field, allowed):
    class Refusing:
        def __init__(self, **arguments):
            raise ValueError(message)

    with make_engine(sampler_type=Refusing) as engine:
        for call in (engine.validate, lambda one: engine.submit([one], Door())):
            with pytest.raises(RequestError, match=message.partition(" must be ")[2] or message) as caught:
                call(request("a"))
            assert (caught.value.field, caught.value.allowed) == (field, allowed)
        assert not engine.native.calls


@pytest.mark.parametrize("bias", [1e39, -1e39, float("nan"), float("inf"), 10**400, "1"])
def test_biases_outside_of_float32_are_refused(bias):
    with pytest.raises(RequestError, match="logit_bias must be -inf or a number up to") as caught:
        request("a", logit_bias={5: bias})
    assert caught.value.field == "logit_bias"


def test_the_largest_biases_reach_the_sampler():
    with make_engine() as engine:
        bias = {100: 3.4028234663852886e38, 101: -float("inf"), 102: np.float32(-2)}
        (answer,) = ask(engine, request("a", logit_bias=bias))
        assert answer.text == "d" * 8


def test_lengths_that_never_fit():
    with make_engine(max_model_len=64) as engine:
        with pytest.raises(PromptTooLongError, match=r"64 tokens and asks for at least 1 more.*may have 64") as caught:
            engine.validate(request("a", [1] * 64))
        assert caught.value.error_code == 400
        with pytest.raises(PromptTooLongError, match="60 tokens and asks for at least 5 more"):
            engine.validate(request("a", [1] * 60, min_tokens=5))
        engine.validate(request("a", [1] * 63))
    with pytest.raises(ConfigError, match="max_model_len"), make_engine(max_model_len=65, num_blocks=4):
        pass


def test_request_ids_are_unique_while_active():
    with make_engine() as engine:
        engine.native.gate.clear()
        door = Door()
        engine.submit([request("a")], door)
        with pytest.raises(RequestError, match="request_id"):
            engine.submit([request("a")], door)
        with pytest.raises(RequestError, match="request_id"):
            engine.submit([request("b"), request("b")], door)
        engine.native.gate.set()
        door.wait("a")
        ask(engine, request("a"), request("b"))


def test_full_queue_refuses_all_or_none():
    with make_engine(max_waiting=3, max_num_seqs=1) as engine:
        engine.native.gate.clear()
        door = Door()
        engine.submit([request("running")], door)
        assert engine.native.entered.wait(10)
        engine.submit([request("a", n=2)], door)
        with pytest.raises(QueueFullError, match="2 more cannot wait: 2 of at most 3") as caught:
            engine.submit([request("b"), request("c")], door)
        assert caught.value.error_code == 429
        engine.submit([request("b")], door)
        assert (engine.stats().waiting, engine.stats().rejected) == (3, 2)
        engine.native.gate.set()
        door.wait("running", "b")
        door.wait("a", n=2)
        assert not door.deltas["c", 0]
        assert engine.stats().waiting == 0


def test_statistics():
    with make_engine() as engine:
        ask(engine, request("a"), request("b", logit_bias={EOS: 100}), request("c", n=2))
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.used_blocks, stats.total_blocks) == (0, 0, 0, 64)
        assert stats.finished == {"length": 3, "stop": 1}
        assert stats.generated_tokens == 3 * 8 + 1
        assert stats.steps == len(engine.native.calls)
        assert time.monotonic() - engine.last_step_time < 10


def test_dead_engine():
    with make_engine() as engine:
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            engine.submit([request("a")], Door())
        engine.abort(["a"])
        engine.reset_prefix_cache()
        assert engine.stats().running == 0


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3)), min_size=1, max_size=8), st.integers(5, 12)
)
def test_any_mix_in_any_cache_gives_each_what_it_gets_alone(shapes, num_blocks):
    """Shared beginnings, forks, chunks and preemptions: the pages must always hold what the model expects."""
    native = FakeModel(num_blocks, 16, VOCAB_SIZE)
    with make_engine(native, num_blocks=num_blocks, max_model_len=5 * 16, max_num_seqs=3, max_num_batched_tokens=32) as engine:
        requests = [
            request(str(i), [97] * length, n=n, max_tokens=min(count, 80 - length), seed=i, temperature=1.0)
            for i, (length, count, n) in enumerate(shapes)
        ]
        answers = iter(ask(engine, *requests))
        for i, one in enumerate(requests):
            for index in range(one.n):
                wanted = expected(one.prompt_token_ids, one.sampling.max_tokens, seed=sample_seed(i, index), temperature=1.0)
                assert next(answers).token_ids == wanted
        assert engine.stats().used_blocks == 0
