"""`trivium bench`: how fast a model runs on this machine, or a server answers."""

from __future__ import annotations

from trivium.cli.main import LazyGroup

__all__ = ["command"]

command = LazyGroup(
    "bench",
    help="Measure a model on this machine, or a server, with random prompts.",
    modules={
        "latency": ("trivium.cli.bench.latency", "How long a batch of equal prompts takes."),
        "throughput": ("trivium.cli.bench.throughput", "How many prompts and tokens per second a big batch gets through."),
        "serve": ("trivium.cli.bench.serve", "How a server answers under load."),
    },
)
