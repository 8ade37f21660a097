"""Which share of a decoding step passes outside the native call: scheduling, arrays, tokens to text, outputs.

    python benchmarks/step_overhead.py

A step runs from the start of one native call to the start of the next. Only steps in which every sequence decodes one token
count. What the caller's thread does during the native call costs nothing and is not seen; when it holds the interpreter's lock
as the native call returns, the wait for it counts as native.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import Any

from machine import busy_cores, warn_if_busy
from peers import model_path

from trivium import LLM, EngineConfig, SamplingParams
from trivium.engine.assembly import assemble
from trivium.engine.native_engine import NativeEngine


class TimedModel:
    """A native model that notes when each of its steps began and ended, and how many rows it had."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.steps: list[tuple[float, float, int]] = []

    def step(self, token_ids: Any, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = self._model.step(token_ids, *arguments, **options)
        self.steps.append((start, time.perf_counter(), len(token_ids)))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def main() -> None:
    options = read_options()
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    config = EngineConfig(
        model=model_path(options.model),
        num_threads=options.threads,
        max_num_seqs=options.batch,
        enable_prefix_caching=False,
    )
    parts = assemble(config)
    timed = parts["native"] = TimedModel(parts["native"])
    prompts = [[1000 + 7 * i + k for k in range(options.prompt_tokens)] for i in range(options.batch)]
    sampling = SamplingParams(temperature=0.0, max_tokens=options.output_tokens, ignore_eos=True)
    with LLM.from_engine(NativeEngine(config, **parts)) as llm:
        for _ in range(options.repeats):
            llm.generate(prompts, sampling, use_tqdm=False)
    print_share(timed.steps, options.batch)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--batch", type=int, default=32, help="sequences (default: 32)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of each (default: 128)")
    parser.add_argument("--output-tokens", type=int, default=128, help="for each (default: 128)")
    parser.add_argument("--repeats", type=int, default=3, help="batches (default: 3)")
    return parser.parse_args()


def print_share(steps: list[tuple[float, float, int]], batch: int) -> None:
    """Medians over neighbouring decoding steps: one during which the machine did something else must not count."""
    inside, outside = [], []
    for (start, end, rows), (following, _, following_rows) in itertools.pairwise(steps):
        if rows == following_rows == batch:
            inside.append(1e6 * (end - start))
            outside.append(1e6 * (following - end))
    if not inside:
        raise SystemExit(f"no two neighbouring steps decoded all {batch} sequences; give more --output-tokens")
    native, rest = statistics.median(inside), statistics.median(outside)
    print(f"{len(inside)} decoding steps of {batch} sequences: {native:.0f} us in the native call, {rest:.0f} us outside it")
    print(f"outside: {100 * rest / (native + rest):.2f} % of a step, {rest / batch:.2f} us per sequence")


if __name__ == "__main__":
    main()
