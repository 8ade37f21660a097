"""`AsyncLLM`: the library for asyncio programs, one prompt per call, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.library.answers import Answer, Asked
from trivium.doors.library.arguments import LibraryOptions, read_arguments
from trivium.doors.library.outputs import RequestOutput
from trivium.doors.library.preparation import Preparation
from trivium.doors.library.progress import LoadProgress
from trivium.doors.library.sampling_params import SamplingParams
from trivium.engine.engine import Engine
from trivium.engine.outputs import OutputDelta
from trivium.engine.request import GenerationRequest
from trivium.errors import RequestError

if TYPE_CHECKING:
    from trivium.models.tokenizer import Tokenizer

__all__ = ["AsyncLLM"]


class AsyncLLM:
    """A loaded model for one event loop: `llm = await AsyncLLM.load(...)`, then `async for piece in llm.generate(...)`.

    Any number of generators may run at once; the engine batches them. Ending a generator early, or cancelling the task that
    reads it, aborts its request. Unlike `LLM`, a full waiting queue raises `QueueFullError`: the caller decides what waits.
    """

    def __init__(self, engine: Engine, options: LibraryOptions | None = None) -> None:
        """A door to an engine that is loaded already, for the running loop; `load` is the usual way."""
        self.engine = engine
        self._preparation = Preparation(engine, options or LibraryOptions(engine.config), streamed=True)
        self._dispatcher = Dispatcher(engine)

    @classmethod
    async def load(cls, model: str, **kwargs: Any) -> AsyncLLM:
        """Load a model without blocking the loop. Takes and raises what `LLM` does."""
        from trivium.engine.native_engine import NativeEngine

        options = read_arguments(model=model, **kwargs)
        return cls(await asyncio.to_thread(NativeEngine.load, options.config, LoadProgress(str(model))), options)

    def generate(self, prompt: Any, sampling_params: SamplingParams | None = None) -> AsyncGenerator[RequestOutput, None]:
        """Continue one prompt (a str, token ids or a dict): yields pieces with the new text and token ids.

        With `n` > 1 the pieces of the samples come interleaved, told apart by `outputs.index`. Raises as `LLM.generate` does.
        """
        return self._stream(lambda: self._preparation.prompts(prompt, sampling_params))

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        chat_template: Any = None,
        tools: Any = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation (a list of message dicts): yields pieces, as `generate`."""
        return self._stream(
            lambda: self._preparation.conversations(messages, sampling_params, chat_template_kwargs, chat_template, tools)
        )

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    async def shutdown(self) -> None:
        """Abort what runs and free the model. Idempotent."""
        await asyncio.to_thread(self.engine.shutdown)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _stream(self, prepare: Callable[[], list[Asked]]) -> AsyncGenerator[RequestOutput, None]:
        if asyncio.get_running_loop() is not self._dispatcher.loop:
            raise RuntimeError("an AsyncLLM belongs to the event loop it was loaded in")
        asked: list[Asked] = []

        def make() -> list[GenerationRequest]:
            asked.extend(prepare())
            if len(asked) != 1:
                message = f"AsyncLLM takes one prompt per call, got {len(asked)}; call it once for each"
                raise RequestError(message, field="prompt")
            return [asked[0].request]

        with await self._dispatcher.submit(make) as generation:
            answers = [Answer(asked[0], index, self._preparation.reader) for index in range(asked[0].request.n)]
            while deltas := await generation.take():
                for index, own in _by_index(deltas).items():
                    yield answers[index].piece(own)


def _by_index(deltas: list[OutputDelta]) -> dict[int, list[OutputDelta]]:
    grouped: dict[int, list[OutputDelta]] = {}
    for delta in deltas:
        grouped.setdefault(delta.index, []).append(delta)
    return grouped
