"""One engine, one request at a time: what `generate` and `chat` do with a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from trivium.errors import RequestError

if TYPE_CHECKING:
    from trivium.config import EngineConfig
    from trivium.engine.engine import Engine
    from trivium.engine.outputs import FinishReason, OutputDelta, RequestTimes
    from trivium.engine.sampling import SamplingOptions

__all__ = ["Answer", "encode_messages", "open_engine", "stream"]

_BIG = 300_000_000  # bytes of weights from which loading takes long enough for a progress bar


def open_engine(config: EngineConfig, check: Callable[[], object] = lambda: None) -> Engine:
    """Load the model, with a progress bar on a terminal if it is big. Raises `ModelLoadError`, `ConfigError`.

    `check` is called now and then meanwhile; what it raises ends the loading.
    """
    from trivium.engine.native_engine import NativeEngine

    bar: Any = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        check()
        if bar is None and total > _BIG:
            from trivium.doors.library.progress import LoadProgress

            bar = LoadProgress(config.model)
        if bar is not None:
            bar(done, total)

    return NativeEngine.load(config, progress)


def encode_messages(engine: Engine, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of a conversation in the model's chat template. Raises `RequestError` if the model has none, or refuses it."""
    if engine.chat_template is None:
        raise RequestError("the model has no chat template; --chat-template gives it one", field="chat_template")
    return engine.chat_template.render(messages).tokens(engine.tokenizer)


@dataclass(slots=True)
class Answer:
    """What has come of an answer."""

    text: str = ""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int = 0
    times: RequestTimes | None = field(default=None, repr=False)

    def add(self, delta: OutputDelta) -> None:
        self.text += delta.text
        self.num_tokens += len(delta.token_ids)
        self.num_prompt_tokens = delta.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.seed = delta.seed
        self.times = delta.times

    @property
    def first_token_seconds(self) -> float:
        """From the request to the first token; 0 before there is one."""
        return max(0.0, self.times.first_token - self.times.arrival) if self.times else 0.0

    @property
    def seconds(self) -> float:
        """From the request to the last token."""
        return max(0.0, self.times.last_token - self.times.arrival) if self.times else 0.0

    @property
    def tokens_per_second(self) -> float:
        """After the first token, whose time is the prompt's; 0 for a single token."""
        decoding = self.times.last_token - self.times.first_token if self.times else 0.0
        return (self.num_tokens - 1) / decoding if decoding > 0 else 0.0

    def summary(self) -> str:
        """One line of figures."""
        return (
            f"{self.num_tokens} tokens, {self.tokens_per_second:.1f} tok/s, "
            f"first token {1000 * self.first_token_seconds:.0f} ms "
            f"({self.num_prompt_tokens} prompt tokens, {self.num_cached_tokens} cached)"
        )


def stream(
    engine: Engine, prompt_token_ids: list[int], sampling: SamplingOptions, answer: Answer
) -> Generator[str, None, None]:
    """The pieces of an answer's text as they come; `answer` gathers everything else.

    Closing the generator, or an interrupt inside it, aborts the request and waits until it has ended. Raises `RequestError`,
    and `EngineError` when the engine fails.
    """
    from trivium.engine.request import GenerationRequest

    outputs: SimpleQueue[Sequence[OutputDelta]] = SimpleQueue()
    request = GenerationRequest(f"cli-{uuid4().hex}", prompt_token_ids, sampling)
    engine.submit([request], lambda deltas: outputs.put(deltas))
    ended = False
    try:
        while not ended:
            for delta in outputs.get():
                ended = delta.finished
                answer.add(delta)
                if delta.error is not None:
                    raise delta.error
                if delta.text:
                    yield delta.text
    finally:
        if not ended:
            engine.abort([request.request_id])
            while not any(delta.finished for delta in outputs.get()):
                continue
