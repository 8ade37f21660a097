"""Decoding beside one other process that keeps a core busy, against decoding alone.

    python benchmarks/busy_neighbour.py
    python benchmarks/busy_neighbour.py --engines trivium,openvino --peer-python ../peers/bin/python

In a round each batch is decoded alone and with the neighbour, in turns of either order; otherwise the neighbour is stopped by a
signal. A rate is that of the time in which all sequences decode. What counts is the median of the rounds' quotients. Ends with
status 1 if one of Trivium's is below one half, or there is none.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from cases import kv_tokens
from machine import busy_cores, describe_machine, warn_if_busy
from peers import OURS, load, model_path, python_of, run_once
from rates import ratio, spread
from runner_process import ENGINES, RunnerProcess

_LEAST = 0.5
_SETTLE_SECONDS = 0.3  # for the scheduler to see the neighbour

Rates = dict[str, dict[int, dict[str, list[float | None]]]]  # engine -> batch -> "alone" and "beside"; None: it failed


class Neighbour:
    """A process that counts without end, while it is not stopped."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.rest()

    def work(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(_SETTLE_SECONDS)

    def rest(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(_SETTLE_SECONDS)

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    options = read_options()
    cases = {
        batch: {
            "kind": "long",  # its decode phase is timed by itself
            "batch": batch,
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens,
            "shortest": 0,
        }
        for batch in options.batches
    }
    with ExitStack() as stack:
        runners = [
            stack.enter_context(RunnerProcess(engine, python_of(engine, options.peer_python))) for engine in options.engines
        ]
        for runner in runners:
            room = kv_tokens(list(cases.values()))
            load(
                runner,
                model=model_path(options.model),
                threads=options.threads,
                max_batch=max(options.batches),
                kv_tokens=room,
                settings={},
            )
        neighbour = stack.enter_context(Neighbour())
        if warning := warn_if_busy(busy_cores()):
            print(warning, file=sys.stderr)
        rates = measure(runners, neighbour, cases, options.repeats)
    ratios = {
        engine: {batch: ratio(found["beside"], found["alone"]) for batch, found in own.items()} for engine, own in rates.items()
    }
    for engine, own in rates.items():
        for batch, found in own.items():
            alone, beside = spread(found["alone"]), spread(found["beside"])
            left = ratios[engine][batch]
            shown = "failed" if left is None else f"{left:.2f}"
            print(f"{engine}, batch {batch}: {alone} tokens/s alone, {beside} beside a busy process: {shown}")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": describe_machine(), "rates": rates, "ratios": ratios}, indent=1) + "\n")
    if any(left is None or left < _LEAST for left in ratios.get(OURS, {}).values()):
        raise SystemExit(1)


def read_options() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--engines", type=words, default=[OURS], help=f"of {', '.join(ENGINES)} (default: {OURS})")
    parser.add_argument("--peer-python", action="append", default=[], metavar="[ENGINE=]PATH", help="as of peers.py")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--batches", type=numbers, default=[1, 8], help="default: 1,8")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of each sequence (default: 128)")
    parser.add_argument("--output-tokens", type=int, default=128, help="for each sequence (default: 128)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every rate to FILE")
    options = parser.parse_args()
    if unknown := [engine for engine in options.engines if engine not in ENGINES]:
        parser.error(f"--engines takes {', '.join(ENGINES)}, got {', '.join(unknown)}")
    return options


def measure(runners: list[RunnerProcess], neighbour: Neighbour, cases: dict[int, dict], repeats: int) -> Rates:
    rates: Rates = {runner.engine: {batch: {"alone": [], "beside": []} for batch in cases} for runner in runners}
    for turn in range(repeats):
        for batch, case in cases.items():
            for runner in runners:
                for company in ("alone", "beside") if turn % 2 == 0 else ("beside", "alone"):
                    if company == "beside":
                        neighbour.work()
                    found = run_once(runner, {**case, "seed": turn})
                    neighbour.rest()
                    rates[runner.engine][batch][company].append(found.get("decode"))
    return rates


if __name__ == "__main__":
    main()
