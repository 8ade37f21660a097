"""What `benchmarks/peers.py` asks of engines, and how rates come from times."""

from __future__ import annotations

import pytest
from benchmark_parts import benchmark

cases = benchmark("cases")
peers = benchmark("peers")
protocol = benchmark("protocol", "runners")

SIZES = cases.Sizes()


def test_cases_by_name() -> None:
    assert cases.read_case("decode-8", SIZES) == {
        "kind": "decode", "batch": 8, "prompt_tokens": 128, "output_tokens": 128, "shortest": 0
    }  # fmt: skip
    prefill = cases.read_case("prefill-512", SIZES)
    assert (prefill["batch"], prefill["prompt_tokens"], prefill["output_tokens"]) == (1, 512, 1)
    long = cases.read_case("long-4", SIZES)
    assert (long["batch"], long["prompt_tokens"], long["output_tokens"]) == (4, 7000, 256)
    offline = cases.read_case("offline-64", SIZES)
    assert (offline["batch"], offline["prompt_tokens"], offline["output_tokens"], offline["shortest"]) == (64, 1024, 1024, 100)


@pytest.mark.parametrize("name", ["decode", "decode-0", "encode-3", "long-4x"])
def test_an_unknown_case_is_named(name: str) -> None:
    with pytest.raises(SystemExit, match=repr(name)):
        cases.read_case(name, SIZES)


def test_rows_and_room() -> None:
    long, decode = cases.read_case("long-4", SIZES), cases.read_case("decode-32", SIZES)
    assert cases.rows("long-4", long) == {"prefill": "long-4 prefill", "decode": "long-4 decode"}
    assert cases.rows("decode-32", decode) == {"": "decode-32"}
    assert cases.kv_tokens([long, decode]) == 4 * 7256


def test_phases_are_until_all_have_begun_and_while_all_decode() -> None:
    case = protocol.Case("long", 2, 100, 4, 0, seed=0)
    # The first sequence decodes two tokens while the second is still read; the second one's last token comes alone.
    times = [[12.0, 13.0, 14.0, 15.0, 15.5], [13.5, 14.0, 15.0, 15.5, 16.0]]
    rates = protocol.phases(case, 10.0, times)
    assert rates["prefill"] == pytest.approx(200 / 3.5)
    assert rates["decode"] == pytest.approx(6 / 2.0)


def test_phases_need_a_time_in_which_all_decode() -> None:
    case = protocol.Case("long", 2, 100, 2, 0, seed=0)
    with pytest.raises(RuntimeError, match="all 2 sequences"):
        protocol.phases(case, 0.0, [[1.0, 2.0], [3.0, 4.0]])


def test_offline_prompts_come_from_the_seed() -> None:
    case = protocol.Case("offline", 50, 1024, 1024, 100, seed=3)
    prompts, lengths = protocol.offline_prompts(case, 32000)
    assert (prompts, lengths) == protocol.offline_prompts(case, 32000)
    sizes = [len(prompt) for prompt in prompts] + lengths
    assert min(sizes) >= 100
    assert max(sizes) <= 1024
    assert len(set(sizes)) > 50
    assert all(2000 <= token < 16000 for prompt in prompts for token in prompt)


def test_pythons_and_settings_of_engines() -> None:
    choices = ["/a/python", "vllm=/b/python"]
    assert peers.python_of("openvino", choices) == "/a/python"
    assert peers.python_of("vllm", choices) == "/b/python"
    assert peers.python_of("trivium", choices) not in choices
    settings = ["trivium:prompt_lookup=true", "trivium:kv_cache_dtype=float16", "openvino:KV_CACHE_PRECISION=u8"]
    assert peers.settings_of("trivium", settings) == {"prompt_lookup": True, "kv_cache_dtype": "float16"}
    with pytest.raises(SystemExit, match="wrong"):
        peers.settings_of("trivium", ["wrong"])
