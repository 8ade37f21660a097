"""Measure Trivium beside other engines: same file, same machine, same number of threads, in turn.

    python benchmarks/peers.py --peer-python ../peers/bin/python

README.md says how the peers get there and how each rate is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cases import CASES, Sizes, kv_tokens, read_case, rows
from machine import busy_cores, describe_machine, warn_if_busy
from rates import summarize, table
from runner_process import ENGINES, RunnerError, RunnerProcess

OURS = "trivium"

Samples = dict[str, dict[str, list[float | None]]]


def main() -> None:
    options = read_options()
    cases = {name: read_case(name, options.sizes) for name in options.cases.split(",")}
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "model": model_path(options.model),
        "threads": options.threads,
        "isa": options.isa,
    }
    say(f"machine: {describe(report['machine'])}")
    with ExitStack() as stack:
        runners = []
        for engine in options.engines.split(","):
            runners.append(stack.enter_context(start(engine, options)))
            load(
                runners[-1],
                model=report["model"],
                threads=options.threads,
                max_batch=max(case["batch"] for case in cases.values()),
                kv_tokens=kv_tokens(list(cases.values())),
                settings=settings_of(engine, options.setting),
            )
            say(f"{engine}: {runners[-1].description}")
            require_isa(runners[-1], options.isa)
        report |= {"engines": {runner.engine: runner.description for runner in runners}, "cases": cases}
        samples: Samples = {}
        for samples, busy in measure(runners, cases, options.repeats):
            report |= {"busy_cores": busy, "samples": samples, "summary": as_dicts(samples)}
            write_json(report, options)  # after each round: an interrupt shall not cost those before it
    text = table(samples, OURS)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    if warning := warn_if_busy(max(report["busy_cores"])):
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
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="ENGINE:NAME=VALUE",
        help="a setting of an engine by its own name; VALUE is JSON or a plain word",
    )
    parser.add_argument("--isa", choices=["avx2", "avx2_vnni"], help="hold every engine to these instructions (see README.md)")
    parser.add_argument("--hidden", type=Path, metavar="FOLDER", help="what hide_avx512/prepare.py made, for --isa")
    parser.add_argument(
        "--cases",
        default=CASES,
        help="decode-BATCH, prefill-TOKENS, long-BATCH, offline-REQUESTS (default: %(default)s)",
    )
    usual = Sizes()
    parser.add_argument("--prompt-tokens", type=int, default=usual.prompt, help="of each prompt of decode (default: 128)")
    parser.add_argument("--output-tokens", type=int, default=usual.output, help="for each prompt of decode (default: 128)")
    parser.add_argument("--long-prompt-tokens", type=int, default=usual.long_prompt, help="default: %(default)s")
    parser.add_argument("--long-output-tokens", type=int, default=usual.long_output, help="default: %(default)s")
    parser.add_argument(
        "--offline-tokens",
        type=int,
        nargs=2,
        default=usual.offline,
        metavar=("LEAST", "MOST"),
        help="lengths in and out of offline requests (default: 100 1024)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds through all cases and engines (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE too")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append what the engines print to FILE")
    options = parser.parse_args()
    unknown = [engine for engine in options.engines.split(",") if engine not in ENGINES]
    if unknown:
        parser.error(f"--engines takes {', '.join(ENGINES)}, got {', '.join(unknown)}")
    if options.output_tokens < 2:
        parser.error(f"--output-tokens must be at least 2, got {options.output_tokens}")
    if options.long_output_tokens < 2:
        parser.error(f"--long-output-tokens must be at least 2, got {options.long_output_tokens}")
    if options.isa and "openvino" in options.engines and options.hidden is None:
        parser.error("--isa with openvino needs --hidden")
    options.sizes = Sizes(
        options.prompt_tokens,
        options.output_tokens,
        options.long_prompt_tokens,
        options.long_output_tokens,
        tuple(options.offline_tokens),
    )
    return options


def start(engine: str, options: argparse.Namespace) -> RunnerProcess:
    environment = isa_environment(engine, options.isa, options.hidden) if options.isa else {}
    return RunnerProcess(engine, python_of(engine, options.peer_python), options.log, environment)


def python_of(engine: str, choices: Sequence[str]) -> str:
    """`engine=path` names one engine's Python, a bare path that of all peers; Trivium runs in this one unless named."""
    named = dict(choice.split("=", 1) for choice in choices if "=" in choice)
    bare = [choice for choice in choices if "=" not in choice]
    otherwise = bare[-1] if bare and engine != OURS else sys.executable
    return str(named.get(engine, otherwise))


