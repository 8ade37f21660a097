"""What is printed in the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import click

__all__ = ["rates", "show", "spread"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, and the values that 90 and 99 of 100 do not exceed (nearest rank)."""
    ordered = sorted(values)

    def percentile(percent: int) -> float:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return {
        "mean": statistics.fmean(ordered),
        "median": statistics.median(ordered),
        "p90": percentile(90),
        "p99": percentile(99),
    }


def rates(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and least: the highest percentiles of a rate would be those of the fastest runs."""
    return {"mean": statistics.fmean(values), "median": statistics.median(values), "least": min(values)}


def show(report: dict[str, Any], as_json: bool) -> None:
    """Print figures by name: those of seconds in milliseconds, or all as one JSON object."""
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        label = name.removesuffix("_seconds").replace("_", " ")
        unit = " ms" if name.endswith("_seconds") else ""
        if isinstance(value, dict):
            scale = 1000 if unit else 1
            figures = "  ".join(f"{key} {scale * figure:.2f}{unit}" for key, figure in value.items())
        else:
            figures = f"{value:.2f}" if isinstance(value, float) else str(value)
        click.echo(f"{label:<26} {figures}")
