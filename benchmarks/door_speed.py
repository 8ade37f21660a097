"""What a door costs: the tokens per second of streams through a server, beside the same work through the library.

    python benchmarks/door_speed.py
    python benchmarks/door_speed.py --streams 8 --endpoints unit

For each endpoint a round is one batch through `LLM`, then the same batch through `trivium serve`, one connection per sequence:
the same tokens in and out, greedy, without prefix cache and prompt lookup. Library and server are processes of their own, and
while one works the other is stopped by a signal. The client is a compiled reader (`readers/stream_reader.c`). CPU per token is
the time that the event loop's thread was on a core, by the kernel's scheduler.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

from machine import busy_cores, warn_if_busy
from peers import model_path

_ENDS = {
    "/infer_token": "0\\r\\n\\r\\n",
    "/v1/completions": "[DONE]",
    "/v1/chat/completions": "[DONE]",
    "unit": '"finish":true',
}


def main() -> None:
    options = read_options()
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        reader = compile_reader(Path(folder))
        with Library(options) as library, Server(options) as server:
            rounds = []
            for number in range(options.repeats + 1):
                found = {endpoint: run_once(library, server, reader, endpoint, Path(folder)) for endpoint in options.endpoints}
                if number:  # the first one warms up
                    rounds.append(found)
                    print(f"round {number}:", *map(show, found.items()), file=sys.stderr)
    report(rounds, options)


def run_once(library: Library, server: Server, reader: Path, endpoint: str, folder: Path) -> dict[str, float]:
    """Tokens per second of both, and the server's microseconds of CPU per token."""
    server.pause()
    alone = library.run(endpoint)
    library.pause()
    server.resume()
    served = server.run(reader, endpoint, folder)
    library.resume()
    if alone["tokens"] != served["tokens"]:
        raise SystemExit(f"{endpoint}: {served['tokens']:.0f} tokens, but {alone['tokens']:.0f} of the library")
    return {"library": alone["rate"], "rate": served["rate"], "loop": served["loop"]}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--streams", type=int, default=32, help="connections, and sequences of a batch (default: 32)")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of each (default: 32)")
    parser.add_argument("--output-tokens", type=int, default=256, help="for each (default: 256)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument(
        "--endpoints", type=lambda text: text.split(","), default=list(_ENDS)[:3], help="default: those of http"
    )
    return parser.parse_args()


def compile_reader(folder: Path) -> Path:
    source = Path(__file__).parent / "readers" / "stream_reader.c"
    subprocess.run(["cc", "-O2", "-o", folder / "stream_reader", source], check=True)
    return folder / "stream_reader"


def prompts(options: argparse.Namespace) -> list[list[int]]:
    return [[1000 + 7 * i + k for k in range(options.prompt_tokens)] for i in range(options.streams)]


def questions(options: argparse.Namespace) -> list[str]:
    subjects = ["a fox", "a king", "two sisters", "a ship", "a winter", "a clock", "a garden", "a bridge"]
    return [f"Tell me a very long story about {subjects[i % len(subjects)]}, number {i}." for i in range(options.streams)]


def library_batch(endpoint: str, options: argparse.Namespace) -> dict[str, Any]:
    """What `LLM` is asked for the tokens that an endpoint sees and gives. Some endpoints cannot go on past the end token."""
    if endpoint == "unit":  # an empty prompt is an empty system message
        messages = [[{"role": "system", "content": ""}, {"role": "user", "content": text}] for text in questions(options)]
        return {"messages": messages, "ignore_eos": False}
    if endpoint == "/v1/chat/completions":
        return {"messages": [[{"role": "user", "content": text}] for text in questions(options)], "ignore_eos": True}
    return {"prompts": prompts(options), "ignore_eos": endpoint != "/infer_token"}


class Paused:
    """A child process that can be stopped while others are measured."""

    process: subprocess.Popen[str]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


_LIBRARY = """
import json, sys, time
from trivium import LLM, SamplingParams
asked = json.loads(sys.stdin.readline())
llm = LLM(asked["model"], enable_prefix_caching=False, prompt_lookup=False, max_num_seqs=asked["streams"])
print("ready", flush=True)
for line in sys.stdin:
    batch = asked["batches"][line.strip()]
    sampling = SamplingParams(temperature=0.0, max_tokens=asked["output_tokens"], ignore_eos=batch["ignore_eos"])
    ask, inputs = (llm.chat, batch["messages"]) if "messages" in batch else (llm.generate, batch["prompts"])
    start = time.perf_counter()
    outputs = ask(inputs, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(output.outputs.token_ids) for output in outputs)
    print(json.dumps({"tokens": tokens, "rate": tokens / seconds}), flush=True)
"""


