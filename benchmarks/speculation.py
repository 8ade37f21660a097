"""What guessing from prompt and answer gains or costs: the same requests with and without `prompt_lookup`, in turn.

    python benchmarks/speculation.py --repeats 20
    python benchmarks/speculation.py --instructions

One sequence at a time. A pair is the same request once to an engine that guesses and once to one that does not, the order
turning; the two answers must be the same tokens. A ratio is that of the decoding rates, the tokens after the first one / the
time they took. Printed are the median of the pairs' ratios, an interval that holds it with 95 % by bootstrap, and how much of
the answers had been said before: the share of tokens that end a sequence of 8 found earlier in prompt or answer.

Answers end where the model ends them. Texts that do not repeat their prompt are sampled with another seed for each pair: a
small model's greedy answers fall into loops, which guesses like. Those that do are answered greedily, and sampled at the low
temperature of such work.

With --instructions the cost is counted: instructions per token with and without guessing, under valgrind (AVX2 kernels, one
thread, one seed), as the difference of a longer and a shorter run. Minutes per text, more with a long prompt; the machine need
not be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import busy_cores, describe_machine, warn_if_busy
from peers import model_path
from speculation_texts import TEXTS, Text

if TYPE_CHECKING:
    from trivium import LLM
    from trivium.doors.library.outputs import RequestOutput

_COPYING_TEMPERATURE = 0.3  # of answers that are to repeat their prompt; at 0.8 a small model invents
_RESAMPLES = 4000
_GRAM = 8
_SHORT = 8  # tokens of the shorter run when instructions are counted


def main() -> None:
    options = read_options()
    texts = [text for text in TEXTS if options.texts is None or text.name in options.texts]
    if options.count:
        count_once(options, texts[0])
        return
    if options.instructions:
        report = {text.name: instructions(options, text) for text in texts}
    else:
        if warning := warn_if_busy(busy_cores()):
            print(warning, file=sys.stderr)
        report = measure(options, texts)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": describe_machine(), "texts": report}, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--texts", type=lambda text: text.split(","), help=f"of {', '.join(text.name for text in TEXTS)}")
    parser.add_argument("--repeats", type=int, default=20, help="pairs per text (default: 20)")
    parser.add_argument("--output-tokens", type=int, default=256, help="at most, of each answer (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of answers that say something new (default: 0.8)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--activation-dtype", default="int16", help="default: int16, as the commands for one sequence have it")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of measuring time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every pair to FILE")
    parser.add_argument("--count", choices=["on", "off"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.texts or ()) - {text.name for text in TEXTS}
    if unknown:
        parser.error(f"--texts takes {', '.join(text.name for text in TEXTS)}, got {', '.join(sorted(unknown))}")
    return options


def load(options: argparse.Namespace, guess: bool) -> LLM:
    from trivium import LLM

    return LLM(
        model_path(options.model),
        num_threads=options.threads,
        activation_dtype=options.activation_dtype,
        prompt_lookup=guess,
        enable_prefix_caching=False,
        max_model_len=2048,
        max_num_seqs=1,
    )


def answer(llm: LLM, text: Text, tokens: int, temperature: float, seed: int) -> RequestOutput:
    from trivium import SamplingParams

    sampling = SamplingParams(temperature=temperature, max_tokens=tokens, seed=seed)
    if text.chat:
        return llm.chat([{"role": "user", "content": text.prompt}], sampling, use_tqdm=False)[0]
    return llm.generate(text.prompt, sampling, use_tqdm=False)[0]


def measure(options: argparse.Namespace, texts: Sequence[Text]) -> list[dict[str, Any]]:
    report = []
    print("| text | temperature | pairs | ratio | 95 % | least..greatest | tokens/s without | said before | guessed | right |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with load(options, guess=True) as guessing, load(options, guess=False) as plain:
        for llm in (guessing, plain):
            answer(llm, TEXTS[0], 32, 0.0, 0)
        for text in texts:
            for temperature in (0.0, _COPYING_TEMPERATURE) if text.repeats else (options.temperature,):
                report.append(measure_text(guessing, plain, text, temperature, options))
                print(line(report[-1]), flush=True)
    return report


def measure_text(guessing: LLM, plain: LLM, text: Text, temperature: float, options: argparse.Namespace) -> dict[str, Any]:
    """All pairs of one text. Ends the program if the two engines ever give different tokens."""
    ratios, rates, shares = [], [], []
    before = guessing.engine.stats()
    for turn in range(options.repeats):
        seed = 1 + turn
        pair = {llm: answer(llm, text, options.output_tokens, temperature, seed) for llm in order(guessing, plain, turn)}
        tokens = pair[guessing].outputs.token_ids
        if tokens != pair[plain].outputs.token_ids:
            raise SystemExit(f"{text.name}, temperature {temperature}, seed {seed}: guessing changed the answer")
        if len(tokens) > _GRAM:
            rates.append(rate(pair[plain]))
            ratios.append(rate(pair[guessing]) / rates[-1])
            shares.append(share_said_before(pair[plain].prompt_token_ids, tokens))
    if not ratios:
        raise SystemExit(f"{text.name}, temperature {temperature}: every answer is shorter than {_GRAM + 1} tokens")
    after = guessing.engine.stats()
    return {
        "text": text.name,
        "repeats_prompt": text.repeats,
        "temperature": temperature,
        "ratios": ratios,
        "interval": interval(ratios),
        "tokens_per_second": rates,
        "said_before": statistics.mean(shares),
        "drafted": after.drafted - before.drafted,
        "accepted": after.accepted - before.accepted,
    }


def order(first: Any, second: Any, turn: int) -> tuple[Any, Any]:
    return (first, second) if turn % 2 == 0 else (second, first)


def rate(output: RequestOutput) -> float:
    """Tokens per second after the first one, by the engine's own account of when they came."""
    times = output.metrics
    if times is None or times.model_forward_time is None or times.first_token_time is None:
        raise SystemExit(f"no times with the answer: {output.error_msg}")
    return (len(output.outputs.token_ids) - 1) / (times.model_forward_time - times.first_token_time)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 %, by resampling."""
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return medians[round(0.025 * _RESAMPLES)], medians[round(0.975 * _RESAMPLES) - 1]


def share_said_before(prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Of an answer's tokens, those that end a run of `_GRAM` tokens which prompt or answer have had before."""
    whole = [*prompt, *tokens]
    seen: set[tuple[int, ...]] = set()
    found = 0
    for end in range(_GRAM, len(whole) + 1):
        gram = tuple(whole[end - _GRAM : end])
        found += end > len(prompt) and gram in seen
        seen.add(gram)
    return found / len(tokens)


