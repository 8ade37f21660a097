"""A server process under load for long: what it takes, and whether that stays the same."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import statistics
import string
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120  # for whatever must come: a slow, busy machine
MAX_WORKERS = min(32, (os.cpu_count() or 1) + 4)  # of asyncio's executor
TEXT = """red green blue sun moon star river stone house garden apple bread water milk salt sugar cat dog bird fish horse tree
leaf road city night day rain snow wind music book letter paper window door table chair cup plate"""
WORDS = TEXT.split()
VOCABULARY = 49152  # of SmolLM2
WORDS_KEPT = 10000  # by a tokenizer of `tokenizers`, of those that it has seen


@dataclass(frozen=True)
class Footprint:
    """What an idle server takes."""

    kib: int  # resident memory, with its share of what others use, too
    threads: int
    files: int
    tasks: int  # of asyncio
    objects: int  # of Python
    types: dict[str, int]  # objects of the most frequent types


class Server:
    """`trivium serve` with both doors on free ports. A context manager; its end must be clean."""

    def __init__(self, model, *options):
        script = str(Path(__file__).with_name("watched_serve.py"))
        common = ("--port", "0", "--unit-port", "0", "--num-kv-blocks", "48", "--max-model-len", "512")
        command = [sys.executable, script, "serve", model, *common, *map(str, options)]
        # With an arena per thread, malloc would take more with every new thread, for long.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
        self._told = queue.Queue()
        self._last = []  # lines, for when something is wrong
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.port = int(self.wait_for(r"trivium\.http http: http://127\.0\.0\.1:(\d+)"))
        self.unit_port = int(self.wait_for(r"trivium\.unit unit: 127\.0\.0\.1:(\d+)"))
        self.wait_for(r"ready: (.*) takes requests")
        self.first = self.footprint()

    def _read(self):
        for line in self.process.stderr:
            self._last = [*self._last[-200:], line]
            if re.match("held: |.* (ready|http|unit): ", line):
                self._told.put(line)

    def wait_for(self, pattern):
        """The group of the next line that matches."""
        while True:
            try:
                match = re.search(pattern, self._told.get(timeout=SECONDS))
            except queue.Empty:
                raise AssertionError("".join(self._last)) from None
            if match:
                return match[1]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is not None:
            self.process.send_signal(signal.SIGUSR2)
            time.sleep(1)
            print("the server's last lines:", *self._last, sep="\n")
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self._reader.join()
            self.process.stderr.close()
        assert exc[0] is not None or code == 0, "".join(self._last)

    def footprint(self):
        """What it takes now."""
        self.process.send_signal(signal.SIGUSR1)
        held = json.loads(self.wait_for("^held: (.*)"))
        proc = Path("/proc") / str(self.process.pid)
        kib = int(re.search(r"^Pss: +(\d+) kB", (proc / "smaps_rollup").read_text(), re.MULTILINE)[1])
        return Footprint(kib, len(list(proc.glob("task/*"))), len(list(proc.glob("fd/*"))), **held)

    def warm_up(self):
        """Fill what use fills up to a limit: KV blocks take memory once they are used; known words and tokens are kept."""
        chance = random.Random(0)
        for _ in range(WORDS_KEPT // 200):
            words = " ".join("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(250))
            self.post("/tokenize", {"messages": [{"role": "user", "content": words}]})
        self.post("/detokenize", {"tokens": list(range(VOCABULARY))})
        for word in WORDS[:12]:
            self.post("/infer", {"inputs": f"{word} " * 400, "parameters": {"max_new_tokens": 1}})

    def post(self, path, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            response.read()

    def settled(self):
        """What it takes once it has nothing to do: then no request, KV block, asyncio task or connection may be left."""
        until(lambda: self.busy() == {}, lambda: f"left in the engine: {self.busy()}")
        until(lambda: self.left() == {}, lambda: f"left in the server: {self.left()}")
        return self.footprint()

    def busy(self):
        """What the engine's metrics show of running work."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=SECONDS) as response:
            text = response.read().decode()
        found = re.findall(r"^trivium:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*?\} (.*)", text, re.M)
        assert len(found) == 3
        return {name: value for name, value in found if float(value)}

    def left(self):
        """What there is more of than at the start, when it should not be."""
        now = self.footprint()
        return {name: getattr(now, name) for name in ("tasks", "files") if getattr(now, name) > getattr(self.first, name)}


def until(condition, tell):
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


def in_threads(function, count):
    """Run `function(0)`, `function(1)`, … at once; the first fault of one is raised, when all have ended."""
    with ThreadPoolExecutor(count) as pool:
        jobs = [pool.submit(function, i) for i in range(count)]
    return [job.result() for job in jobs]


def assert_flat(footprints, *, kib, objects):
    """Between the medians of the first and the last three: at most so much more memory and so many more objects.

    Threads come as they are needed, up to a limit. Prints what there was.
    """
    first, last = footprints[:3], footprints[-3:]

    def growth(name):
        return statistics.median(getattr(f, name) for f in last) - statistics.median(getattr(f, name) for f in first)

    for footprint in footprints:
        print(", ".join(f"{name} {getattr(footprint, name)}" for name in ("kib", "threads", "files", "tasks", "objects")))
    print(f"growth: {growth('kib')} KiB, {growth('objects')} objects")
    more = Counter(last[-1].types)
    more.subtract(first[0].types)
    assert growth("objects") <= objects, more.most_common(8)
    assert growth("kib") <= kib
    assert growth("threads") <= MAX_WORKERS