def settings_of(engine: str, choices: Sequence[str]) -> dict[str, Any]:
    """`engine:name=value` as one engine's settings."""
    settings = {}
    for choice in choices:
        target, _, assignment = choice.partition(":")
        name, separator, value = assignment.partition("=")
        if target not in ENGINES or not separator:
            raise SystemExit(f"--setting takes ENGINE:NAME=VALUE, got {choice!r}")
        if target == engine:
            settings[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def isa_environment(engine: str, isa: str, hidden: Path | None) -> dict[str, str]:
    """What holds an engine to AVX2, or to that with AVX-VNNI. llama.cpp has to be built for it; see README.md."""
    vnni = isa == "avx2_vnni"
    if engine == OURS:
        return {"TRIVIUM_ISA": isa}
    if engine == "openvino" and hidden is not None:
        folder = hidden.resolve()
        keep = {"KEEP_AVX_VNNI": "1"} if vnni else {}
        return {"LD_PRELOAD": str(folder / "hide_avx512.so"), "PYTHONPATH": str(folder / "packages")} | keep
    if engine == "transformers":
        most = "AVX2_VNNI" if vnni else "AVX2"
        return {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": most, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    return {}


def require_isa(runner: RunnerProcess, isa: str | None) -> None:
    """Stop if an engine says that it uses more than it may. OpenVINO's half formats mean AVX-512."""
    words = str(runner.description["details"]).upper()
    if isa and ("AVX512" in words or (runner.engine == "openvino" and "BF16" in words)):
        raise SystemExit(f"{runner.engine} is not held to {isa}: {runner.description['details']}")


def model_path(model: str | None) -> str:
    if model is not None:
        return os.path.abspath(model)
    from trivium.models.catalogue import resolve_model

    return str(resolve_model("smollm2"))


def load(runner: RunnerProcess, **job: Any) -> None:
    """Load a model. An engine that cannot ends the program: better now than a long measurement without it."""
    try:
        runner.load(**job)
    except RunnerError as error:
        raise SystemExit(str(error)) from None


def measure(
    runners: list[RunnerProcess], cases: dict[str, dict[str, Any]], repeats: int
) -> Iterator[tuple[Samples, list[float]]]:
    """After each round, all rates so far, and the cores that other processes used before each round."""
    names = [row for name, case in cases.items() for row in rows(name, case).values()]
    samples: Samples = {row: {runner.engine: [] for runner in runners} for row in names}
    busy: list[float] = []
    for turn in range(repeats):
        busy.append(busy_cores())
        say(warn_if_busy(busy[-1]) or f"round {turn + 1} of {repeats}")
        first = turn % len(runners)  # so that no engine always has the same place
        for name, case in cases.items():
            for runner in runners[first:] + runners[:first]:
                rates = run_once(runner, {**case, "seed": turn})
                for phase, row in rows(name, case).items():
                    rate = rates.get(phase)
                    samples[row][runner.engine].append(rate)
                    say(f"  {row:16} {runner.engine:14} {'failed' if rate is None else f'{rate:9.1f} tokens/s'}")
        yield samples, busy


def run_once(runner: RunnerProcess, case: dict[str, Any]) -> dict[str, float]:
    """Its rates, or none with a word on stderr: a long measurement should survive one engine's fault."""
    try:
        return runner.run(**case)
    except RunnerError as error:
        say(str(error))
        return {}


def write_json(report: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


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
