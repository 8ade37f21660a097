"""`LLM`: offline batches, as FastDeploy's offline inference has them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from trivium.doors.library.answers import Answer, Asked
from trivium.doors.library.arguments import LibraryOptions, read_arguments
from trivium.doors.library.batch import Batch
from trivium.doors.library.outputs import RequestOutput
from trivium.doors.library.preparation import Preparation
from trivium.doors.library.progress import BatchProgress, LoadProgress
from trivium.doors.library.sampling_params import SamplingParams
from trivium.engine.engine import Engine
from trivium.engine.outputs import OutputDelta

if TYPE_CHECKING:
    from trivium.models.tokenizer import Tokenizer

__all__ = ["LLM"]

Sampling = SamplingParams | Sequence[SamplingParams] | None
OutputStream = Generator[list[RequestOutput | None], None, None]


class LLM:
    """A loaded model that answers batches of prompts.

    `model` is a GGUF file, a Hugging Face folder, a catalogue name or an alias; `tokenizer` and `chat_template` replace the
    model's own. Logprobs are always available, whatever `enable_logprob` says. All further arguments are keywords, which
    docs/library.md lists as honoured, noted or refused.

    Raises `TypeError` for an unknown keyword, `ValueError` (`ConfigError`) for a wrong or refused value, `ModelLoadError`.

    Usable as a context manager; `shutdown`, or dropping the object, frees the model. Several can live in one process. Calls may
    come from several threads.
    """

    def __init__(
        self,
        model: str,
        revision: str = "master",
        tokenizer: str | None = None,
        enable_logprob: bool = False,
        chat_template: Any = None,
        **kwargs: Any,
    ) -> None:
        options = read_arguments(
            model=model,
            revision=revision,
            tokenizer=tokenizer,
            enable_logprob=enable_logprob,
            chat_template=chat_template,
            **kwargs,
        )
        from trivium.engine.native_engine import NativeEngine

        engine = NativeEngine.load(options.config, LoadProgress(str(model)))
        try:
            self._attach(engine, options)
        except BaseException:
            engine.shutdown()
            raise

    @classmethod
    def from_engine(cls, engine: Engine, options: LibraryOptions | None = None) -> LLM:
        """A library door to an engine that is loaded already. `shutdown` shuts the engine down."""
        llm = cls.__new__(cls)
        llm._attach(engine, options or LibraryOptions(engine.config))
        return llm

    def _attach(self, engine: Engine, options: LibraryOptions) -> None:
        self.engine = engine
        # A batch wants to be done soon, also when its pieces are looked at on the way.
        self._preparation = Preparation(engine, options, streamed=False)

    @overload
    def generate(
        self, prompts: Any, sampling_params: Sampling = None, use_tqdm: bool = True, stream: Literal[False] = False
    ) -> list[RequestOutput]: ...
    @overload
    def generate(
        self, prompts: Any, sampling_params: Sampling = None, use_tqdm: bool = True, *, stream: Literal[True]
    ) -> OutputStream: ...
    def generate(
        self, prompts: Any, sampling_params: Sampling = None, use_tqdm: bool = True, stream: bool = False
    ) -> list[RequestOutput] | OutputStream:
        """Continue prompts, without a template.

        `prompts`: a str, token ids, a dict with `prompt` or `prompt_token_ids`, or a list of any of these.
        `sampling_params`: one for all (or None for the defaults), or a list with one per prompt.

        Returns one `RequestOutput` per prompt in input order; with `n` > 1 the samples of a prompt are consecutive. With
        `stream=True` returns a generator, the requests queued already: each step is a list as long as that result, None where
        nothing is new, else a piece with the new text and token ids. Closing it aborts what is unfinished.

        Raises, before anything runs: `ValueError` (`RequestError`) and `TypeError` for wrong inputs, naming the prompt's index;
        `PromptTooLongError`, an `EngineError` with `error_code` 400. A request that fails later says so in its output.
        """
        return self._answer(self._preparation.prompts(prompts, sampling_params), use_tqdm, stream)

    @overload
    def chat(
        self,
        messages: Any,
        sampling_params: Sampling = None,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        chat_template: Any = None,
        tools: Any = None,
        stream: Literal[False] = False,
    ) -> list[RequestOutput]: ...
    @overload
    def chat(
        self,
        messages: Any,
        sampling_params: Sampling = None,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        chat_template: Any = None,
        tools: Any = None,
        *,
        stream: Literal[True],
    ) -> OutputStream: ...
    def chat(
        self,
        messages: Any,
        sampling_params: Sampling = None,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        chat_template: Any = None,
        tools: Any = None,
        stream: bool = False,
    ) -> list[RequestOutput] | OutputStream:
        """Answer conversations: one list of message dicts, or a list of such lists.

        `chat_template_kwargs` are variables of the template (`enable_thinking` is True unless given); `chat_template` is a
        template, or the path of one, for this call; `tools` one tool, or a list of tools, for all conversations.
        Otherwise as `generate`. The outputs' `prompt` is the rendered conversation.
        """
        asked = self._preparation.conversations(messages, sampling_params, chat_template_kwargs, chat_template, tools)
        return self._answer(asked, use_tqdm, stream)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def shutdown(self) -> None:
        """Abort what runs and free the model. Idempotent."""
        self.engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _answer(self, asked: list[Asked], use_tqdm: bool, stream: bool) -> list[RequestOutput] | OutputStream:
        if not stream:
            return self._run(asked, use_tqdm)
        pieces = self._stream(asked)
        next(pieces)  # queues the requests, and has an abandoned generator clean up
        return pieces  # type: ignore[return-value]

    def _run(self, asked: list[Asked], use_tqdm: bool) -> list[RequestOutput]:
        answers = self._answers(asked)
        deltas: list[list[OutputDelta]] = [[] for _ in answers]
        outputs: dict[int, RequestOutput] = {}
        prompt_of = {item.request.request_id: i for i, item in enumerate(asked)}
        first_of = _first_rows(asked)
        with (
            BatchProgress([item.request.n for item in asked], enabled=use_tqdm and bool(asked)) as progress,
            Batch(self.engine, [item.request for item in asked]) as batch,
        ):
            batch.feed()
            while new := batch.next():
                for delta in new:
                    row = first_of[delta.request_id] + delta.index
                    deltas[row].append(delta)
                    if delta.finished:  # there are about as many deltas as tokens: long batches must not keep them all
                        outputs[row] = answers[row].whole(deltas[row])
                        deltas[row] = []
                    progress.take(prompt_of[delta.request_id], delta)
        return [outputs[row] for row in range(len(answers))]

    def _stream(self, asked: list[Asked]) -> Generator[list[RequestOutput | None] | None, None, None]:
        """First yields None, when the requests are queued; then a list per step."""
        answers = self._answers(asked)
        first_of = _first_rows(asked)
        with Batch(self.engine, [item.request for item in asked], streaming=True) as batch:
            batch.feed()
            yield None
            while new := batch.next():
                grouped: dict[int, list[OutputDelta]] = {}
                for delta in new:
                    grouped.setdefault(first_of[delta.request_id] + delta.index, []).append(delta)
                step: list[RequestOutput | None] = [None] * len(answers)
                for row, own in grouped.items():
                    step[row] = answers[row].piece(own)
                yield step

    def _answers(self, asked: list[Asked]) -> list[Answer]:
        return [Answer(item, index, self._preparation.reader) for item in asked for index in range(item.request.n)]


def _first_rows(asked: list[Asked]) -> dict[str, int]:
    """Where each request's samples begin in the list of results."""
    rows: dict[str, int] = {}
    count = 0
    for item in asked:
        rows[item.request.request_id] = count
        count += item.request.n
    return rows
