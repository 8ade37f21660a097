"""Puts a server under load: requests at their times, and what became of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.cli.bench.backends import Backend
from trivium.cli.bench.client import Client, ClientError, WholeAnswer
from trivium.cli.bench.outcome import Outcome, StreamReader
from trivium.cli.bench.prompts import Prompt

__all__ = ["Load", "first_model"]

_PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """How prompts are sent: `rate` per second on average (math.inf: all at once), at most `max_concurrency` at a time.

    `model` is the name that requests give, None for none.
    """

    client: Client
    backend: Backend
    endpoint: str
    model: str | None
    ignore_eos: bool
    rate: float
    max_concurrency: int | None
    timeout: float

    async def run(self, prompts: Sequence[Prompt], draw: random.Random, on_end: Callable[[Outcome], None]) -> list[Outcome]:
        """Send all prompts and wait for all answers; gives their outcomes in order."""
        most = min(self.max_concurrency or len(prompts), len(prompts))
        _allow_files(most + 100)
        gate = asyncio.Semaphore(most)
        delays, delay = [], 0.0
        for _ in prompts:
            delays.append(delay)
            delay += 0.0 if math.isinf(self.rate) else draw.expovariate(self.rate)
        start = time.perf_counter()

        async def answer(prompt: Prompt, delay: float) -> Outcome:
            if (wait := start + delay - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            async with gate:
                outcome = await self.ask(prompt)
            on_end(outcome)
            return outcome

        return list(await asyncio.gather(*map(answer, prompts, delays)))

    async def ask(self, prompt: Prompt) -> Outcome:
        """Send one prompt and read its answer."""
        body = self.backend.body(prompt.text, prompt.max_tokens, self.model, ignore_eos=self.ignore_eos)
        data = json.dumps(body).encode()
        reader = StreamReader(self.backend, prompt.num_tokens)
        try:
            await self.client.exchange("POST", self.endpoint, data, reader, self.timeout)
        except ClientError as error:
            return reader.finish(error)
        return reader.finish()


async def first_model(client: Client) -> str:
    """The name of the first model that `/v1/models` lists. Raises `ClientError`."""
    answer = WholeAnswer()
    await client.exchange("GET", "/v1/models", b"", answer, _PROBE_SECONDS)
    with contextlib.suppress(ValueError, LookupError, TypeError):
        name = json.loads(answer.body)["data"][0]["id"]
        if answer.status == 200 and isinstance(name, str):
            return name
    text = bytes(answer.body[:300]).decode("utf-8", "replace").strip()
    raise ClientError(f"/v1/models names no model; --served-model-name would (status {answer.status}: {text})")


def _allow_files(count: int) -> None:
    """Have the system allow this process so many open connections, as far as it lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
