from __future__ import annotations

import json

import pytest
from cli_parts import run, use_engine

from trivium.cli.bench.local import Timing, tpot
from trivium.cli.bench.report import spread


@pytest.fixture
def opened(monkeypatch):
    return use_engine(monkeypatch, lambda *_: "x" * 400, pace=0.0005)


def test_latency(opened):
    result = run(
        "bench", "latency", "--input-len", 5, "--output-len", 4, "--batch-size", 3, "--iters", 2, "--warmup", 1, "--json"
    )
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    for name in ("ttft_seconds", "tpot_seconds", "total_seconds"):
        assert 0 < report[name]["median"] <= report[name]["p90"] <= report[name]["p99"]
    rates = report["output_tokens_per_second"]
    assert 0 < rates["least"] <= rates["median"] == pytest.approx(rates["mean"])  # of two runs
    assert report["ttft_seconds"]["mean"] < report["total_seconds"]["mean"]
    (engine,) = opened
    assert engine.chunks == [3, 3, 3]
    config = engine.opened_with
    assert (config.enable_prefix_caching, config.prompt_lookup, config.max_num_seqs) == (False, False, 3)
    for request in engine.requests:
        sampling = request.sampling
        assert len(request.prompt_token_ids) == 5
        assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos, sampling.greedy) == (4, 4, True, True)
        assert not request.streamed
    assert len({tuple(request.prompt_token_ids) for request in engine.requests}) == 9


@pytest.mark.parametrize("flags", [[], ["--max-num-seqs", 5]])
def test_batches_beyond_the_most_sequences_wait(opened, flags):
    args = ["--input-len", 1, "--output-len", 1, "--batch-size", 4097, "--iters", 1, "--warmup", 0, *flags]
    assert run("bench", "latency", *args).exit_code == 0
    (engine,) = opened
    assert engine.chunks == [4097]
    assert engine.opened_with.max_num_seqs == (5 if flags else 4096)


def test_throughput_of_ranges(opened):
    result = run("bench", "throughput", "--num-prompts", 700, "--input-len", "2:6", "--output-len", "1:2", "--json")
    report = json.loads(result.stdout)
    (engine,) = opened
    assert engine.chunks == [1, 700]
    requests = engine.requests[1:]
    lengths = [len(request.prompt_token_ids) for request in requests]
    assert set(lengths) == {2, 3, 4, 5, 6}
    assert report["input_tokens"] == sum(lengths)
    assert report["output_tokens"] == sum(request.sampling.max_tokens for request in requests)
    assert report["requests_per_second"] == pytest.approx(700 / report["seconds"])
    assert report["output_tokens_per_second"] == pytest.approx(report["output_tokens"] / report["seconds"])


def test_same_seed_same_prompts(opened):
    for seed in (1, 1, 2):
        run("bench", "throughput", "--num-prompts", 2, "--input-len", 8, "--output-len", 1, "--seed", seed)
    first, second, third = [[request.prompt_token_ids for request in engine.requests] for engine in opened]
    assert first == second != third


def test_answers_of_one_token_have_no_time_per_token():
    assert tpot([Timing(1.0, 1.0, 1), Timing(1.0, 5.0, 3)]) == [2.0]
    assert tpot([Timing(1.0, 1.0, 1)]) == [0.0]


def test_table(opened):
    lines = run("bench", "latency", "--input-len", 2, "--output-len", 1, "--iters", 1).stdout.splitlines()
    assert any(line.startswith("ttft ") and "median" in line and " ms" in line for line in lines)
    assert any(line.startswith("tpot ") and "mean 0.00 ms" in line for line in lines)  # there is no second token


@pytest.mark.parametrize("length", ["0", "5:3", "x", "3:", ":3", "-1", "1:2:3"])
def test_wrong_lengths(length, opened):
    result = run("bench", "throughput", "--input-len", length)
    assert result.exit_code == 2
    assert "--input-len" in result.stderr
    assert opened == []


def test_too_long(opened):
    result = run("bench", "latency", "--input-len", 600)
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: the prompt has 600 tokens")


def testspread():
    values = [float(i) for i in range(1, 101)]
    assert spread(values[::-1]) == {"mean": 50.5, "median": 50.5, "p90": 90.0, "p99": 99.0}
    assert spread([2.0]) == {"mean": 2.0, "median": 2.0, "p90": 2.0, "p99": 2.0}