class Library(Paused):
    """`LLM` in a process of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LIBRARY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        asked = {
            "model": model_path(options.model),
            "streams": options.streams,
            "output_tokens": options.output_tokens,
            "batches": {endpoint: library_batch(endpoint, options) for endpoint in options.endpoints},
        }
        self._say(json.dumps(asked))

    def run(self, endpoint: str) -> dict[str, float]:
        """Tokens, and tokens per second, of the batch that an endpoint is given."""
        found: dict[str, float] = json.loads(self._say(endpoint))
        return found

    def _say(self, line: str) -> str:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the library's process has no pipes")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()


class Server(Paused):
    """`trivium serve` on a free port."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        command = [sys.executable, "-m", "trivium", "serve", model_path(options.model), "--port", "0", "--unit-port", "0"]
        command += ["--unit-max-tasks", str(options.streams)]
        command += ["--no-enable-prefix-caching", "--no-prompt-lookup", "--max-num-seqs", str(options.streams)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port = self._wait_for(r"http: http://127\.0\.0\.1:(\d+)")
        self.unit_port = self._wait_for(r"unit: 127\.0\.0\.1:(\d+)")
        self._tasks: list[str] = []  # of the unit door
        # Its log must be read, or it would wait for room in the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def run(self, reader: Path, endpoint: str, folder: Path) -> dict[str, float]:
        """One batch over one connection per sequence: tokens, tokens per second, microseconds of CPU per token."""
        requests = self._inferences() if endpoint == "unit" else self._requests(endpoint)
        files = [folder / f"request-{i}" for i in range(len(requests))]
        for file, request in zip(files, requests, strict=True):
            file.write_bytes(request)
        port = self.unit_port if endpoint == "unit" else self.port
        cpu, generated = self._loop_seconds(), self._generated_tokens()
        command = [reader, "127.0.0.1", str(port), _ENDS[endpoint], *files]
        seconds, _, complete = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        cpu = self._loop_seconds() - cpu
        if int(complete) != len(files):
            raise SystemExit(f"{endpoint}: {complete} of {len(files)} answers were complete")
        tokens = self._generated_tokens() - generated
        return {"tokens": tokens, "rate": tokens / float(seconds), "loop": 1e6 * cpu / tokens}

    def _requests(self, endpoint: str) -> list[bytes]:
        options = self._options
        return [self._request(endpoint, *inputs) for inputs in zip(prompts(options), questions(options), strict=True)]

    def _request(self, endpoint: str, prompt: list[int], text: str) -> bytes:
        length = self._options.output_tokens
        sampled: dict[str, Any] = {"temperature": 0, "max_tokens": length, "ignore_eos": True, "stream": True}
        bodies: dict[str, dict[str, Any]] = {
            "/infer_token": {"input_id": prompt, "stream": True, "parameters": {"max_new_tokens": length, "do_sample": False}},
            "/v1/completions": {"prompt": prompt, **sampled},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": text}], **sampled},
        }
        body = json.dumps(bodies[endpoint]).encode()
        head = f"POST {endpoint} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}"
        return "\r\n".join([*head, "", ""]).encode() + body

    def _inferences(self) -> list[bytes]:
        """An inference for each task; the tasks are set up with the first call, and outlive the connection that does it."""
        while len(self._tasks) < self._options.streams:
            with socket.create_connection(("127.0.0.1", self.unit_port)) as connection, connection.makefile("rw") as lines:
                settings = {
                    "model": self._name(),
                    "response_format": "llm.utf-8.stream",
                    "input": "llm.utf-8",
                    "enoutput": True,
                    "max_token_len": self._options.output_tokens,
                    "enable_temperature": True,
                    "temperature": 0.0,
                    "prompt": "",
                }
                envelope = {"request_id": "setup", "work_id": "llm", "action": "setup", "object": "llm.setup", "data": settings}
                lines.write(json.dumps(envelope))
                lines.flush()
                self._tasks.append(json.loads(lines.readline())["work_id"])
        inferences = []
        for i, (task, text) in enumerate(zip(self._tasks, questions(self._options), strict=True)):
            envelope = {"request_id": str(i), "work_id": task, "action": "inference", "object": "llm.utf-8", "data": text}
            inferences.append(json.dumps(envelope).encode())
        return inferences

    def _name(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats") as answer:
            name: str = json.load(answer)["model"]
        return name

    def _loop_seconds(self) -> float:
        """How long the main thread, which runs the event loop, has been on a core."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def _generated_tokens(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats") as answer:
            generated: int = json.load(answer)["generated_tokens"]
        return generated

    def _wait_for(self, pattern: str) -> int:
        lines = []
        for line in self.process.stderr or ():
            lines.append(line)
            if found := re.search(pattern, line):
                return int(found[1])
        raise SystemExit("the server did not start:\n" + "".join(lines))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.resume()
        self.process.terminate()
        self.process.wait(timeout=60)


def show(item: tuple[str, dict[str, float]]) -> str:
    endpoint, found = item
    return f"| {endpoint} {found['rate']:.0f} of {found['library']:.0f} tok/s, {found['loop']:.1f} us/token"


def report(rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace) -> None:
    print(f"| {options.streams} streams of {options.output_tokens} tokens | tok/s | library | / library | us/token |")
    print("|---|---|---|---|---|")
    for endpoint in options.endpoints:
        rate, library, loop = (
            statistics.median(found[endpoint][key] for found in rounds) for key in ("rate", "library", "loop")
        )
        share = statistics.median(found[endpoint]["rate"] / found[endpoint]["library"] for found in rounds)
        print(f"| {endpoint} | {rate:.0f} | {library:.0f} | {share:.3f} | {loop:.1f} |")


if __name__ == "__main__":
    main()
