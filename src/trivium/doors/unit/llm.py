"""The `llm` unit: answers texts with a language model."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from trivium.doors.unit.bus import Bus, ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.dialogue import Dialogue
from trivium.doors.unit.engines import Engines
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.llm_options import read_sampling
from trivium.doors.unit.output import Output
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.unit import Unit
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.errors import EngineError, QueueFullError

if TYPE_CHECKING:
    from trivium.doors.dispatcher import Dispatcher
    from trivium.engine.outputs import OutputDelta

__all__ = ["LlmTask", "LlmUnit"]

log = logging.getLogger("trivium.unit")

_MAX_PROMPT = 65536  # characters of a setup's system prompt


class LlmUnit(Unit):
    """Language models by name, shared by the tasks that use them; the engine batches what all tasks answer."""

    name: ClassVar[str] = "llm"
    upstreams: ClassVar[frozenset[str]] = frozenset({"asr", "whisper", "kws"})

    def __init__(self, bus: Bus, config: UnitConfig, engines: Engines) -> None:
        super().__init__(bus, config.unit_max_tasks)
        self.config = config
        self.engines = engines

    async def create(self, work_id: str, setup: Setup, command: Command) -> Task:
        prompt = setup.text("prompt")
        if len(prompt) > _MAX_PROMPT:
            raise UnitError(Code.MODEL, f"prompt must have at most {_MAX_PROMPT} characters, got {len(prompt)}")
        # The original's models that keep the dialogue have this in their names.
        keeps = setup.flag("context", "-ctx" in setup.model)
        read_sampling(setup, {})  # what is wrong is known before a model is loaded
        dispatcher = await self.engines.acquire(setup.model)
        try:
            engine = dispatcher.engine
            sampling = read_sampling(setup, engine.model_info.generation_defaults)
            dialogue = Dialogue(engine, prompt, keeps=keeps, max_tokens=sampling.max_tokens or 1)
        except BaseException:
            self.engines.release(dispatcher)
            raise
        return LlmTask(self, work_id, setup, command, dispatcher, sampling, dialogue)

    def descriptors(self) -> list[dict[str, Any]]:
        return [_descriptor(name, self.engines.num_kib(model)) for name, model in self.engines.names().items()]

    async def shutdown(self) -> None:
        await super().shutdown()
        await self.engines.close()


class _Answer:
    """A text that waits for its answer, or is being answered."""

    def __init__(self, text: str, output: Output, said: list[str] | None) -> None:
        """Collects what is answered in `said`."""
        self.text = text
        self.output = output
        self.said = said
        self.ended = asyncio.Event()

    def take(self, delta: OutputDelta) -> None:
        """What is new from the engine."""
        if self.said is not None:
            self.said.append(delta.text)
        self.output.add(delta.text)
        if delta.finish_reason in ("stop", "length"):
            self.end()
        elif delta.finish_reason is not None:
            self.fail(delta.error or EngineError("The answer was cut off by the server."))

    def end(self) -> None:
        """Send the last frame."""
        self.output.finish()
        self.ended.set()

    def fail(self, error: Exception) -> None:
        """Send the last frame, with an error."""
        code = Code.BUSY if isinstance(error, QueueFullError) else Code.RUN
        self.output.fail(UnitError(code, str(error) if isinstance(error, EngineError) else ""))
        self.ended.set()


class LlmTask(Task):
    """One model with its prompt and sampling. Texts are answered one after the other; those that come meanwhile wait."""

    unit: LlmUnit

    def __init__(
        self,
        unit: LlmUnit,
        work_id: str,
        setup: Setup,
        command: Command,
        dispatcher: Dispatcher,
        sampling: SamplingOptions,
        dialogue: Dialogue,
    ) -> None:
        super().__init__(unit, work_id, setup, command)
        self._dispatcher = dispatcher
        self._sampling = sampling
        self._dialogue = dialogue
        self._waiting: deque[_Answer] = deque()
        self._running: _Answer | None = None
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def infer(self, command: Command) -> None:
        text = self.reader.read_text(command)
        if text:
            self._ask(text, command.request_id, command.connection)

    def receive(self, message: ChainMessage) -> None:
        """A wake word ends the running answer; what was heard is a text to answer, once the sentence is complete."""
        if message.work_id.startswith("kws."):
            self.stop()
            return
        data = message.data
        if isinstance(data, dict):
            data = data.get("delta") if data.get("finish") is True else None
        if isinstance(data, str) and data:
            try:
                self._ask(data, self.request_id, self.owner)
            except UnitError as error:
                self._output(self.request_id, self.owner).fail(error)

    def refuse(self, command: Command, error: UnitError) -> None:
        """Clients that look only for the last frame of an answer need one here, too."""
        self._output(command.request_id, command.connection).fail(error)

    def stop(self) -> None:
        if self._running is not None:
            self._running.end()

    def close(self) -> None:
        self._closed = True
        waiting = list(self._waiting)
        self._waiting.clear()
        self.stop()
        for answer in waiting:
            answer.end()
        if self._worker is None:
            self._release()

    def _output(self, request_id: str, connection: Connection) -> Output:
        return Output(self, request_id, connection)

    def _ask(self, text: str, request_id: str, connection: Connection) -> None:
        """Answer a text once those before it are answered. Raises `UnitError`: BUSY if too many wait, RUN if it is too long."""
        limit = self.unit.config.unit_queue
        if len(self._waiting) + (self._running is not None) > limit:
            raise UnitError(Code.BUSY, f"{limit} inferences wait already.")
        try:
            self._dialogue.check(text)  # now: what waits must not fill the memory
        except EngineError as error:
            raise UnitError(Code.RUN, str(error)) from None
        said: list[str] | None = [] if self._dialogue.keeps else None
        self._waiting.append(_Answer(text, self._output(request_id, connection), said))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Answer what waits, until nothing does."""
        while self._waiting:
            answer = self._running = self._waiting.popleft()
            try:
                await self._answer(answer)
            except EngineError as error:
                answer.fail(error)
            except Exception as error:
                log.exception("%s failed on an inference", self.work_id)
                answer.fail(error)
            self._running = None
        self._worker = None
        if self._closed:
            self._release()

    async def _answer(self, answer: _Answer) -> None:
        """Generate one answer. Raises what making and submitting the request raises."""
        if self._dialogue.keeps and answer.text == "reset":
            self._dialogue.reset()
            if not self.setup.streams:
                answer.output.add("Context has been reset.")
            answer.end()
            return
        with await self._dispatcher.submit(lambda: [self._request(answer.text)]) as generation:
            if not answer.output.finished:
                generation.listen(answer.take)
            await answer.ended.wait()
        if answer.said and (said := "".join(answer.said)):
            self._dialogue.add(answer.text, said)

    def _request(self, text: str) -> GenerationRequest:
        """On a worker thread."""
        prompt, frame_tokens = self._dialogue.prompt(text), self.unit.config.unit_frame_tokens
        return GenerationRequest(
            f"unit-{uuid4().hex}", prompt, self._sampling, delta_tokens=frame_tokens, streamed=self.setup.streams
        )

    def _release(self) -> None:
        self.unit.engines.release(self._dispatcher)


def _descriptor(name: str, num_kib: int) -> dict[str, Any]:
    """A model as the original's files describe them, with the fields that clients read."""
    return {
        "mode": name,
        "type": "llm",
        "homepage": "",
        "compile_flage": "",
        "pulsar_version": "",
        "capabilities": ["text_generation", "chat"],
        "input_type": ["llm.utf-8", "llm.utf-8.stream"],
        "output_type": ["llm.utf-8", "llm.utf-8.stream"],
        "mode_param": {"cmm_size": num_kib, "precompute_len": 0},
        "mode_param_bak": {},
    }
