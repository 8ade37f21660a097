"""Resident memory of a loaded engine, against the bound 1.05 x packed weights + 120 MB + scratch + KV budget.

    python benchmarks/memory.py

Measured twice: idle after loading, when neither scratch nor KV has been touched and the bound is taken without them; and after
a full batch, with them. Ends with status 1 if a bound is exceeded.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING

from peers import model_path

if TYPE_CHECKING:  # what importing costs is measured below
    from trivium.models.spec import DecoderSpec

WEIGHT_FACTOR = 1.05
BASE = 120_000_000  # bytes: interpreter, libraries, tokenizer
LOGITS_TILE = 64  # rows whose logits the core has in memory at once


def main() -> None:
    options = read_options()
    start = resident()
    from trivium import LLM, EngineConfig, SamplingParams
    from trivium.engine.assembly import assemble
    from trivium.engine.kv_budget import kv_cache_dtype
    from trivium.engine.native_engine import NativeEngine

    imported = resident()
    config = EngineConfig(
        model=model_path(options.model), num_threads=options.threads, kv_cache_memory=options.kv_cache_memory * 1_000_000
    )
    parts = assemble(config)
    native, spec = parts["native"], parts["spec"]
    weights = WEIGHT_FACTOR * native.weight_bytes
    kv = parts["num_blocks"] * native.block_bytes(config.block_size, kv_cache_dtype(config))
    scratch = scratch_bytes(spec, config.max_num_batched_tokens, config.max_num_seqs, options.threads)
    del native
    with LLM.from_engine(NativeEngine(config, **parts)) as llm:
        del parts
        print(f"interpreter {mb(start)}, with trivium imported {mb(imported)}")
        print(f"packed weights {mb(weights / WEIGHT_FACTOR)}, scratch {mb(scratch)}, KV budget {mb(kv)}")
        idle = report("idle after loading", resident(), weights + BASE)
        random_ids = random.Random(0)
        prompts = [[random_ids.randrange(spec.vocab_size) for _ in range(128)] for _ in range(config.max_num_seqs)]
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True), use_tqdm=False)
        loaded = report(f"after {len(prompts)} prompts", resident(), weights + BASE + scratch + kv)
        print(f"peak while loading and running: {mb(status('VmHWM'))}")
    if not (idle and loaded):
        raise SystemExit(1)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--kv-cache-memory", type=int, default=256, metavar="MB", help="KV budget (default: 256 MB)")
    return parser.parse_args()


def scratch_bytes(spec: DecoderSpec, rows: int, sequences: int, threads: int) -> int:
    """What a step of `rows` rows works in.

    Float32 rows of the residual stream, its norm and a gathered copy, of q, k and v, of the attention's result and the two
    halves of the feed-forward; the 16-bit form of each matrix's input; logits, and a copy of them per sampling thread.
    """
    hidden, inner, vocab = spec.hidden_size, spec.intermediate_size, spec.vocab_size
    attended = spec.num_heads * spec.head_dim
    keys = spec.num_kv_heads * spec.head_dim
    floats = 3 * hidden + 2 * attended + 2 * keys + 2 * inner
    halves = hidden + attended + inner
    return rows * (4 * floats + 2 * halves) + 4 * vocab * (min(LOGITS_TILE, sequences) + threads)


def report(moment: str, used: int, bound: float) -> bool:
    """Print one line; True if the bound holds."""
    print(f"{moment}: {mb(used)} resident, bound {mb(bound)}: {'ok' if used <= bound else 'EXCEEDED'}")
    return used <= bound


def resident() -> int:
    return status("VmRSS")


def status(name: str, process: int | str = "self") -> int:
    """A field of a process's status, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"/proc/{process}/status has no {name}: this script needs Linux")


def mb(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
