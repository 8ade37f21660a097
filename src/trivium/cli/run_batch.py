"""`trivium run-batch`: a file of OpenAI requests, answered together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from trivium.cli.options import EngineCommand, engine_options, read_config
from trivium.errors import EngineError, RequestError

if TYPE_CHECKING:
    from trivium.cli.batch_file import BatchLine, Results
    from trivium.doors.http.openai.request import OpenAIRequest
    from trivium.engine.engine import Engine
    from trivium.engine.outputs import OutputDelta

__all__ = ["BatchRun", "command"]

log = logging.getLogger(__name__)


@click.command("run-batch", cls=EngineCommand)
@click.option(
    "-i",
    "--input",
    "source",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests: one JSON object a line.",
)
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results, in order of completion.",
)
@click.option("--overwrite", is_flag=True, help="Replace the results that OUTPUT holds instead of going on after them.")
@engine_options()
def command(source: Path, target: Path, overwrite: bool, **flags: Any) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Lines hold custom_id, method POST, url /v1/chat/completions or /v1/completions, and body. A line that is wrong gets an error
    in the results and stops no other. Run again after a crash, it goes on with what is missing.
    """
    if target.is_file() and source.samefile(target):
        raise click.UsageError("--input and --output are the same file")
    config = read_config(flags)
    from tqdm import tqdm

    from trivium.cli.answer import open_engine
    from trivium.cli.batch_file import Results, count_lines, read_lines

    with Results(target, overwrite=overwrite) as results, open_engine(config) as engine:
        start = time.monotonic()
        total = count_lines(source) if source.is_file() else None  # a pipe can be read only once
        with tqdm(total=total, desc="Requests", unit="request", disable=None, dynamic_ncols=True) as bar:
            run = BatchRun(engine, results, on_result=lambda: bar.update(1))
            run.answer(read_lines(source))
    click.echo(f"{run.summary()}, {time.monotonic() - start:.1f} s", err=True)


@dataclass(slots=True)
class _Job:
    """A request on its way: its deltas, and how many of its samples have not ended."""

    line: BatchLine
    request_id: str
    asked: OpenAIRequest
    unfinished: int
    deltas: list[OutputDelta] = field(default_factory=list)


class BatchRun:
    """Answers lines with one engine, a bounded number of samples at a time, and writes results as they end."""

    def __init__(self, engine: Engine, results: Results, on_result: Callable[[], object] = lambda: None) -> None:
        """Raises `ConfigError` for a parser that the model's vocabulary does not suit."""
        from trivium.doors.http.openai.request import BodyReader

        config = engine.config
        self._engine = engine
        self._results = results
        self._on_result = on_result
        self._reader = BodyReader(engine)
        # Enough that the engine always finds the next sequence waiting, never so many that its queue is full.
        self._bound = min(config.max_waiting, 2 * config.max_num_seqs)
        self._outputs: SimpleQueue[Sequence[OutputDelta]] = SimpleQueue()
        self._jobs: dict[str, _Job] = {}  # by request id
        self._in_flight = 0  # samples
        self.answered = self.failed = self.skipped = 0

    def answer(self, lines: Iterable[BatchLine]) -> None:
        """Answer all lines that the results do not hold yet. Raises `EngineDeadError` if the engine is shut down meanwhile."""
        for line in lines:
            if self._results.has(line):
                self.skipped += 1
                self._on_result()
            elif line.fault is not None:
                self._results.fault(line)
                self._count(failed=True)
            else:
                self._start(line)
        while self._in_flight:
            self._take()

    def summary(self) -> str:
        """Counts, for a person."""
        return f"{self.answered} answered, {self.failed} failed, {self.skipped} done before"

    def _start(self, line: BatchLine) -> None:
        request_id = uuid4().hex
        try:
            asked = self._reader.read(line.url, line.body, request_id)
            if asked.stream:
                raise RequestError.out_of_range("stream", "false in a batch", True)
        except EngineError as error:
            self._fail(line, request_id, error)
            return
        except Exception as error:  # one line's fault, whatever it is, stops no other
            self._break(line, request_id, error)
            return
        job = _Job(line, request_id, asked, asked.num_samples)
        for request in asked.requests:
            while self._in_flight and self._in_flight + request.n > self._bound:
                self._take()
            self._jobs[request.request_id] = job
            self._in_flight += request.n
            self._engine.submit([request], self._receive)

    def _receive(self, outputs: Sequence[OutputDelta]) -> None:
        """The engine's sink, on its thread."""
        self._outputs.put(outputs)

    def _take(self) -> None:
        """Wait for deltas; write the results of the jobs that they end."""
        for delta in self._outputs.get():
            job = self._jobs[delta.request_id]
            job.deltas.append(delta)
            if delta.finished:
                self._in_flight -= 1
                job.unfinished -= 1
                if not job.unfinished:
                    self._finish(job)

    def _finish(self, job: _Job) -> None:
        from trivium.doors.http.openai.response import response_body

        for request in job.asked.requests:
            del self._jobs[request.request_id]
        try:
            body = response_body(job.asked, job.deltas, self._engine.model_info.name)
        except EngineError as error:
            self._fail(job.line, job.request_id, error)
            return
        except Exception as error:  # as in _start
            self._break(job.line, job.request_id, error)
            return
        self._results.answer(job.line, job.request_id, body)
        self._count(failed=False)

    def _break(self, line: BatchLine, request_id: str, error: Exception) -> None:
        """Log an error that nobody foresaw, with its traceback, and write it as the line's result."""
        log.error("line %d of the batch failed", line.number, exc_info=error)
        self._fail(line, request_id, EngineError(f"{type(error).__name__}: {error}"))

    def _fail(self, line: BatchLine, request_id: str, error: EngineError) -> None:
        from trivium.doors.http.errors import OpenAIErrors

        form = OpenAIErrors()
        self._results.failure(line, request_id, form.status(error), form.body(error))
        self._count(failed=True)

    def _count(self, *, failed: bool) -> None:
        self.failed += failed
        self.answered += not failed
        self._on_result()