def line(found: dict[str, Any]) -> str:
    ratios, (low, high) = found["ratios"], found["interval"]
    cells = (
        found["text"] + ("" if found["repeats_prompt"] else " (new text)"),
        found["temperature"],
        len(ratios),
        f"{statistics.median(ratios):.3f}",
        f"{low:.3f}..{high:.3f}",
        f"{min(ratios):.2f}..{max(ratios):.2f}",
        f"{statistics.median(found['tokens_per_second']):.0f}",
        f"{100 * found['said_before']:.0f} %",
        found["drafted"],
        found["accepted"],
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def instructions(options: argparse.Namespace, text: Text) -> dict[str, float]:
    """Instructions per token without and with guesses."""
    runs = [(guess, size) for guess in ("off", "on") for size in (_SHORT, options.output_tokens)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the count does not depend on what runs beside
        counts = dict(zip(runs, pool.map(lambda run: run_counted(options, text, *run), runs), strict=True))
    found = {}
    for guess in ("off", "on"):
        (few, low), (many, high) = counts[guess, _SHORT], counts[guess, options.output_tokens]
        if many <= few:
            raise SystemExit(f"{text.name}: the answer ends after {many} tokens, too early to count; choose another text")
        found[guess] = (high - low) / (many - few)
    quotient = found["on"] / found["off"]
    off, on = found["off"] / 1e6, found["on"] / 1e6
    print(f"{text.name}: {off:.1f} million instructions per token, {on:.1f} with guesses: {quotient:.3f}", flush=True)
    return found


def run_counted(options: argparse.Namespace, text: Text, guess: str, tokens: int) -> tuple[int, int]:
    """The answer's tokens, and the instructions of a whole process that gives it."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, *sys.argv[:1]]
    command += ["--count", guess, "--texts", text.name, "--output-tokens", str(tokens), "--threads", "1"]
    command += ["--temperature", str(options.temperature), "--activation-dtype", options.activation_dtype]
    command += ["--model", model_path(options.model)]
    environment = {**os.environ, "TRIVIUM_ISA": "avx2", "PYTHONHASHSEED": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    counted = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or counted is None:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}: {result.stderr[-2000:]}")
    return int(result.stdout), int(counted[1])


def count_once(options: argparse.Namespace, text: Text) -> None:
    with load(options, guess=options.count == "on") as llm:
        print(len(answer(llm, text, options.output_tokens, 0.0 if text.repeats else options.temperature, 1).outputs.token_ids))


if __name__ == "__main__":
    main()
