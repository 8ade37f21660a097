"""How soon Trivium is there, and what it takes: with a warm disk cache, each in fresh processes, in turn.

    python benchmarks/start_up.py

- `generate`: from the start of `trivium generate` to the first byte of its answer;
- `health`, `ready`: from the start of `trivium serve` to the first 200 of GET /health, which says that it lives and loads, and
  of GET /ready, which says that it takes requests;
- `import`: `from trivium import LLM, SamplingParams` in a running interpreter;
- resident memory of that server once it is ready, after one answer of 64 tokens, and its peak.

cold_start.py compares the first with llama.cpp, import_time.py has more statements, memory.py the bound on memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

from cold_start import first_byte, trivium_command
from import_time import time_import
from machine import busy_cores, describe_machine, warn_if_busy
from memory import status
from peers import model_path
from rates import spread

IMPORT = "from trivium import LLM, SamplingParams"
_WAIT_SECONDS = 60
_POLL_SECONDS = 0.005


def main() -> None:
    options = read_options()
    model = model_path(options.model)
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    found: dict[str, list[float]] = {}
    for turn in range(options.repeats + 1):
        one = {
            "generate": 1000 * first_byte(trivium_command(model, options.threads)),
            "import": time_import(IMPORT),
            **serve(model, options),
        }
        if turn > 0:  # the first turn fills the disk cache and the .pyc files
            for name, value in one.items():
                found.setdefault(name, []).append(value)
    size = os.path.getsize(model) / 1e6
    units = {"generate": "ms to the first byte", "import": "ms", "health": "ms", "ready": "ms"}
    for name, values in found.items():
        print(f"{name:20} {spread(values)} {units.get(name, f'MB; the file has {size:.1f} MB')}")
    if options.json is not None:
        report = {"machine": describe_machine(), "model": model, "file_mb": size, "values": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--threads", type=int, default=2, help="of the kernels (default: 2)")
    parser.add_argument("--kv-cache-memory", type=int, default=256, metavar="MB", help="of the server (default: 256 MB)")
    parser.add_argument("--repeats", type=int, default=11, help="processes of each kind (default: 11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    return parser.parse_args()


def serve(model: str, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds until a server lives and is ready, and its resident memory in MB."""
    command = [sys.executable, "-m", "trivium", "serve", model, "--port", "0", "--unit-port", "0"]
    command += ["--num-threads", str(options.threads), "--kv-cache-memory", str(options.kv_cache_memory * 1_000_000)]
    start = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            port = port_of(server)
            moments = {}
            for path in ("health", "ready"):
                while ask(port, "GET", f"/{path}") != 200:
                    if server.poll() is not None or time.perf_counter() - start > _WAIT_SECONDS:
                        raise SystemExit(
                            f"/{path} did not answer 200; run the server by itself to see why: {shlex.join(command)}"
                        )
                    time.sleep(_POLL_SECONDS)
                moments[path] = 1000 * (time.perf_counter() - start)
            ready = status("VmRSS", server.pid)
            body = {"prompt": "The sea", "max_tokens": 64, "ignore_eos": True}
            if (answer := ask(port, "POST", "/v1/completions", body)) != 200:
                raise SystemExit(f"/v1/completions answered {answer}")
            after, peak = status("VmRSS", server.pid), status("VmHWM", server.pid)
        finally:
            server.terminate()
    return {**moments, "memory when ready": ready / 1e6, "memory after use": after / 1e6, "peak memory": peak / 1e6}


def port_of(server: subprocess.Popen[str]) -> int:
    """The port that the server says it has; then its log is read on, or it would wait for room in the pipe."""
    lines = []
    for line in server.stderr or ():
        lines.append(line)
        if found := re.search(r"http: http://127\.0\.0\.1:(\d+)", line):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return int(found[1])
    raise SystemExit("the server did not start:\n" + "".join(lines))


def ask(port: int, method: str, path: str, body: dict[str, object] | None = None) -> int:
    """The status of an answer, 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_SECONDS)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    main()
