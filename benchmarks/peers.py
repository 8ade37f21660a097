"""Measure Trivium beside other engines: same file, same machine, same number of threads, in turn.

    python benchmarks/peers.py --peer-python ../peers/bin/python

README.md says how the peers get there and how each rate is measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from machine import busy_cores, describe_machine, warn_if_busy
from rates import summarize, table
from runner_process import ENGINES, RunnerError, RunnerProcess

OURS, REFERENCE = "trivium", "llama.cpp"
CASES = "decode-1,decode-8,decode-32,prefill-512"

Samples = dict[str, dict[str, list[float | None]]]


def main() -> None:
    options = read_options()
    cases = {name: read_case(name, options.prompt_tokens, options.output_tokens) for name in options.cases.split(",")}
    report: dict[str, Any] = {"machine": describe_machine(), "model": model_path(options.model), "threads": options.threads}
    say(f"machine: {describe(report['machine'])}")
    with ExitStack() as stack:
        runners = []
        for engine in options.engines.split(","):
            runners.append(stack.enter_context(RunnerProcess(engine, python_of(engine, options.peer_python), options.log)))
            max_batch = max(case["batch"] for case in cases.values())
            runners[-1].load(model=report["model"], threads=options.threads, max_batch=max_batch)
            say(f"{engine}: {runners[-1].description}")
        samples, busy = measure(runners, cases, options.repeats)
        report["engines"] = {runner.engine: runner.description for runner in runners}
    print(table(samples, OURS, REFERENCE))
    report |= {"cases": cases, "busy_cores": busy, "samples": samples, "summary": as_dicts(samples)}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if warning := warn_if_busy(max(busy)):
        say(warning)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument(
        "--engines", default="trivium,llama.cpp,openvino", help=f"of {', '.join(ENGINES)} (default: %(default)s)"
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="[ENGINE=]PATH",
        help="Python of the environment the peers are installed in, or of one of them (default: this one)",
    )
    parser.add_argument("--cases", default=CASES, help="decode-BATCH and prefill-TOKENS (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of each prompt of the decode cases (default: 128)")
    parser.add_argument("--output-tokens", type=int, default=128, help="for each prompt of the decode cases (default: 128)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds through all cases and engines (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append what the engines print to FILE")
    options = parser.parse_args()
    unknown = [engine for engine in options.engines.split(",") if engine not in ENGINES]
    if unknown:
        parser.error(f"--engines takes {', '.join(ENGINES)}, got {', '.join(unknown)}")
    if options.output_tokens < 2:
        parser.error(f"--output-tokens must be at least 2, got {options.output_tokens}")
    return options


def read_case(name: str, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """`decode-BATCH` or `prefill-TOKENS` as the fields of a run request."""
    match = re.fullmatch(r"(decode|prefill)-([1-9]\d*)", name)
    if match is None:
        raise SystemExit(f"--cases takes decode-BATCH and prefill-TOKENS, got {name!r}")
    kind, number = match[1], int(match[2])
    if kind == "prefill":
        return {"kind": kind, "batch": 1, "prompt_tokens": number, "output_tokens": 1}
    return {"kind": kind, "batch": number, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}


def python_of(engine: str, choices: Sequence[str]) -> str:
    """`engine=path` names one engine's Python, a bare path that of all peers; Trivium runs in this one unless named."""
    named = dict(choice.split("=", 1) for choice in choices if "=" in choice)
    bare = [choice for choice in choices if "=" not in choice]
    otherwise = bare[-1] if bare and engine != OURS else sys.executable
    return str(named.get(engine, otherwise))


def model_path(model: str | None) -> str:
    if model is not None:
        return model
    from trivium.models.catalogue import resolve_model

    return str(resolve_model("smollm2"))


def measure(runners: list[RunnerProcess], cases: dict[str, dict[str, Any]], repeats: int) -> tuple[Samples, list[float]]:
    """All rates, and the cores that other processes used before each round."""
    samples: Samples = {case: {runner.engine: [] for runner in runners} for case in cases}
    busy = []
    for turn in range(repeats):
        busy.append(busy_cores())
        say(warn_if_busy(busy[-1]) or f"round {turn + 1} of {repeats}")
        first = turn % len(runners)  # so that no engine always has the same place
        for name, case in cases.items():
            for runner in runners[first:] + runners[:first]:
                rate = run_once(runner, {**case, "seed": turn})
                samples[name][runner.engine].append(rate)
                say(f"  {name:12} {runner.engine:14} {'failed' if rate is None else f'{rate:9.1f} tokens/s'}")
    return samples, busy


def run_once(runner: RunnerProcess, case: dict[str, Any]) -> float | None:
    """A rate, or None with a word on stderr: a long measurement should survive one engine's fault."""
    try:
        return runner.run(**case)
    except RunnerError as error:
        say(str(error))
        return None


def as_dicts(samples: Samples) -> dict[str, Any]:
    """The summary in the form of the JSON report."""
    return {
        case: {
            "median": {engine: found.median for engine, found in summary.rates.items()},
            "ratio": summary.ratios,
            "best_peer": summary.best_peer,
        }
        for case, summary in summarize(samples, OURS).items()
    }


def describe(machine: dict[str, Any]) -> str:
    load = ", ".join(f"{value:.2f}" for value in machine["load_average"])
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['flags'])}, "
        f"{machine['memory'] / 2**30:.1f} GiB, Linux {machine['kernel']}, load average {load}"
    )


def say(line: str) -> None:
    """Progress goes to stderr, so that stdout is the table."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
