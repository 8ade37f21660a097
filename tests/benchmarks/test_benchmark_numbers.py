"""The pure parts of the other scripts of benchmarks/."""

from __future__ import annotations

import struct

import pytest
from benchmark_parts import benchmark

plot = benchmark("plot")
prepare = benchmark("prepare", "hide_avx512")
smooth_streams = benchmark("smooth_streams")
speculation = benchmark("speculation")

REPORT = {
    "samples": {
        "decode-8": {"trivium": [100.0, 120.0], "llama.cpp": [50.0, None]},
        "long-4 prefill": {"trivium": [30.0, 30.0], "llama.cpp": [None, None]},
    },
    "summary": {
        "decode-8": {"median": {"trivium": 110.0, "llama.cpp": 50.0}, "ratio": {"llama.cpp": 2.0}, "best_peer": "llama.cpp"},
        "long-4 prefill": {"median": {"trivium": 30.0}, "ratio": {}, "best_peer": None},
    },
}


def test_bars_of_a_report() -> None:
    assert plot.read_bars(REPORT) == [
        plot.Bars("decode\n8 at once", {"trivium": (110.0, 100.0, 120.0), "llama.cpp": (50.0, 50.0, 50.0)}, 2.0),
        plot.Bars("long prompt, 4\nprefill", {"trivium": (30.0, 30.0, 30.0)}, None),
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.4, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0, "0.0000")]
)
def test_rounded(value: float, text: str) -> None:
    assert plot.rounded(value) == text


def test_gaps_before_and_while_a_prompt_is_read() -> None:
    times = [1.0, 2.0, 3.0, 4.0, 6.5, 9.0, 9.5]
    before, late = smooth_streams.split_gaps(times, begun=2.0, arrival=4.5, first_token=9.0)
    assert before == [1.0, 1.0]
    assert late == [2.5, 2.5]


def test_percentile_is_a_value_that_occurred() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert smooth_streams.percentile(values, 0.99) == 99.0
    assert smooth_streams.percentile(values, 0.5) == 50.0
    assert smooth_streams.percentile([7.0], 0.99) == 7.0


def test_interval_holds_the_median() -> None:
    ratios = [0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    low, high = speculation.interval(ratios)
    assert 0.9 <= low < 1.3 < high <= 1.7
    assert speculation.interval([2.0] * 5) == (2.0, 2.0)


def test_share_of_what_was_said_before() -> None:
    passage = list(range(20))
    assert speculation.share_said_before(passage, list(range(100, 110))) == 0.0
    assert speculation.share_said_before(passage, passage) == pytest.approx(13 / 20)
    assert speculation.share_said_before([], [5] * 10) == pytest.approx(2 / 10)


def test_texts_have_names_of_their_own() -> None:
    names = [text.name for text in speculation.TEXTS]
    assert len(set(names)) == len(names)
    assert {text.repeats for text in speculation.TEXTS} == {True, False}


def test_addresses_in_an_elf_file() -> None:
    header = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, 2) + bytes(6)
    data = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, 0x500, 0x500, 0x1000)
    code = struct.pack("<IIQQQQQQ", 1, 5, 0x600, 0x2600, 0x2600, 0x300, 0x300, 0x1000)
    segments = prepare.executable_segments(header + data + code)
    assert segments == [(0x2600, 0x600, 0x300)]
    assert prepare.file_offset(0x2610, segments) == 0x610
    with pytest.raises(SystemExit, match="0x10"):
        prepare.file_offset(0x10, segments)
    with pytest.raises(SystemExit, match="ELF"):
        prepare.executable_segments(b"#!/bin/sh")
