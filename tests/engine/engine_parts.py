"""Small parts to build engines from: a byte tokenizer, a spec, a door that collects, and `make_engine`."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import tokenizers
from fake_native import FakeModel, FakeSampler
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from trivium.config import EngineConfig
from trivium.engine import GenerationRequest, ModelInfo, NativeEngine, SamplingOptions
from trivium.models.spec import DecoderSpec, LayerSpec, RopeSpec
from trivium.models.tokenizer import Tokenizer
from trivium.models.tokenizer_parts import TokenizerParts

VOCAB_SIZE = 300
EOS = 256


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are bytes; 256 ends."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    backend = tokenizers.Tokenizer(models.BPE({chars[byte]: byte for byte in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(TokenizerParts(backend, 257, {"eos_token": "<|end|>"}, end_ids=frozenset([EOS])))


def make_spec(sections=None) -> DecoderSpec:
    rope = RopeSpec(np.ones(6, np.float32), sections=sections)
    return DecoderSpec("fake", VOCAB_SIZE, 4, 1, 1, 12, 8, 1e-5, rope, 4096, (LayerSpec(), LayerSpec()), 1.0)


class Door:
    """A sink that keeps what it is given, by request and sample."""

    def __init__(self):
        self.calls = []
        self.deltas = defaultdict(list)
        self._changed = threading.Condition()

    def __call__(self, outputs):
        with self._changed:
            self.calls.append(list(outputs))
            for delta in outputs:
                self.deltas[delta.request_id, delta.index].append(delta)
            self._changed.notify_all()

    def wait(self, *request_ids, n=1, timeout=60):
        """Until all samples of these requests have ended; then each must have ended once, last."""
        keys = [(request_id, index) for request_id in request_ids for index in range(n)]
        with self._changed:
            done = self._changed.wait_for(lambda: all(self.ended(key) for key in keys), timeout)
        assert done, f"not finished: {[key for key in keys if not self.ended(key)]}"
        for key in keys:
            assert [delta.finished for delta in self.deltas[key]].index(True) == len(self.deltas[key]) - 1
        return [Answer(self.deltas[key]) for key in keys]

    def wait_for_tokens(self, request_id, count, timeout=60):
        """Until the first sample has as many tokens, or ended with fewer."""
        key = request_id, 0
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(len(delta.token_ids) for delta in self.deltas[key]) >= count or self.ended(key), timeout
            )

    def ended(self, key):
        return any(delta.finished for delta in self.deltas.get(key, ()))


class Answer:
    """All of one sample."""

    def __init__(self, deltas):
        self.deltas = deltas
        self.token_ids = [token for delta in deltas for token in delta.token_ids]
        self.text = "".join(delta.text for delta in deltas)
        self.logprobs = [entry for delta in deltas for entry in delta.logprobs]
        self.last = deltas[-1]
        self.reason = self.last.finish_reason


def start_engine(
    native=None,
    *,
    sections=None,
    compile_guided=None,
    max_model_len=256,
    num_blocks=64,
    sampler_type=FakeSampler,
    propose=None,
    **options,
):
    """A running engine on a fake model, which is its attribute `native`. `options` are the configuration's."""
    config = EngineConfig(**{"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 64, **options})
    native = native or FakeModel(num_blocks, config.block_size, VOCAB_SIZE)
    engine = NativeEngine(
        config,
        native=native,
        sampler_type=sampler_type,
        spec=make_spec(sections),
        model_info=ModelInfo("fake", "fake", VOCAB_SIZE, max_model_len, frozenset([EOS])),
        num_blocks=num_blocks,
        tokenizer=byte_tokenizer(),
        compile_guided=compile_guided or (lambda options: None),
        propose=propose,
    )
    engine.native = native
    return engine


@contextmanager
def make_engine(*args, **options):
    """`start_engine`, and its end."""
    engine = start_engine(*args, **options)
    try:
        yield engine
    finally:
        engine.native.gate.set()
        engine.shutdown()


def request(request_id, prompt="hello", *, n=1, **options):
    """A greedy request of 8 tokens unless `options` say otherwise. Options of the request itself are told by name."""
    own = {name: options.pop(name) for name in OWN if name in options}
    sampling = SamplingOptions(**{"temperature": 0.0, "max_tokens": 8, **options})
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    return GenerationRequest(request_id, ids, sampling, n=n, **own)


OWN = ("priority", "timeout", "cache_salt", "thinking", "embeddings", "position_ids", "delta_tokens", "streamed")


def ask(engine, *requests):
    """Submit requests together and wait for their answers, in order."""
    door = Door()
    engine.submit(requests, door)
    return [answer for one in requests for answer in door.wait(one.request_id, n=one.n)]
