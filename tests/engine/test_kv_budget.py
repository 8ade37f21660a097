"""Division of memory into KV blocks."""

from __future__ import annotations

import re

import pytest

from trivium.config import EngineConfig
from trivium.engine.kv_budget import kv_cache_dtype, plan_kv_blocks
from trivium.errors import ConfigError

BLOCK = 1000  # bytes


def plan(memory=10**9, model_max_len=2048, **options):
    config = EngineConfig(block_size=64, **options)
    return plan_kv_blocks(config, block_bytes=BLOCK, model_max_len=model_max_len, available_memory=lambda: memory)


def test_takes_a_quarter_of_the_memory():
    budget = plan(memory=400_000)
    assert budget.num_blocks == 100
    assert budget.nbytes == 100_000
    assert budget.max_model_len == 2048


def test_takes_no_more_than_all_sequences_can_use():
    assert plan(max_num_seqs=4).num_blocks == 4 * 32
    assert plan(max_num_seqs=4, max_model_len=100).num_blocks == 4 * 2


def test_context_is_cut_to_what_the_cache_holds():
    assert plan(memory=4 * 3 * BLOCK).max_model_len == 3 * 64
    assert plan(memory=4 * 3 * BLOCK, model_max_len=100).max_model_len == 100


def test_configured_memory_and_blocks_replace_the_share():
    def no_memory():
        raise AssertionError("asked for the memory")

    for options, blocks in (
        ({"kv_cache_memory": 5999}, 5),
        ({"num_kv_blocks": 7}, 7),
        ({"num_kv_blocks": 7, "kv_cache_memory": 1}, 7),
    ):
        config = EngineConfig(block_size=64, **options)
        budget = plan_kv_blocks(config, block_bytes=BLOCK, model_max_len=2048, available_memory=no_memory)
        assert budget.num_blocks == blocks
        assert budget.max_model_len == blocks * 64


def test_no_block_fits():
    with pytest.raises(ConfigError, match=r"kv_cache_memory=999 holds 0 tokens of KV cache, fewer than 16.*1000 bytes"):
        plan(kv_cache_memory=999)
    with pytest.raises(ConfigError, match=r"25% of the available memory \(0 bytes\) holds 0 tokens"):
        plan(memory=0)


def test_configured_context_does_not_fit():
    message = (
        "max_model_len=500 does not fit the KV cache: num_kv_blocks=7 holds 448 tokens; "
        "use max_model_len <= 448, or kv_cache_memory >= 8000 (8 blocks)"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(num_kv_blocks=7, max_model_len=500)
    assert plan(num_kv_blocks=7, max_model_len=448).max_model_len == 448


def test_configured_context_is_longer_than_the_model_allows():
    with pytest.raises(ConfigError, match=r"max_model_len must be <= 2048.*got 2049"):
        plan(max_model_len=2049)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "int16"),
        ({"activation_dtype": "int16"}, "int16"),
        ({"activation_dtype": "float32"}, "float32"),
        ({"activation_dtype": "float32", "kv_cache_dtype": "float16"}, "float16"),
        ({"kv_cache_dtype": "float32"}, "float32"),
        ({"kv_cache_dtype": "int8"}, "int8"),
        ({"activation_dtype": "float32", "kv_cache_dtype": "int8"}, "int8"),
    ],
)
def test_cache_type(options, dtype):
    assert kv_cache_dtype(EngineConfig(**options)) == dtype


def test_unknown_cache_type():
    allowed = "'auto' or 'int16' or 'int8' or 'float16' or 'float32'"
    with pytest.raises(ConfigError, match=f"kv_cache_dtype must be {allowed}, got 'int4'"):
        EngineConfig(kv_cache_dtype="int4")
