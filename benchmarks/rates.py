"""From the rates of every round to medians, ratios and a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CaseSummary", "Spread", "ratio", "spread", "summarize", "table"]

Rates = Sequence[float | None]  # tokens per second, one per round; None: the engine failed in that round
Samples = Mapping[str, Mapping[str, Rates]]  # case -> engine -> rates


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some numbers."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}..{self.high:.1f})"


@dataclass(frozen=True)
class CaseSummary:
    """One case: the rate of each engine, and ours divided by each peer's. The best peer has the greatest median."""

    rates: dict[str, Spread]
    ratios: dict[str, float]
    best_peer: str | None


def spread(rates: Rates) -> Spread | None:
    """None if every round failed."""
    known = [rate for rate in rates if rate is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def ratio(ours: Rates, theirs: Rates) -> float | None:
    """Median over the rounds of ours / theirs.

    The engines of one round ran within a minute or two of each other, so a machine whose speed drifts from round to round
    changes both sides of a quotient alike. None if no round has both.
    """
    quotients = [a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return statistics.median(quotients) if quotients else None


def summarize(samples: Samples, ours: str) -> dict[str, CaseSummary]:
    """Every case, with engine `ours` compared to all others."""
    return {case: _summarize_case(rates, ours) for case, rates in samples.items()}


def table(samples: Samples, ours: str) -> str:
    """A Markdown table with a row per case: the engines' rates, ours over the best peer's, ours over each peer's."""
    engines = list(dict.fromkeys(engine for rates in samples.values() for engine in rates))
    peers = [engine for engine in engines if engine != ours]
    rows = [["case", *engines, f"{ours} / best peer", *(f"{ours} / {peer}" for peer in peers)]]
    for case, summary in summarize(samples, ours).items():
        best = "-" if summary.best_peer is None else f"{_number(summary.ratios.get(summary.best_peer))} ({summary.best_peer})"
        rates = [str(summary.rates.get(engine, "failed")) for engine in engines]
        rows.append([case, *rates, best, *(_number(summary.ratios.get(peer)) for peer in peers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _summarize_case(rates: Mapping[str, Rates], ours: str) -> CaseSummary:
    spreads = {engine: found for engine, own in rates.items() if (found := spread(own)) is not None}
    peers = [engine for engine in spreads if engine != ours]
    quotients = {peer: ratio(rates[ours], rates[peer]) for peer in peers if ours in spreads}
    return CaseSummary(
        rates=spreads,
        ratios={peer: quotient for peer, quotient in quotients.items() if quotient is not None},
        best_peer=max(peers, key=lambda peer: spreads[peer].median, default=None),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
