"""The numbers that `benchmarks/peers.py` prints, from canned rates."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def rates() -> ModuleType:
    """`benchmarks/rates.py`, which no package holds."""
    path = Path(__file__).parents[2] / "benchmarks" / "rates.py"
    spec = importlib.util.spec_from_file_location("benchmark_rates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# The machine is twice as fast in the last round: that must not reach the ratios.
SAMPLES = {
    "decode-8": {"trivium": [100.0, 120.0, 220.0], "llama.cpp": [50.0, 40.0, 100.0], "openvino": [80.0, 80.0, 160.0]},
    "prefill-512": {"trivium": [300.0, 500.0, 400.0], "llama.cpp": [200.0, None, 100.0], "openvino": [None, None, None]},
}


def test_spread_is_median_and_extremes(rates: ModuleType) -> None:
    assert rates.spread([3.0, None, 1.0, 8.0]) == rates.Spread(3.0, 1.0, 8.0)
    assert rates.spread([None]) is None


def test_ratio_is_the_median_of_the_rounds_quotients(rates: ModuleType) -> None:
    assert rates.ratio([100.0, 120.0, 220.0], [50.0, 40.0, 100.0]) == pytest.approx(2.2)
    assert rates.ratio([100.0, 300.0], [None, 100.0]) == pytest.approx(3.0)
    assert rates.ratio([100.0], [None]) is None


def test_summary_compares_with_each_peer_and_finds_the_best(rates: ModuleType) -> None:
    summary = rates.summarize(SAMPLES, "trivium")["decode-8"]
    assert summary.best_peer == "openvino"
    assert summary.ratios == {"llama.cpp": pytest.approx(2.2), "openvino": pytest.approx(1.375)}
    assert summary.rates["trivium"].median == 120.0


def test_an_engine_that_failed_takes_no_part(rates: ModuleType) -> None:
    summary = rates.summarize(SAMPLES, "trivium")["prefill-512"]
    assert set(summary.rates) == {"trivium", "llama.cpp"}
    assert summary.ratios == {"llama.cpp": pytest.approx(2.75)}


def test_table(rates: ModuleType) -> None:
    lines = rates.table(SAMPLES, "trivium").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [
        "case",
        "trivium",
        "llama.cpp",
        "openvino",
        "trivium / best peer",
        *(f"trivium / {peer}" for peer in ("llama.cpp", "openvino")),
    ]
    assert set("".join(cells[1])) == {"-"}
    assert cells[2] == [
        "decode-8", "120.0 (100.0..220.0)", "50.0 (40.0..100.0)", "80.0 (80.0..160.0)", "1.38 (openvino)", "2.20", "1.38"
    ]  # fmt: skip
    assert cells[3] == [
        "prefill-512", "400.0 (300.0..500.0)", "150.0 (100.0..200.0)", "failed", "2.75 (llama.cpp)", "2.75", "-"
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1


def test_table_of_peers_alone_has_no_ratios(rates: ModuleType) -> None:
    table = rates.table({"decode-1": {"llama.cpp": [10.0]}}, "trivium")
    assert table.splitlines()[2].replace(" ", "") == "|decode-1|10.0(10.0..10.0)|-(llama.cpp)|-|"
