"""The engine's thread: takes what the doors ask for, runs step after step, and tells the doors what came of it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from trivium.engine.detokenizer import Detokenizer
from trivium.engine.inbox import Inbox, Message
from trivium.engine.outbox import Outbox
from trivium.engine.outputs import FinishReason, OutputDelta
from trivium.engine.pace import Pace
from trivium.engine.postprocess import accept_tokens, collect_prompt_logprobs, gather, last_delta
from trivium.engine.sample import ActiveRequest, Sample
from trivium.engine.sampler_factory import SamplerFactory
from trivium.engine.scheduler import Chunk, Scheduler, StepPlan
from trivium.engine.step_batch import StepBatch
from trivium.errors import EngineError, RequestError
from trivium.thread_stack import start_with_stack

if TYPE_CHECKING:
    from trivium._native import Model, StepResult
    from trivium.models.tokenizer import Tokenizer

__all__ = ["EngineLoop"]

log = logging.getLogger("trivium")

_STACK_BYTES = 8 * 1024 * 1024  # the kernels keep unpacked weights on it
_JOIN_SECONDS = 30.0  # a step of a large model on a slow machine, with room


class EngineLoop:
    """Owns the native model and the scheduler. Public methods may be called from any thread.

    One turn of the thread is: messages, deadlines, one step (schedule, run, accept), delivery. A fault ends the samples that it
    concerns and nothing else: one sample when it can be told which, those of the batch otherwise.
    """

    def __init__(
        self,
        native: Model,
        new_scheduler: Callable[[], Scheduler],
        batch: StepBatch,
        samplers: SamplerFactory,
        tokenizer: Tokenizer,
        max_waiting: int,
        pace: Pace,
    ) -> None:
        self._native = native
        self._new_scheduler = new_scheduler
        self._scheduler = new_scheduler()
        self._batch = batch
        self._samplers = samplers
        self._tokenizer = tokenizer
        self._pace = pace
        self._outbox = Outbox()
        self._chunks: list[Chunk] = []  # of the step in progress: what a fault ends
        self.inbox = Inbox(max_waiting, self._scheduler.blocks.num_blocks)
        self.last_step_time = time.monotonic()
        self._num_steps = 0
        self._thread = threading.Thread(target=self._run, name="trivium-engine", daemon=True)
        _loops.add(self)
        start_with_stack(self._thread, _STACK_BYTES)

    def submit(self, requests: Sequence[ActiveRequest]) -> None:
        """Queue prepared requests, all or none. Raises EngineDeadError, RequestError, QueueFullError."""
        self.inbox.submit(requests, self._add)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored, and stay so if a request with this id is submitted later."""
        self.inbox.post(self._abort, self.inbox.find(request_ids))

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes before the next step."""
        self.inbox.post(self._reset_prefix_cache, None)

    def stop(self) -> None:
        """Have the thread abort what is left, free the model and end. Does not wait."""
        self.inbox.close("the engine has been shut down")

    def join(self) -> None:
        """Wait until the thread has ended; not on the thread itself, where a sink may have asked for the shutdown."""
        if not self.is_own_thread:
            self._thread.join(_JOIN_SECONDS)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is called on the thread itself, which must not wait for what only it can do."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            while (messages := self.inbox.take()) is not None:
                self._turn(messages)
                del messages  # an idle engine must not keep requests and their doors alive
        finally:
            self._end_all()

    def _turn(self, messages: list[Message]) -> None:
        try:
            for handle, argument in messages:
                handle(argument)
            self._step()
        except Exception as error:
            log.exception("a step of the engine failed; what it worked on ends with an error")
            self._fail(error)
        self._chunks = []
        self._deliver()
        if self.inbox.idle:
            self._check_idle()

    # One step

    def _step(self) -> None:
        now = time.monotonic()
        scheduler = self._scheduler
        for late in scheduler.expired(now):
            self._end(cast(Sample, late), "timeout")
        if not scheduler.num_running and not scheduler.num_waiting:
            self._record(0, 0, 0)
            return
        plan = scheduler.schedule(now)
        if not plan.chunks:
            raise EngineError(f"none of {scheduler.num_waiting} waiting sequences can be scheduled")
        self._chunks = list(plan.chunks)
        self._record(0, 0, 0)  # before the step, which may take long: the door counts on the room in the queue
        if plan.copies:
            self._native.copy_blocks(plan.copies)
        self._prepare(plan)
        if plan.chunks:
            start = time.monotonic()
            result = self._batch.run(self._native, plan.chunks)
            self.last_step_time = time.monotonic()
            self._num_steps += 1
            self._pace.record(plan, self.last_step_time - start)
            self._accept(plan, result, self.last_step_time)

    def _prepare(self, plan: StepPlan) -> None:
        """Give new samples their sampler, constrained ones their mask. A sample that this fails for leaves the plan."""
        self._batch.clear()
        failed: list[tuple[Chunk, Exception]] = []
        for chunk in plan.chunks:
            sample = cast(Sample, chunk.sequence)
            if sample.plain and sample.sampler is not None:
                continue
            try:
                self._prepare_sample(sample, chunk.sample)
            except Exception as error:
                _log_fault("request %s could not be prepared", sample, error)
                failed.append((chunk, error))
        for chunk, fault in failed:
            plan.chunks.remove(chunk)
            self._end(cast(Sample, chunk.sequence), "error", fault)

    def _prepare_sample(self, sample: Sample, samples_now: bool) -> None:
        if sample.sampler is None:
            request, sampling = sample.request, sample.request.sampling
            sample.sampler = self._samplers.make(sample.active.sampler_arguments, request.prompt_token_ids, sample.seed)
            sample.detokenizer = Detokenizer(
                self._tokenizer,
                skip_special_tokens=sampling.skip_special_tokens,
                stop=sample.active.stop_patterns,
                include_stop=sampling.include_stop,
                min_tokens=sampling.min_tokens,
            )
        sample.mask_row = -1
        if samples_now and sample.forced:
            sample.sampler.force(sample.forced[0])
        if samples_now and sample.constrained and sample.matcher is not None:
            sample.mask_row = self._batch.add_mask(sample.matcher)
            # A complete answer ends even before `min_tokens`, until when the sampler suppresses end tokens.
            short = sample.num_output_tokens < sample.request.sampling.min_tokens
            if short and not sample.forced and (end := sample.matcher.forced_end()) is not None:
                sample.sampler.force(end)

    def _accept(self, plan: StepPlan, result: StepResult, now: float) -> None:
        tokens, logprobs, prompt_logprobs = result.tokens, result.logprobs, result.prompt_logprobs
        deltas: list[tuple[Sample, OutputDelta]] = []
        failed: list[tuple[Chunk, Exception]] = []
        num_prompt_tokens = num_generated_tokens = 0
        for i, chunk in enumerate(plan.chunks):
            sample = cast(Sample, chunk.sequence)
            if chunk.start < sample.num_prompt_tokens:
                num_prompt_tokens += min(chunk.length, sample.num_prompt_tokens - chunk.start)
            try:
                if (rows := prompt_logprobs[i]) is not None:
                    collect_prompt_logprobs(sample, rows)
                if not (sampled := tokens[i]):
                    continue
                fault = sampled[-1] < 0
                if good := sampled[:-1] if fault else sampled:
                    delta = accept_tokens(sample, good, logprobs[i], now)
                    deltas.append((sample, delta))
                    num_generated_tokens += len(delta.token_ids)
                    if chunk.drafts:  # the last token comes from the row after those of the drafts that it confirms
                        chunk.accepted = len(delta.token_ids)
                    fault = fault and delta.finish_reason is None
                if fault:
                    raise _no_token(sample)
            except Exception as error:
                _log_fault("request %s failed", sample, error)
                failed.append((chunk, error))
        for chunk, _ in failed:  # what they computed may be wrong, and must not be offered to the prefix cache
            plan.chunks.remove(chunk)
        self._scheduler.complete(plan)
        for sample, delta in deltas:
            self._tell(sample, delta)
        for chunk, cause in failed:
            self._end(cast(Sample, chunk.sequence), "error", cause)
        self._record(1, num_prompt_tokens, num_generated_tokens)

    def _record(self, steps: int, prompt_tokens: int, generated_tokens: int) -> None:
        self.inbox.record(self._scheduler, steps=steps, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens)

    # The life of requests

    def _add(self, samples: list[Sample]) -> None:
        now = time.monotonic()
        for sample in samples:
            if sample.ended:  # by a fault, before it came here
                continue
            try:
                self._scheduler.add(sample, now)
            except RuntimeError as error:
                log.exception("request %s cannot be scheduled", sample.request.request_id)
                self._end(sample, "error", error)

    def _abort(self, requests: Sequence[ActiveRequest]) -> None:
        for active in requests:
            for sample in tuple(active.samples):
                self._end(sample, "abort")

    def _reset_prefix_cache(self, _: None) -> None:
        self._scheduler.blocks.reset_prefix_cache()

    def _fail(self, error: Exception) -> None:
        """End the step's samples; all of them, if the fault came before any were chosen."""
        samples = [cast(Sample, chunk.sequence) for chunk in self._chunks]
        for sample in samples or [sample for active in self.inbox.unfinished() for sample in active.samples]:
            self._end(sample, "error", error)
        self._record(0, 0, 0)

    def _end_all(self) -> None:
        self.stop()
        for handle, argument in self.inbox.drain():
            handle(argument)
        for active in self.inbox.unfinished():
            for sample in tuple(active.samples):
                self._end(sample, "abort")
        self._record(0, 0, 0)
        self._deliver()
        self._chunks = []  # of a step that the thread has not survived: they hold requests, and these the door and the engine
        del self._native  # frees the weights, though someone may still hold the engine

    def _end(self, sample: Sample, reason: FinishReason, error: Exception | None = None) -> None:
        """End a sample from outside its tokens."""
        if sample.ended:
            return
        if error is not None and not isinstance(error, EngineError):
            failure = EngineError(f"the engine failed on this request: {error!r}")
            failure.__cause__ = error
            error = failure
        self._tell(sample, last_delta(sample, reason, error))

    def _tell(self, sample: Sample, delta: OutputDelta) -> None:
        """Put a delta into the outbox, unless it waits for more; the last one lets the sample go."""
        active = sample.active
        if active.request.delta_tokens > 1:
            delta = gather(sample, delta, self._num_steps)
        if sample.held is None:
            self._outbox.add(active.sink, delta)
        if delta.finish_reason is None:
            return
        sample.ended = True
        try:
            self._scheduler.finish(sample)
        except Exception:
            log.exception("the scheduler failed to let request %s go", delta.request_id)
        sample.sampler = sample.detokenizer = sample.matcher = sample.thought = sample.drafting = None
        active.unfinished -= 1
        if not active.unfinished:
            active.samples.clear()  # breaks the circle, so that the door's objects go with the last reference
        self.inbox.finished(active, delta.finish_reason, last=not active.unfinished)

    def _deliver(self) -> None:
        while self._outbox:
            if failed := self._outbox.deliver():
                self._abort(self.inbox.find(failed))
                self._record(0, 0, 0)

    def _check_idle(self) -> None:
        """With nothing to do, every block must be free. If the books are wrong, new ones are safe now."""
        if self._scheduler.is_clean():
            return
        try:
            self._scheduler.check_integrity()
        except RuntimeError:
            log.exception("the scheduler's books are wrong; starting new ones")
            old, self._scheduler = self._scheduler, self._new_scheduler()
            self._scheduler.num_preemptions = old.num_preemptions
            self._scheduler.prefix_queries, self._scheduler.prefix_hits = old.prefix_queries, old.prefix_hits
            self._scheduler.num_drafted, self._scheduler.num_accepted = old.num_drafted, old.num_accepted
            self._record(0, 0, 0)


