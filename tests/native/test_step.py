"""The step: same bits in any batch, chunking, block size and thread count; drafts, forks, embeddings, experts, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB, Row, greedy, last_logits, matrix, run, spec, tiny_model

from trivium import _native
from trivium.models.checkpoint import TensorType

RNG = np.random.default_rng(5)
PROMPT = [int(t) for t in RNG.integers(0, VOCAB, 300)]
MOE = {"moe_layers": [False, True], "num_experts": 5, "experts_per_token": 2, "expert_size": 32, "shared_size": 32}
VARIANTS = {
    "q4": {},
    "int16": {"activation": "int16"},
    "q8": {"type": TensorType.Q8_0},
    "float": {"type": TensorType.F32, "kv": "float32", "activation": "float32"},
    "window": {"windows": [20, 0]},
    "experts": MOE,
    "wide-blocks": {"block_size": 64},
    "interleaved": {"rope_interleaved": True},
    "int8-cache": {"kv": "int8", "block_size": 32},
    "int8-cache-window": {"kv": "int8", "windows": [20, 140]},
    "float16-cache": {"kv": "float16"},
}
every_cache = pytest.mark.parametrize("kv", ["int16", "int8", "float16", "float32"])


@pytest.fixture(params=VARIANTS, ids=str)
def model(request):
    return tiny_model(**VARIANTS[request.param])


def logits_alone(model, tokens):
    sampler = greedy()
    return last_logits(run(model, [Row(tokens, 0, len(tokens), list(range(20)), sampler)]), 0)


def test_chunks_and_decode_give_the_bits_of_one_prefill(model):
    expected = logits_alone(model, PROMPT[:200])
    blocks = list(range(30, 50))
    for cut in ([200], [1, 200], [7, 64, 128, 129, 199, 200], [128, 200], [199, 200]):
        start = 0
        for end in cut:
            result = run(model, [Row(PROMPT, start, end, blocks, greedy() if end == 200 else None)])
            start = end
        assert np.array_equal(last_logits(result, 0), expected)


def test_a_sequence_does_not_notice_its_neighbours(model):
    expected = logits_alone(model, PROMPT[:150])
    run(model, [Row(PROMPT, 0, 149, list(range(20, 40)))])
    others = [Row(PROMPT[k:], 0, 3 + 5 * k, [50 + k * 3, 51 + k * 3, 52 + k * 3], greedy(k)) for k in range(1, 4)]
    mine = Row(PROMPT, 149, 150, list(range(20, 40)), greedy())
    result = run(model, [others[0], mine, others[1], others[2]])
    assert np.array_equal(last_logits(result, 1), expected)


@pytest.fixture
def restore_threads():
    count = _native.num_threads()
    yield
    _native.set_num_threads(count)


def test_threads_do_not_change_bits(model, restore_threads):
    results = []
    for threads in (1, 2, 3):
        _native.set_num_threads(threads)
        results.append(logits_alone(model, PROMPT[:290]))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@every_cache
def test_block_size_does_not_change_bits(kv):
    expected = logits_alone(tiny_model(kv=kv, block_size=16), PROMPT[:250])
    for block_size in (32, 48, 64, 256):
        assert np.array_equal(logits_alone(tiny_model(kv=kv, block_size=block_size), PROMPT[:250]), expected)


@every_cache
def test_split_attention_of_a_long_context_equals_the_whole(kv):
    """Few sequences on many threads split their key tiles over tasks; many sequences do not: the same bits."""
    model = tiny_model(kv=kv, blocks=400)
    expected = logits_alone(model, PROMPT)
    run(model, [Row(PROMPT, 0, 299, list(range(100, 119)))])
    rows = [Row(PROMPT, 299, 300, list(range(100, 119)), greedy())]
    for k in range(1, 12):
        run(model, [Row(PROMPT[k:], 0, 200, list(range(100 + 20 * k, 120 + 20 * k)))])
        rows.append(Row(PROMPT[k:], 200, 201, list(range(100 + 20 * k, 120 + 20 * k)), greedy()))
    assert np.array_equal(last_logits(run(model, rows), 0), expected)
    run(model, [Row(PROMPT, 0, 299, list(range(19)))])
    assert np.array_equal(last_logits(run(model, [Row(PROMPT, 299, 300, list(range(19)), greedy())]), 0), expected)


def test_split_attention_of_several_waves_of_tiles_equals_the_whole(restore_threads):
    model, tokens, blocks = tiny_model(blocks=330), RNG.integers(0, VOCAB, 5000).tolist(), list(range(313))
    run(model, [Row(tokens, 0, 4999, blocks)])
    rows = [Row(tokens, 4999, 5000, blocks, greedy()), *(Row(tokens, 0, 1, [k], greedy()) for k in range(314, 330))]
    expected = last_logits(run(model, rows), 0)
    for threads in (1, 2, 5):
        _native.set_num_threads(threads)
        assert np.array_equal(last_logits(run(model, rows[:1]), 0), expected)


@every_cache
def test_shares_of_attention_do_not_change_bits(kv, restore_threads):
    """Rows after a long context, whose attention is shared out differently among few threads and many."""
    model = tiny_model(kv=kv, blocks=200)
    tokens, blocks = RNG.integers(0, VOCAB, 1100).tolist(), list(range(70))
    _native.set_num_threads(1)
    expected = last_logits(run(model, [Row(tokens, 0, 1100, blocks, greedy())]), 0)
    for rows in (1, 2, 5, 9, 16, 24, 37):
        for threads in (1, 2, 3, 8):
            _native.set_num_threads(threads)
            result = run(model, [Row(tokens, 1100 - rows, 1100, blocks, greedy())])
            assert np.array_equal(last_logits(result, 0), expected)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 180), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from(["int16", "int8", "float16"]),
)
def test_any_schedule_gives_the_same_bits(lengths, seed, kv):
    model, rng = tiny_model(kv=kv, blocks=64), np.random.default_rng(seed)
    expected = [logits_alone(model, PROMPT[k : k + n]) for k, n in enumerate(lengths)]
    done, final = [0] * len(lengths), [None] * len(lengths)
    while done != lengths:
        waiting = [k for k, n in enumerate(lengths) if done[k] < n]
        who = list(rng.permutation([k for k in waiting if rng.random() < 0.7] or waiting))
        rows = []
        for k in who:
            end = min(lengths[k], done[k] + int(rng.integers(1, 70)))
            sampler = greedy() if end == lengths[k] else None
            rows.append(Row(PROMPT[k:], done[k], end, list(range(12 * k, 12 * k + 12)), sampler))
            done[k] = end
        result = run(model, rows)
        for i, k in enumerate(who):
            if rows[i].sampler is not None:
                final[k] = last_logits(result, i)
    for got, want in zip(final, expected, strict=True):
        assert np.array_equal(got, want)


def decode(model, prompt, count, sampler, blocks):
    tokens = list(prompt)
    result = run(model, [Row(tokens, 0, len(tokens), blocks, sampler)])
    tokens += result.tokens[0]
    while len(tokens) < len(prompt) + count:
        result = run(model, [Row(tokens, len(tokens) - 1, len(tokens), blocks, sampler)])
        tokens += result.tokens[0]
    return tokens


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2}]
)
def test_drafts_give_the_tokens_of_plain_decoding(options):
    model = tiny_model()
    prompt = PROMPT[:40]
    expected = decode(model, prompt, 24, greedy(3, **options), list(range(8)))
    for wrong_at in (0, 1, 3, 99):
        tokens, sampler, blocks, first = list(prompt), greedy(3, **options), list(range(20, 28)), True
        computed = 0
        while len(tokens) < len(prompt) + 24:
            drafts = [] if first else expected[len(tokens) : len(tokens) + 3]
            drafts = [(t + 1) % VOCAB if i == wrong_at else t for i, t in enumerate(drafts)]
            row = Row(tokens + drafts, computed, len(tokens) + len(drafts), blocks, sampler, len(drafts))
            result = run(model, [row])
            accepted = result.tokens[0]
            assert len(accepted) == (1 if first else min(wrong_at, len(drafts)) + 1)
            computed, first = len(tokens) + len(accepted) - 1, False
            tokens += accepted
        assert tokens[: len(expected)] == expected


def test_a_rejected_draft_cannot_end_its_sequence():
    model, bad = tiny_model(), np.full((1, 96), np.nan, np.float32)
    tokens = PROMPT[:10]
    (following,) = run(model, [Row(tokens, 0, 10, [0], greedy())]).tokens[0]
    for draft, accepted in (((following + 1) % VOCAB, [following]), (following, [following, -1])):
        row = Row([*tokens, draft], 9, 11, [0], greedy(), 1)
        result = run(model, [row], embeddings=bad, embedding_rows=np.array([1], np.int32))
        assert result.tokens[0] == accepted


@every_cache
def test_copied_blocks_continue_alike(kv):
    model = tiny_model(kv=kv)
    expected = logits_alone(model, PROMPT[:41])
    run(model, [Row(PROMPT, 0, 40, [30, 31, 32])])
    model.copy_blocks([(32, 40)])
    result = run(model, [Row(PROMPT, 40, 41, [30, 31, 40], greedy())])
    assert np.array_equal(last_logits(result, 0), expected)


def test_embeddings_replace_tokens():
    model = tiny_model(tied_output=True)
    rows = np.stack([model_row(model, t) for t in PROMPT[5:8]])
    expected = logits_alone(model, PROMPT[:30])
    blank = [*PROMPT[:5], 0, 0, 0, *PROMPT[8:30]]
    result = run(model, [Row(blank, 0, 30, [30, 31], greedy())], embeddings=rows, embedding_rows=np.array([5, 6, 7], np.int32))
    assert np.array_equal(last_logits(result, 0), expected)


def model_row(model, token):
    return matrix(TensorType.Q8_0, VOCAB, spec()["hidden_size"], 1).row(token)


def test_layer_additions_reach_their_rows_only():
    model = tiny_model()
    values = np.ones((1, 96), np.float32)
    base = logits_alone(model, PROMPT[:30])
    zero = run(model, [Row(PROMPT, 0, 30, [30, 31], greedy())], layer_additions=[(0, np.array([29], np.int32), 0 * values)])
    added = run(model, [Row(PROMPT, 0, 30, [30, 31], greedy())], layer_additions=[(0, np.array([29], np.int32), values)])
    assert np.array_equal(last_logits(zero, 0), base)
    assert not np.array_equal(last_logits(added, 0), base)


def test_position_components_select_frequencies():
    model = tiny_model(sections=[4, 3, 3])
    expected = logits_alone(model, PROMPT[:30])
    same = np.tile(np.arange(30, dtype=np.int32), (3, 1))
    result = run(model, [Row(PROMPT, 0, 30, [30, 31], greedy())], positions=same)
    assert np.array_equal(last_logits(result, 0), expected)
    moved = same.copy()
    moved[2, 10:20] += 5
    result = run(model, [Row(PROMPT, 0, 30, [30, 31], greedy())], positions=moved)
    assert not np.array_equal(last_logits(result, 0), expected)


def test_masks_limit_the_choice():
    model = tiny_model()
    masks = np.zeros((1, (VOCAB + 31) // 32), np.uint32)
    masks[0, 1] = 1 << 3
    rows = [Row(PROMPT, 0, 10, [0], greedy()), Row(PROMPT, 0, 12, [1], greedy())]
    result = run(model, rows, masks=masks, mask_rows=np.array([-1, 0], np.int32))
    assert result.tokens[1] == [35]
    assert result.tokens[0] == run(model, [Row(PROMPT, 0, 10, [0], greedy())]).tokens[0]
    masks[:] = 0
    assert run(model, [Row(PROMPT, 0, 10, [0], greedy())], masks=masks, mask_rows=np.array([0], np.int32)).tokens == [[-1]]


def test_prompt_logprobs_are_those_of_the_whole_prompt():
    model = tiny_model()
    logits = model.logits(np.array(PROMPT[:90], np.int32)).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    following = np.array([*PROMPT[1:90], -1], np.int32)
    result = run(model, [Row(PROMPT, 0, 90, list(range(10, 16)))], prompt_logprobs=[(0, 2, following)])
    rows = result.prompt_logprobs[0]
    assert len(rows) == 89
    for i, (logprob, rank, ids, _) in enumerate(rows):
        assert logprob == pytest.approx(expected[i, PROMPT[i + 1]], rel=1e-6, abs=1e-5)
        assert rank == 1 + (logits[i] > logits[i, PROMPT[i + 1]]).sum()
        assert list(ids) == list(np.argsort(-logits[i], kind="stable")[:2])


@every_cache
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_fault_of_one_sequence_does_not_reach_the_next_user_of_its_blocks(kv, value):
    model = tiny_model(kv=kv)
    bad = np.full((1, 96), value, np.float32)
    result = run(model, [Row(PROMPT, 0, 30, [0, 1], greedy())], embeddings=bad, embedding_rows=np.array([3], np.int32))
    assert result.tokens == [[-1]]
    chunk = [Row(PROMPT, 0, 20, [2, 3]), Row(PROMPT, 0, 5, [4], greedy())]
    result = run(model, chunk, embeddings=bad, embedding_rows=np.array([3], np.int32))
    assert result.tokens[0] == [-1]
    assert result.tokens[1][0] >= 0
    assert np.array_equal(
        last_logits(run(model, [Row(PROMPT, 0, 5, [0], greedy())]), 0), logits_alone(tiny_model(kv=kv), PROMPT[:5])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": np.array([VOCAB], np.int32)}, "outside the vocabulary"),
        ({"query_starts": np.array([0, 2], np.int32)}, "query_starts"),
        ({"context_lens": np.array([0], np.int32)}, "shorter"),
        ({"block_tables": np.array([[64]], np.int32)}, "no KV block 64"),
        ({"context_lens": np.array([17], np.int32)}, "block table is too short"),
        ({"samplers": []}, "samplers"),
        ({"num_drafts": np.array([1], np.int32)}, "too many drafts"),
        ({"positions": np.zeros((2, 1), np.int32)}, "positions"),
        ({"mask_rows": np.array([0], np.int32)}, "go together"),
        ({"embeddings": np.zeros((1, 5), np.float32), "embedding_rows": np.array([0], np.int32)}, "embeddings"),
        ({"layer_additions": [(7, np.array([0], np.int32), np.zeros((1, 96), np.float32))]}, "no such layer"),
        ({"prompt_logprobs": [(0, 1, np.array([1, 2], np.int32))]}, "one next token per row"),
    ],
)
def test_inconsistent_input_is_refused(change, message):
    good = {
        "token_ids": np.array([1], np.int32),
        "positions": np.array([0], np.int32),
        "query_starts": np.array([0, 1], np.int32),
        "context_lens": np.array([1], np.int32),
        "block_tables": np.array([[0]], np.int32),
        "samplers": [None],
    }
    with pytest.raises(ValueError, match=message):
        tiny_model().step(**(good | change))


def test_an_unknown_cache_type_is_refused():
    model = tiny_model()
    for method, arguments in ((model.block_bytes, (16, "int4")), (model.allocate_cache, (4, 16, "int4"))):
        with pytest.raises(ValueError, match="kv_dtype must be int16, int8, float16 or float32, got 'int4'"):
            method(*arguments)


def test_missing_and_misshapen_weights_are_named():
    model = _native.Model(spec())
    with pytest.raises(ValueError, match="output is missing"):
        model.finish()
    model.set_matrix("output", matrix(TensorType.F32, 3, 96, 0))
    with pytest.raises(ValueError, match="output has 3 rows, expected 200"):
        model.finish()
    with pytest.raises(ValueError, match=r"unknown matrix layers\.9\.qkv"):
        model.set_matrix("layers.9.qkv", matrix(TensorType.F32, 3, 96, 0))
    for change in ({"num_kv_heads": 4}, {"windows": [1]}, {"scoring": "best"}, {"norm_eps": float("nan")}, {"hidden_size": -1}):
        with pytest.raises(ValueError, match="model specification"):
            _native.Model(spec(**change))
