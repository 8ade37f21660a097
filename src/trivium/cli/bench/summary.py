"""The figures of a load test, and how they are printed: as `vllm bench serve` has them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from trivium.cli.bench.outcome import Outcome
from trivium.cli.bench.report import spread

__all__ = ["details", "summarise", "to_text"]

_WIDTH = 50
_LATENCIES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
_MAX_ERRORS = 5  # kinds of errors that are told


def summarise(outcomes: Sequence[Outcome], seconds: float, goodput: Mapping[str, float]) -> dict[str, Any]:
    """Figures by the names of vLLM's results. `goodput` holds milliseconds that a good request does not exceed, by latency."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    tokens_in = sum(outcome.prompt_tokens for outcome in good)
    tokens_out = sum(outcome.output_tokens for outcome in good)
    summary: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(good) / seconds,
        "request_goodput": sum(_is_good(outcome, goodput) for outcome in good) / seconds if goodput else None,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
        "max_output_tokens_per_s": _peak_rate(good),
        "max_concurrent_requests": _peak_concurrency(good),
    }
    samples = {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [outcome.tpot for outcome in good if outcome.output_tokens > 1],
        "itl": [gap for outcome in good for gap in outcome.itl],
        "e2el": [outcome.e2el for outcome in good],
    }
    for name, values in samples.items():
        milliseconds = [1000 * value for value in values] or [0.0]
        figures = spread(milliseconds) | {"std": statistics.pstdev(milliseconds)}
        for key in ("mean", "median", "std", "p90", "p99"):
            summary[f"{key}_{name}_ms"] = figures[key]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    summary["error_counts"] = dict(errors.most_common(_MAX_ERRORS))
    return summary


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What became of each request, in the order in which they were sent."""
    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itl for outcome in outcomes],
        "latencies": [outcome.e2el for outcome in outcomes],
        "start_times": [outcome.start for outcome in outcomes],
        "errors": [outcome.error or "" for outcome in outcomes],
    }


def to_text(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The table that people know. `settings` are the command's."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]

    def add(label: str, value: float | int) -> None:
        lines.append(f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}")

    add("Successful requests:", summary["completed"])
    add("Failed requests:", summary["failed"])
    if settings["max_concurrency"] is not None:
        add("Maximum request concurrency:", settings["max_concurrency"])
    if settings["request_rate"] != "inf":
        add("Request rate configured (RPS):", settings["request_rate"])
    add("Benchmark duration (s):", summary["duration"])
    add("Total input tokens:", summary["total_input_tokens"])
    add("Total generated tokens:", summary["total_output_tokens"])
    add("Request throughput (req/s):", summary["request_throughput"])
    if summary["request_goodput"] is not None:
        add("Request goodput (req/s):", summary["request_goodput"])
    add("Output token throughput (tok/s):", summary["output_throughput"])
    add("Peak output token throughput (tok/s):", summary["max_output_tokens_per_s"])
    add("Peak concurrent requests:", summary["max_concurrent_requests"])
    add("Total token throughput (tok/s):", summary["total_token_throughput"])
    for name, (short, title) in _LATENCIES.items():
        lines.append(f"{title:-^{_WIDTH}}")
        for key in ("mean", "median", "p90", "p99"):
            add(f"{key.capitalize()} {short} (ms):", summary[f"{key}_{name}_ms"])
    lines.append("=" * _WIDTH)
    lines += [f"{count} failed: {error}" for error, count in summary["error_counts"].items()]
    return "\n".join(line.rstrip() for line in lines)


def _is_good(outcome: Outcome, goodput: Mapping[str, float]) -> bool:
    return all(1000 * getattr(outcome, name) <= limit for name, limit in goodput.items())


def _peak_rate(good: Sequence[Outcome]) -> float:
    """Most tokens that came within one second. The events of an answer may bring several: they share its tokens evenly."""
    events = sorted(
        (moment, outcome.output_tokens / (1 + len(outcome.itl)))
        for outcome in good
        for moment in accumulate(outcome.itl, initial=outcome.start + outcome.ttft)
    )
    most = within = 0.0
    oldest = 0
    for moment, tokens in events:
        within += tokens
        while events[oldest][0] <= moment - 1.0:
            within -= events[oldest][1]
            oldest += 1
        most = max(most, within)
    return most


def _peak_concurrency(good: Sequence[Outcome]) -> int:
    ends = [(outcome.start + outcome.e2el, -1) for outcome in good]
    changes = sorted([*((outcome.start, 1) for outcome in good), *ends])
    return max(accumulate(change for _, change in changes), default=0)
