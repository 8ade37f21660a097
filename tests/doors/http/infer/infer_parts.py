"""Engines for tests of `/infer`, and a client that reads its replies as the vendor's benchmark does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Any

from engine_parts import EOS, start_engine
from fake_native import FakeModel, FakeSampler

__all__ = ["EOS", "ScriptSampler", "SlowModel", "events_of", "read_stream", "script_engine", "slow_engine", "wait_until"]


class ScriptSampler(FakeSampler):
    """Says the tokens of `script`, then the end token. `prompts` are those of the requests that have run, in order."""

    script: tuple[int, ...] = ()
    prompts: list[bytes]

    def __init__(self, **options):
        super().__init__(**options)
        if self.prompt:
            self.prompts.append(bytes(self.prompt))

    def _choose(self, cells, mask=None):
        return self.script[self.num_output] if self.num_output < len(self.script) else EOS


class SlowModel(FakeModel):
    """Each step takes a while, so that an answer of many tokens outlasts a deadline or a client."""

    def step(self, *args, **options):
        time.sleep(0.01)
        return super().step(*args, **options)


def script_engine(script: Iterable[int] | str, **options: Any):
    """An engine whose every answer is this; its tokens are bytes. `sampler_type` tells what has run."""
    tokens = tuple(script.encode() if isinstance(script, str) else script)
    sampler = type("Script", (ScriptSampler,), {"script": tokens, "prompts": []})
    engine = start_engine(sampler_type=sampler, **options)
    engine.sampler_type = sampler
    return engine


def slow_engine(**options: Any):
    """An engine that takes 10 ms for each of 200 tokens."""
    return script_engine([97] * 200, native=SlowModel(), **options)


def read_stream(response) -> list[dict[str, Any]]:
    """The events of a streamed response: a line that is not JSON fails it."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    text = ""
    for piece in response.iter_text():
        text += piece
        while "\n\n" in text:
            line, text = text.split("\n\n", 1)
            if line.startswith(":"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return events
            events.append(json.loads(data))
    assert not text
    return events


def events_of(client, body: dict[str, Any], path: str = "/infer") -> list[dict[str, Any]]:
    """Ask for a stream, and read it to its end."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        return read_stream(response)


def wait_until(holds, seconds: float = 30.0) -> None:
    """Wait for what another thread will do."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if holds():
            return
        pause.wait(0.005)
    raise AssertionError("it never happened")
