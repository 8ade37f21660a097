"""Time to the first token of a long prompt whose beginning is new, and of one whose beginning is cached.

    python benchmarks/prefix_cache.py

Each round draws a new prefix and asks twice, with different endings of at most a few tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

from machine import busy_cores, warn_if_busy
from peers import model_path
from rates import spread

from trivium import LLM, SamplingParams


def main() -> None:
    options = read_options()
    random_ids = random.Random(0)
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    first, second, found = [], [], set()
    with LLM(model_path(options.model), num_threads=options.threads) as llm:

        def draw(count: int) -> list[int]:
            return [random_ids.randrange(1000, llm.engine.model_info.vocab_size // 2) for _ in range(count)]

        time_to_first_token(llm, draw(options.prefix + options.ending))
        for _ in range(options.repeats):
            prefix = draw(options.prefix)
            first.append(time_to_first_token(llm, prefix + draw(options.ending))[0])
            seconds, cached = time_to_first_token(llm, prefix + draw(options.ending))
            second.append(seconds)
            found.add(cached)
    quotient = statistics.median(b / a for a, b in zip(first, second, strict=True))
    print(f"prefix new:    {spread([1000 * s for s in first])} ms to the first token")
    print(f"prefix cached: {spread([1000 * s for s in second])} ms, {min(found)} tokens or more from the cache")
    print(f"second / first: {quotient:.3f}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--prefix", type=int, default=1024, help="shared tokens (default: 1024)")
    parser.add_argument("--ending", type=int, default=16, help="tokens after them (default: 16)")
    parser.add_argument("--repeats", type=int, default=9, help="prefixes (default: 9)")
    return parser.parse_args()


def time_to_first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds from the call to its first piece, and the prompt tokens that came from the cache."""
    start = time.perf_counter()
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    cached = 0
    seconds = None
    for step in llm.generate(prompt, sampling, use_tqdm=False, stream=True):
        seconds = seconds or time.perf_counter() - start
        cached = max(cached, *(piece.num_cached_tokens for piece in step if piece is not None))
    if seconds is None:
        raise SystemExit("the engine gave no token")
    return seconds, cached


if __name__ == "__main__":
    main()
