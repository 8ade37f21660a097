"""An engine without a model: tokens are UTF-8 bytes, answers are made from the prompt, one token per step on a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.config import EngineConfig
from trivium.engine.engine import Engine, EngineStats, ModelInfo
from trivium.engine.outputs import OutputDelta, OutputSink, RequestTimes, TokenLogprobs
from trivium.engine.request import GenerationRequest
from trivium.errors import EngineDeadError, EngineError, PromptTooLongError, QueueFullError
from trivium.models.chat_template import RenderedPrompt

EOS = 256
THINK = {"<think>": 257, "</think>": 258, "<tool_call>": 259}


class FakeTokenizer:
    """Bytes as tokens, then the end token and the tags that parsers look for."""

    vocab_size = 260
    special_ids: frozenset[int] = frozenset()
    special_texts: tuple[str, ...] = ()
    special_tokens: dict[str, str] = {}  # noqa: RUF012

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def fewest_tokens(self, text: str) -> int:
        return len(text)

    def encode_around(self, text: str, plain_starts: Iterable[int]) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_id(self, text: str) -> int | None:
        return THINK.get(text)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")


class RoleTemplate:
    """A chat template: `tool: name` lines, `role: content` lines, then `assistant: `. It records what it is given."""

    source = "<tool_call>"

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def render(self, messages, *, tools=None, add_generation_prompt=True, variables=None):  # type: ignore[no-untyped-def]
        self.calls.append({"tools": tools, **(variables or {})})
        lines = [f"tool: {tool['function']['name']}\n" for tool in tools or ()]
        lines += [f"{message['role']}: {message['content']}\n" for message in messages]
        return RenderedPrompt("".join(lines) + ("assistant: " if add_generation_prompt else ""))


@dataclass
class Running:
    request: GenerationRequest
    index: int
    sink: OutputSink
    tokens: list[int]
    sent: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)


def default_reply(prompt: str, request: GenerationRequest, index: int) -> str:
    return f"{prompt[-12:]!r} seed {request.sampling.seed} sample {index}"


class FakeEngine(Engine):
    """`reply(prompt text, request, index)` gives the answer; a prompt with "boom" fails after its first token.

    `pace` is the time between steps in seconds; with a `gate` each step waits for one release of it.
    """

    def __init__(
        self,
        reply: Callable[[str, GenerationRequest, int], str] = default_reply,
        *,
        pace: float = 0.0,
        gate: threading.Semaphore | None = None,
        chat_template: Any = None,
        generation_defaults: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.config = EngineConfig(model="fake", **config)
        self.model_info = ModelInfo(
            name="fake",
            architecture="fake",
            vocab_size=FakeTokenizer.vocab_size,
            max_model_len=self.config.max_model_len or 512,
            eos_token_ids=frozenset({EOS}),
            generation_defaults=generation_defaults or {},
        )
        self.tokenizer: Any = FakeTokenizer()
        self.chat_template = chat_template
        self.chunks: list[int] = []
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self.pace = pace
        self.gate = gate
        self._reply = reply
        self._dead = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def validate(self, request: GenerationRequest) -> None:
        room = self.model_info.max_model_len - len(request.prompt_token_ids)
        if room < max(1, request.sampling.min_tokens):
            raise PromptTooLongError(f"the prompt has {len(request.prompt_token_ids)} tokens", field="prompt")

    def submit(self, requests: Sequence[GenerationRequest], sink: OutputSink) -> None:
        for request in requests:
            self.validate(request)
        with self._changed:
            if self._dead:
                raise EngineDeadError("the engine has been shut down")
            samples = [Running(r, i, sink, self._answer(r, i)) for r in requests for i in range(r.n)]
            if len(self.waiting) + len(samples) > self.config.max_waiting:
                raise QueueFullError("the queue is full")
            self.chunks.append(len(requests))
            self.requests += requests
            self.waiting += samples
            self._changed.notify_all()

    def abort(self, request_ids: Sequence[str]) -> None:
        with self._changed:
            self.aborted += request_ids
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        with self._changed:
            return EngineStats(running=len(self.running), waiting=len(self.waiting), total_blocks=640)

    def reset_prefix_cache(self) -> None:
        """There is none."""

    def shutdown(self) -> None:
        with self._changed:
            self._dead = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def idle(self) -> bool:
        stats = self.stats()
        return not stats.running and not stats.waiting

    def _answer(self, request: GenerationRequest, index: int) -> list[int]:
        prompt = self.tokenizer.decode(request.prompt_token_ids)
        tokens = [*self._reply(prompt, request, index).encode(), EOS]
        room = self.model_info.max_model_len - len(request.prompt_token_ids)
        return tokens[: min(room, request.sampling.max_tokens or room)]

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self.waiting or self.running or self._dead):
                    self._changed.wait()
            if self.gate is not None:
                self.gate.acquire()
            with self._changed:
                deltas = self._step()
            by_sink: dict[OutputSink, list[OutputDelta]] = {}
            for sink, delta in deltas:
                by_sink.setdefault(sink, []).append(delta)
            for sink, own in by_sink.items():
                sink(own)
            if self._dead and self.idle:
                return
            time.sleep(self.pace)

    def _step(self) -> list[tuple[OutputSink, OutputDelta]]:
        aborted, everything = set(self.aborted), self.running + self.waiting
        ended = [s for s in everything if self._dead or s.request.request_id in aborted]
        deltas = [(s.sink, self._delta(s, [], "abort")) for s in ended]
        self.running = [s for s in self.running if s not in ended]
        self.waiting = [s for s in self.waiting if s not in ended]
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            sample = self.waiting.pop(0)
            sample.times.arrival = sample.request.arrival_time
            sample.times.scheduled = time.monotonic()
            self.running.append(sample)
        for sample in list(self.running):
            token = sample.tokens[sample.sent]
            sample.sent += 1
            sample.times.last_token = time.monotonic()
            sample.times.first_token = sample.times.first_token or sample.times.last_token
            reason = None
            if sample.sent == len(sample.tokens):
                reason = "stop" if token == EOS else "length"
            if b"boom" in bytes(sample.request.prompt_token_ids):
                reason = "error"
            if reason is not None:
                self.running.remove(sample)
            deltas.append((sample.sink, self._delta(sample, [token], reason)))
        return deltas

    def _delta(self, sample: Running, tokens: list[int], reason: Any) -> OutputDelta:
        sampling = sample.request.sampling
        rows = []
        if sampling.logprobs is not None:
            others = [((token + 1) % 256, -2.0 - k) for token in tokens for k in range(sampling.logprobs)]
            rows = [TokenLogprobs(token, -0.5, sampling.logprobs + 1, tuple(others)) for token in tokens]
        prompt_rows = None
        if sampling.prompt_logprobs is not None and sample.sent == 1:
            ids = sample.request.prompt_token_ids
            prompt_rows = [None, *(TokenLogprobs(token, -1.0, 1, ((token, -1.0),)) for token in ids[1:])]
        return OutputDelta(
            sample.request.request_id,
            sample.index,
            token_ids=tokens,
            text=self.tokenizer.decode(tokens),
            logprobs=rows,
            prompt_logprobs=prompt_rows,
            finish_reason=reason,
            error=EngineError("the step failed") if reason == "error" else None,
            num_prompt_tokens=len(sample.request.prompt_token_ids),
            num_cached_tokens=0,
            times=sample.times,
        )


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs.text for output in outputs]


def reply_to(prompt: str) -> str:
    return default_reply(prompt, GenerationRequest("r", [1]), 0)
