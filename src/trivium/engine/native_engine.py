"""`NativeEngine`: this project's own engine, on the CPU."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trivium.config import EngineConfig
from trivium.engine.block_manager import BlockManager
from trivium.engine.engine import Engine, EngineStats, ModelInfo
from trivium.engine.loop import EngineLoop
from trivium.engine.outputs import OutputSink, RequestTimes
from trivium.engine.pace import Pace
from trivium.engine.prompt_inputs import position_shift
from trivium.engine.request import GenerationRequest
from trivium.engine.sample import ActiveRequest, Sample
from trivium.engine.sampler_factory import SamplerFactory, sample_seed
from trivium.engine.sampling import GuidedOptions
from trivium.engine.scheduler import Proposer, Scheduler
from trivium.engine.step_batch import StepBatch
from trivium.engine.thought import Thought
from trivium.engine.validation import RequestValidator
from trivium.errors import ConfigError, EngineError
from trivium.models.spec import DecoderSpec

if TYPE_CHECKING:
    from trivium._native import Model, Sampler
    from trivium.models.chat_template import ChatTemplate
    from trivium.models.tokenizer import Tokenizer
    from trivium.parsing.structured import GuidedMatcher

__all__ = ["NativeEngine"]

CompileGuided = Callable[[GuidedOptions], "GuidedMatcher"]


class NativeEngine(Engine):
    """Runs one model on this machine's cores. `NativeEngine.load(config)` makes one; the constructor takes the parts.

    An engine that is dropped without `shutdown` ends its thread and frees its model once its last request is finished.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        native: Model,
        sampler_type: type[Sampler],
        spec: DecoderSpec,
        model_info: ModelInfo,
        num_blocks: int,
        tokenizer: Tokenizer,
        compile_guided: CompileGuided,
        chat_template: ChatTemplate | None = None,
        propose: Proposer | None = None,
    ) -> None:
        """`native` is finished and has a cache of `num_blocks` blocks of `config.block_size` tokens.

        `propose` guesses tokens on the engine's thread: right guesses make answers come faster, none changes them.
        Raises `ConfigError` if `model_info.max_model_len` tokens do not fit the cache.
        """
        max_model_len = model_info.max_model_len
        if not 1 <= max_model_len <= num_blocks * config.block_size:
            raise ConfigError(f"max_model_len must be 1..{num_blocks * config.block_size}, got {max_model_len}")
        self.config = config
        self.model_info = model_info
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._validator = RequestValidator(config, spec, max_model_len)
        self._samplers = SamplerFactory(sampler_type, tokenizer, spec.vocab_size, model_info.eos_token_ids)
        self._compile_guided = compile_guided
        self._random = random.Random(config.seed)

        pace = Pace()

        def new_scheduler() -> Scheduler:
            return Scheduler(
                blocks=BlockManager(num_blocks, config.block_size, config.enable_prefix_caching),
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=max_model_len,
                propose=propose,
                prefill_limit=pace.prefill_limit,
            )

        batch = StepBatch(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            blocks_per_sequence=-(-max_model_len // config.block_size),
            vocab_size=spec.vocab_size,
        )
        self._loop = EngineLoop(native, new_scheduler, batch, self._samplers, tokenizer, config.max_waiting, pace)
        weakref.finalize(self, self._loop.stop).atexit = False

    @classmethod
    def load(cls, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> NativeEngine:
        """Find, load and pack the model, divide memory, start the engine's thread. `progress(done, total)` gets bytes.

        Raises `ModelLoadError` and its kinds, and `ConfigError`.
        """
        from trivium.engine.assembly import assemble

        return cls(config, **assemble(config, progress))

    @property
    def last_step_time(self) -> float:
        """When the last step ended, on the time.monotonic clock: an engine that has work but no recent step hangs."""
        return self._loop.last_step_time

    @property
    def is_alive(self) -> bool:
        return self._loop.inbox.is_open

    @property
    def is_own_thread(self) -> bool:
        return self._loop.is_own_thread

    def validate(self, request: GenerationRequest) -> None:
        self._validator.check(request)
        self._samplers.resolve(request.sampling)
        if request.sampling.guided is not None:
            self._compile_guided(request.sampling.guided)

    def submit(self, requests: Sequence[GenerationRequest], sink: OutputSink) -> None:
        try:
            self._loop.submit([self._prepare(request, sink) for request in requests])
        except EngineError:
            self._loop.inbox.refused(len(requests))
            raise
        finally:
            self._samplers.forget()

    def abort(self, request_ids: Sequence[str]) -> None:
        self._loop.abort(request_ids)

    def stats(self) -> EngineStats:
        return self._loop.inbox.stats()

    def reset_prefix_cache(self) -> None:
        self._loop.reset_prefix_cache()

    def shutdown(self) -> None:
        self._loop.stop()
        self._loop.join()

    def _prepare(self, request: GenerationRequest, sink: OutputSink) -> ActiveRequest:
        """Everything about a request that can be worked out, and go wrong, on the caller's thread."""
        self._validator.check(request)
        sampling = request.sampling
        resolved = self._samplers.resolve(sampling)
        active = ActiveRequest(
            request,
            sink,
            sampler_arguments=resolved.arguments,
            stop_rule=resolved.stop_rule,
            stop_patterns=resolved.stop_patterns,
            unfinished=request.n,
        )
        matcher = None if sampling.guided is None else self._compile_guided(sampling.guided)
        seed = self._random.getrandbits(64) if sampling.seed is None else sampling.seed
        for index in range(request.n):
            sample = self._make_sample(active, index, seed)
            if matcher is not None:
                sample.matcher = matcher if index == 0 else matcher.copy()
            active.samples.append(sample)
        return active

    def _make_sample(self, active: ActiveRequest, index: int, seed: int) -> Sample:
        request, sampling = active.request, active.request.sampling
        sample = Sample(
            request,
            index,
            tokens=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            max_tokens=self._validator.max_tokens(request),
            deadline=None if request.timeout is None else request.arrival_time + request.timeout,
            seed=sample_seed(seed, index),
            order=0,
            parent=active.samples[0] if index else None,
            times=RequestTimes(arrival=request.arrival_time),
            active=active,
            position_shift=position_shift(request),
        )
        sample.thought = self._thought(request)
        if sample.thought is not None:
            sample.forced = sample.thought.first_forced()
        if sampling.prompt_logprobs is not None and index == 0:
            sample.prompt_rows = [None]
        sample.predictable = sampling.guided is None and sample.thought is None
        sample.plain = not (
            request.embeddings
            or request.position_ids is not None
            or sample.thought is not None
            or sample.prompt_rows is not None
            or sampling.guided is not None
            or sampling.logprobs is not None
        )
        return sample

    def _thought(self, request: GenerationRequest) -> Thought | None:
        """What follows the thought: needed to limit it, and for a grammar that begins after it."""
        limit, is_open = request.sampling.reasoning_max_tokens, request.thinking is True
        if limit is None and not (is_open and request.sampling.guided is not None):
            return None
        return Thought(self.tokenizer, is_open=is_open, limit=limit)
