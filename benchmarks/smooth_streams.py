"""How even streams stay when a long prompt arrives, and what they cost that prompt.

    python benchmarks/smooth_streams.py
    python benchmarks/smooth_streams.py --max-num-batched-tokens 128,256,512

In a round the prompt is first answered alone. Then the streams decode; once each has had its usual tokens the prompt arrives,
and the round ends with its first token. A gap is the time between two arrivals of tokens at one stream, by the end of the steps
that made them. Percentiles are over the gaps of all streams and rounds; the speed of the prompt is its tokens / the time to its
first token, with the median of the rounds' quotients beside / alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import busy_cores, describe_machine, warn_if_busy
from peers import model_path

from trivium import EngineConfig
from trivium.engine.native_engine import NativeEngine
from trivium.engine.outputs import OutputDelta
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions

_WAIT_SECONDS = 600


class Watch:
    """A sink that notes when tokens came."""

    def __init__(self, wanted: int) -> None:
        """`reached` is set when that many tokens are there, `ended` when the answer is."""
        self.times: list[float] = []
        self.arrival = 0.0
        self.reached, self.ended = threading.Event(), threading.Event()
        self._wanted, self._tokens = wanted, 0

    def __call__(self, outputs: Sequence[OutputDelta]) -> None:
        for delta in outputs:
            self.arrival = delta.times.arrival
            if delta.token_ids:
                self.times.append(delta.time)
                self._tokens += len(delta.token_ids)
            if self._tokens >= self._wanted:
                self.reached.set()
            if delta.finished:
                self.ended.set()

    def wait(self, event: threading.Event) -> None:
        if not event.wait(_WAIT_SECONDS):
            raise SystemExit(f"a stream had {self._tokens} tokens after {_WAIT_SECONDS} seconds")


class Round:
    """One engine's work, a request after the other with names and prompts of their own."""

    def __init__(self, engine: NativeEngine, options: argparse.Namespace) -> None:
        self._engine, self._options = engine, options
        self._numbers = random.Random(0)
        self._count = 0

    def alone(self) -> float:
        """Tokens per second of the prompt."""
        _, watch = self._submit(self._options.prompt_tokens, 1)
        return self._speed(watch)

    def beside(self) -> tuple[float, list[float], list[float]]:
        """Tokens per second of the prompt, the streams' gaps before it and while it is read."""
        options = self._options
        # Enough tokens for streams that go on while the prompt is read, one a step.
        lasting = options.max_model_len - options.stream_tokens - 1
        streams = [self._submit(options.stream_tokens, lasting, options.usual_tokens) for _ in range(options.streams)]
        for _, watch in streams:
            watch.wait(watch.reached)
        _, prompt = self._submit(options.prompt_tokens, 1)
        speed = self._speed(prompt)
        self._engine.abort([name for name, _ in streams])
        for _, watch in streams:
            watch.wait(watch.ended)
        usual, late = [], []
        begun = max(watch.times[0] for _, watch in streams)
        for _, watch in streams:
            before, while_reading = split_gaps(watch.times, begun, prompt.arrival, prompt.times[0])
            usual += before
            late += while_reading
        return speed, usual, late

    def _submit(self, prompt_tokens: int, output_tokens: int, wanted: int = 1) -> tuple[str, Watch]:
        self._count += 1
        vocab_size = self._engine.model_info.vocab_size
        ids = [self._numbers.randrange(1000, vocab_size // 2) for _ in range(prompt_tokens)]
        sampling = SamplingOptions(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        request, watch = GenerationRequest(f"request-{self._count}", ids, sampling), Watch(wanted)
        self._engine.submit([request], watch)
        return request.request_id, watch

    def _speed(self, watch: Watch) -> float:
        watch.wait(watch.ended)
        return float(self._options.prompt_tokens / (watch.times[0] - watch.arrival))


def main() -> None:
    options = read_options()
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    print(
        "| max_num_batched_tokens | gap before: median, p99 | while: median, p99 | p99 / p99 | prompt alone | beside | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    report = {}
    for size in options.max_num_batched_tokens:
        report[size] = measure(size, options)
        print(line(size, report[size]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": describe_machine(), "sizes": report}, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = EngineConfig(model="any").max_num_batched_tokens
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--streams", type=int, default=8, help="that decode (default: 8)")
    parser.add_argument("--stream-tokens", type=int, default=128, help="prompt of each stream (default: 128)")
    parser.add_argument("--usual-tokens", type=int, default=100, help="of each stream before the prompt arrives (default: 100)")
    parser.add_argument("--prompt-tokens", type=int, default=4000, help="of the prompt that arrives (default: 4000)")
    parser.add_argument("--max-num-batched-tokens", type=sizes, default=[usual], help=f"one or more (default: {usual})")
    parser.add_argument("--repeats", type=int, default=5, help="rounds for each (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every gap and rate to FILE")
    options = parser.parse_args()
    options.max_model_len = options.prompt_tokens + 1000
    return options


def measure(size: int, options: argparse.Namespace) -> dict[str, Any]:
    config = EngineConfig(
        model=model_path(options.model),
        num_threads=options.threads,
        max_num_batched_tokens=size,
        max_num_seqs=options.streams + 1,
        max_model_len=options.max_model_len,
        enable_prefix_caching=False,
        prompt_lookup=False,
    )
    alone, beside, before, late = [], [], [], []
    with NativeEngine.load(config) as engine:
        work = Round(engine, options)
        work.alone()
        for _ in range(options.repeats):
            alone.append(work.alone())
            speed, usual, slow = work.beside()
            beside.append(speed)
            before += usual
            late += slow
    return {"alone": alone, "beside": beside, "before": before, "while": late}


def split_gaps(times: Sequence[float], begun: float, arrival: float, first_token: float) -> tuple[list[float], list[float]]:
    """One stream's gaps before a prompt arrived, from `begun` on, and until its first token was there."""
    before, late = [], []
    for earlier, later in itertools.pairwise(times):
        if begun <= earlier and later <= arrival:
            before.append(later - earlier)
        elif arrival < later <= first_token:
            late.append(later - earlier)
    return before, late


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def line(size: int, found: dict[str, Any]) -> str:
    before, late = found["before"], found["while"]
    usual, slow = percentile(before, 0.99), percentile(late, 0.99)
    quotient = statistics.median(b / a for a, b in zip(found["alone"], found["beside"], strict=True))
    cells = (
        size,
        f"{1000 * statistics.median(before):.1f} ms, {1000 * usual:.1f} ms",
        f"{1000 * statistics.median(late):.1f} ms, {1000 * slow:.1f} ms",
        f"{slow / usual:.2f} ({slow / statistics.median(before):.2f} of the median)",
        f"{statistics.median(found['alone']):.0f} tokens/s",
        f"{statistics.median(found['beside']):.0f} tokens/s",
        f"{quotient:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