def _no_token(sample: Sample) -> EngineError:
    """Why a sample got no token: a request may forbid all that its structure allows."""
    sampling = sample.request.sampling
    forbidding = {
        "bad_words": sampling.bad_words or sampling.bad_words_token_ids,
        "stop_token_ids": sample.num_output_tokens < sampling.min_tokens and sampling.stop_token_ids,
    }
    fields = [name for name, forbids in forbidding.items() if forbids and sampling.guided is not None]
    if fields:
        return RequestError(f"{' and '.join(fields)} left no token that the structure allows", field=fields[0])
    return EngineError("the model's output is not finite, or no token is allowed")


def _log_fault(message: str, sample: Sample, error: Exception) -> None:
    """Log what ends a sample; with a traceback, unless it is an error that was raised on purpose and says what is wrong."""
    if isinstance(error, EngineError):
        log.warning(message + ": %s", sample.request.request_id, error)
    else:
        log.error(message, sample.request.request_id, exc_info=error)


_loops: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


def _stop_loops() -> None:
    """End the threads while the interpreter is whole: a daemon thread that wakes up later takes the process down."""
    for loop in list(_loops):
        loop.stop()
    for loop in list(_loops):
        loop.join()


def _close_in_child() -> None:
    for loop in list(_loops):
        loop.inbox.forked("the engine's threads did not survive fork(); load the model after the fork")


atexit.register(_stop_loops)
os.register_at_fork(after_in_child=_close_in_child)
