"""Draw what `peers.py --json` measured: tokens per second of every engine, and Trivium's ratio to the best peer, case by case.

    python benchmarks/plot.py peers.json avx2.json peers.svg --title AVX-512 --title AVX2

Every case has a scale of its own, since its rates have nothing to do with those of another. Several files are drawn as rows.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Bars", "read_bars"]

OURS = "trivium"
NAMES = {
    "trivium": "Trivium",
    "llama.cpp": "llama.cpp",
    "openvino": "OpenVINO GenAI",
    "transformers": "transformers",
    "vllm": "vLLM",
}
COLOURS = {
    "trivium": "#d9480f",
    "llama.cpp": "#5c7cfa",
    "openvino": "#12b886",
    "transformers": "#adb5bd",
    "vllm": "#845ef7",
}
KINDS = {
    "decode": "decode\n{} at once",
    "prefill": "prefill\n{} tokens",
    "long": "long prompt, {}\n{}",
    "offline": "offline\n{} requests",
}


@dataclass(frozen=True)
class Bars:
    """One case: its title, each engine's median with least and greatest rate, and our ratio to the best peer."""

    title: str
    rates: dict[str, tuple[float, float, float]]
    ratio: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="JSON", help="files of peers.py")
    parser.add_argument("image", type=Path, metavar="IMAGE", help="file to write, .svg or .png")
    parser.add_argument("--title", action="append", default=[], help="of a report, in their order (default: its model)")
    options = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in options.reports]
    titles = options.title + [Path(report["model"]).name for report in reports[len(options.title) :]]
    draw([(title, read_bars(report)) for title, report in zip(titles, reports, strict=False)], options.image)


def read_bars(report: Mapping[str, Any]) -> list[Bars]:
    """The cases of a report, in its order; engines that failed in every round are left out."""
    bars = []
    for case, samples in report["samples"].items():
        rates = {}
        for engine, values in samples.items():
            known = [value for value in values if value is not None]
            if known:
                rates[engine] = (report["summary"][case]["median"][engine], min(known), max(known))
        summary = report["summary"][case]
        bars.append(Bars(title(case), rates, summary["ratio"].get(summary["best_peer"])))
    return bars


def title(case: str) -> str:
    """What a case's name means, in two lines."""
    name, _, phase = case.partition(" ")
    kind, _, number = name.partition("-")
    return KINDS[kind].format(number, phase)


def draw(rows: list[tuple[str, list[Bars]]], image: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "trivium"  # the same file from the same numbers
    from matplotlib import pyplot

    columns = max(len(bars) for _, bars in rows)
    figure, axes = pyplot.subplots(len(rows), columns, figsize=(1.75 * columns, 2.9 * len(rows) + 0.5), squeeze=False)
    engines: dict[str, Any] = {}
    for line, (name, bars) in zip(axes, rows, strict=True):
        for axis, case in zip(line, bars, strict=False):
            engines |= draw_case(axis, case)
        for axis in line[len(bars) :]:
            axis.set_axis_off()
        line[0].set_ylabel(f"{name}\ntokens per second", fontsize=8)
    figure.legend(
        engines.values(), [NAMES[engine] for engine in engines], loc="lower center", ncols=len(engines), frameon=False
    )
    figure.tight_layout(rect=(0, 0.09 / len(rows), 1, 1))
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, metadata={"Date": None} if image.suffix == ".svg" else None)
    pyplot.close(figure)


def draw_case(axis: Any, case: Bars) -> dict[str, Any]:
    """One small diagram. Returns its bars by engine, for the legend."""
    drawn = {}
    for place, (engine, (median, low, high)) in enumerate(case.rates.items()):
        drawn[engine] = axis.bar(place, median, yerr=[[median - low], [high - median]], color=COLOURS[engine], ecolor="#495057")
        axis.text(place, high, f"{rounded(median)}", ha="center", va="bottom", fontsize=7)
    axis.set_title(case.title, fontsize=8)
    axis.set_xticks([])
    axis.margins(y=0.15)
    axis.tick_params(labelsize=6)
    axis.spines[["top", "right"]].set_visible(False)
    if case.ratio is not None:
        axis.set_xlabel(f"{case.ratio:.2f} x the best peer", fontsize=8)
    return drawn


def rounded(value: float) -> str:
    """Three significant digits, none of them behind a point from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 0.01))))}f}"


if __name__ == "__main__":
    main()
