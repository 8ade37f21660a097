"""Every argument of `LLM`: honoured, noted or refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from trivium.config import EngineConfig
from trivium.doors.library.arguments import ARGUMENTS, ENVIRONMENT, SPECULATIVE_KEYS, argument_table, read_arguments
from trivium.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs" / "library.md"

# The arguments of FastDeploy's offline engine that its documents name.
FASTDEPLOY = {
    "model",
    "revision",
    "tokenizer",
    "enable_logprob",
    "chat_template",
    "enable_mm",
    "port",
    "metrics_port",
    "max_model_len",
    "tensor_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "kv_cache_ratio",
    "enable_prefix_caching",
    "enable_output_caching",
    "swap_space",
    "kvcache_storage_backend",
    "write_policy",
    "enable_chunked_prefill",
    "max_num_partial_prefills",
    "max_long_partial_prefills",
    "long_prefill_token_threshold",
    "disable_chunked_mm_input",
    "quantization",
    "load_choices",
    "dynamic_load_weight",
    "load_strategy",
    "seed",
    "reasoning_parser",
    "tool_call_parser",
    "tool_parser_plugin",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "max_encoder_cache",
    "max_processor_cache",
    "speculative_config",
    "guided_decoding_backend",
    "guided_decoding_disable_any_whitespace",
    "max_logprobs",
    "logprobs_mode",
    "logits_processors",
    "enable_early_stop",
    "early_stop_config",
    "plas_attention_config",
    "graph_optimization_config",
    "splitwise_role",
    "runner",
    "convert",
    "model_impl",
    "lm_head_fp32",
    "enable_entropy",
    "enable_keep_sampling_mask",
    "disable_custom_all_reduce",
    "enable_overlap_schedule",
    "enable_chunked_moe",
    "engine_worker_queue_port",
    "cache_queue_port",
}


def read(**kwargs: Any) -> Any:
    return read_arguments(model="m", environ={}, **kwargs)


def test_every_fastdeploy_argument_is_classified() -> None:
    names = [row.name for row in ARGUMENTS]
    assert len(names) == len(set(names))
    assert set(names) >= FASTDEPLOY


def test_every_engine_option_can_be_set() -> None:
    settable = {row.field for row in ARGUMENTS}
    assert settable - {None} == set(EngineConfig.help())


def test_refused_arguments_say_so() -> None:
    for row in ARGUMENTS:
        if row.status == "refused":
            with pytest.raises(ConfigError, match=f"^{row.name}='something' is not supported: "):
                read(**{row.name: "something"})
            for neutral in row.neutral:
                read(**{row.name: neutral})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("revision", "v1.0"),
        ("quantization", "wint2"),
        ("quantization", "block_wise_fp8"),
        ("quantization", {"dense": "wint8"}),
        ("splitwise_role", "prefill"),
        ("runner", "pooling"),
        ("load_choices", "dummy"),
        ("speculative_config", {"method": "mtp"}),
        ("speculative_config", {"method": "ngram", "model": "draft"}),
        ("speculative_config", "{not json"),
        ("speculative_config", {"method": "ngram", "num_speculative_tokens": 6}),
        ("enable_early_stop", True),
        ("enable_early_stop", 0),
        ("gpu_memory_utilization", 1.5),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", float("nan")),
        ("kv_cache_ratio", 1.1),
        ("kv_cache_ratio", float("nan")),
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", "2"),
        ("enable_chunked_prefill", "yes"),
        ("guided_decoding_backend", "outlines"),
        ("logprobs_mode", "raw"),
        ("logits_processors", ["Mine"]),
        ("limit_mm_per_prompt", {"picture": 1}),
        ("limit_mm_per_prompt", {"image": -1}),
        ("max_model_len", 8),
        ("max_model_len", "long"),
        ("max_num_seqs", 0),
        ("reasoning_parser", "nobody"),
        ("tool_call_parser", "nobody"),
        ("chat_template", "no/such/file.jinja"),
    ],
)
def test_wrong_values_are_value_errors_that_name_the_argument(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        read(**{name: value})


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(TypeError, match="'resoning_parser'; did you mean 'reasoning_parser'"):
        read(resoning_parser="qwen3")
    with pytest.raises(TypeError, match="'num_speculative_token'; did you mean 'num_speculative_tokens'"):
        read(speculative_config={"num_speculative_token": 1})


def test_unknown_parsers_are_key_errors() -> None:
    with pytest.raises(KeyError):
        read(reasoning_parser="nobody")


def test_honoured_values_reach_the_configuration() -> None:
    options = read(
        max_model_len=4096,
        max_num_seqs=7,
        max_num_batched_tokens=None,
        num_gpu_blocks_override=99,
        quantization="wint8",
        enable_prefix_caching=False,
        activation_dtype="int16",
        num_threads=2,
        max_waiting=3,
        seed=5,
        logprobs_mode="processed_logits",
        limit_mm_per_prompt={"image": 100},
        reasoning_parser="qwen3",
    )
    config = options.config
    assert (config.max_model_len, config.max_num_seqs, config.num_kv_blocks) == (4096, 7, 99)
    assert config.max_num_batched_tokens == EngineConfig.default("max_num_batched_tokens")
    assert (config.quantization, config.enable_prefix_caching, config.activation_dtype) == ("wint8", False, "int16")
    assert (config.num_threads, config.max_waiting, config.seed) == (2, 3, 5)
    assert (options.logprobs_mode, config.reasoning_parser) == ("processed_logits", "qwen3")
    assert options.limit_mm_per_prompt == {"image": 100, "video": 1, "audio": 1}


def test_two_names_of_one_option_contradict() -> None:
    with pytest.raises(ConfigError, match="num_kv_blocks and num_gpu_blocks_override name the same thing"):
        read(num_kv_blocks=98, num_gpu_blocks_override=99)
    with pytest.raises(ConfigError, match="num_gpu_blocks_override and num_kv_blocks name the same thing"):
        read(num_gpu_blocks_override=99, num_kv_blocks=98)


def test_the_environment_stands_below_arguments() -> None:
    environ = {"TRIVIUM_MAX_NUM_SEQS": "5", "TRIVIUM_BLOCK_SIZE": "32"}
    config = read_arguments(model="m", environ=environ, max_num_seqs=6).config
    assert (config.max_num_seqs, config.block_size) == (6, 32)


def test_noted_arguments_log_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trivium"):
        read(
            tensor_parallel_size=8,
            gpu_memory_utilization=0.5,
            speculative_config={"method": "ngram", "num_speculative_tokens": 2},
        )
    assert [re.match(r"\w+", record.getMessage())[0] for record in caplog.records] == [  # type: ignore[index]
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "speculative_config",
    ]


def test_neutral_values_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trivium"):
        read(
            tensor_parallel_size=1,
            enable_chunked_prefill=True,
            load_choices="default_v1",
            splitwise_role="mixed",
            revision="master",
        )
    assert not caplog.records


def test_fastdeploy_variables_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trivium"):
        read_arguments(model="m", environ={"FD_SAMPLING_CLASS": "rejection", "FD_LOG_DIR": "log", "HOME": "/"})
    assert [record.getMessage().split()[0] for record in caplog.records] == ["FD_SAMPLING_CLASS"]


def test_chat_templates_may_be_text_or_paths(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}!", encoding="utf-8")
    assert read(chat_template="{{ messages }}").config.chat_template == "{{ messages }}"
    assert read(chat_template=str(file)).config.chat_template == "{{ messages }}!"
    assert read(chat_template=file).config.chat_template == "{{ messages }}!"
    with pytest.raises(OSError, match=r"nothing\.jinja"):
        read(chat_template=tmp_path / "nothing.jinja")
    with pytest.raises(ConfigError, match="chat_template must be"):
        read(chat_template=5)


def test_the_documentation_holds_the_tables() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for rows in (ARGUMENTS, SPECULATIVE_KEYS, ENVIRONMENT):
        assert argument_table(rows) in text
