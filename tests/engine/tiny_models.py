"""Engines on the native core with the tiny random models of tests/golden/architectures, and a crowd of requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from engine_parts import EOS, Answer, Door, ask, byte_tokenizer, request

from trivium import _native
from trivium.config import EngineConfig
from trivium.engine import EmbeddingSpan, GenerationRequest, GuidedOptions, ModelInfo, NativeEngine, OutputDelta
from trivium.engine.kv_budget import kv_cache_dtype
from trivium.models.loader import load_decoder
from trivium.parsing.structured import GuidedCompiler

GOLDEN = Path(__file__).parents[1] / "golden" / "architectures"
VOCAB_SIZE = 299
MAX_MODEL_LEN = 208
LENGTH = 24  # generated tokens of most requests


@dataclass(frozen=True)
class Tiny:
    """A golden model and the arithmetic it runs with. `hidden_size` is the golden file's.

    `heat` multiplies temperatures: the model with tied weights repeats itself when drawn from as it is.
    """

    name: str
    hidden_size: int = 64
    quantization: str | None = None
    activation_dtype: str = "auto"
    heat: float = 1.0
    kv_cache_dtype: str = "auto"

    def __str__(self) -> str:
        return "-".join(filter(None, (self.name, self.quantization, self.activation_dtype, self.kv_cache_dtype)))


LLAMA = Tiny("llama", quantization="wint4")
SLIDING = Tiny("mistral", hidden_size=72)
EXPERTS = Tiny("qwen3_moe", quantization="wint8", heat=4.0)
INT8_CACHE = Tiny("mistral", hidden_size=72, quantization="wint4", kv_cache_dtype="int8")
MODELS = [LLAMA, SLIDING, EXPERTS, INT8_CACHE]


@contextmanager
def tiny_engine(model: Tiny, propose=None, num_kv_blocks=200, **options) -> Iterator[NativeEngine]:
    """An engine whose context is `MAX_MODEL_LEN` tokens. `options` are the configuration's."""
    config = EngineConfig(
        quantization=model.quantization,
        activation_dtype=model.activation_dtype,
        kv_cache_dtype=model.kv_cache_dtype,
        **{"block_size": 16, "max_num_seqs": 16, **options},
    )
    decoder = load_decoder(GOLDEN / model.name, config)
    decoder.native.allocate_cache(num_kv_blocks, config.block_size, kv_cache_dtype(config))
    tokenizer = byte_tokenizer()
    engine = NativeEngine(
        config,
        native=decoder.native,
        sampler_type=_native.Sampler,
        spec=decoder.spec,
        model_info=ModelInfo(model.name, model.name, VOCAB_SIZE, MAX_MODEL_LEN, frozenset([EOS])),
        num_blocks=num_kv_blocks,
        tokenizer=tokenizer,
        compile_guided=GuidedCompiler(tokenizer, VOCAB_SIZE, [EOS]).compile,
        propose=propose,
    )
    with engine:
        yield engine
        assert engine.stats().used_blocks == 0


def token_ids(number: int, length: int) -> list[int]:
    """A prompt of its own for each number."""
    return np.random.default_rng(number).integers(0, EOS, length).tolist()


SHARED = token_ids(0, 100)  # how several prompts begin


def crowd(model: Tiny) -> list[GenerationRequest]:
    """Thirteen requests that differ in everything that decides a token."""
    image = np.random.default_rng(1).standard_normal((20, model.hidden_size)).astype(np.float32)
    requests = {
        "greedy": {"prompt": SHARED + token_ids(1, 9), "logprobs": 4},
        "short": {"prompt": [7], "temperature": 1.0, "seed": 1},
        "warm": {"prompt": SHARED[:70] + token_ids(2, 30), "temperature": 1.0, "seed": 2, "logprobs": 2},
        "nucleus": {"prompt": token_ids(3, 33), "temperature": 0.7, "top_p": 0.8, "seed": 3},
        "penalties": {
            "prompt": token_ids(4, 64),
            "temperature": 1.3,
            "seed": 4,
            "logprobs": 5,
            "logprobs_mode": "processed_logprobs",
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
        },
        "window": {
            "prompt": SHARED,
            "frequency_penalty": 0.5,
            "penalty_window": 8,
            "logprobs": 1,
            "logprobs_mode": "raw_logits",
        },
        "likely": {"prompt": token_ids(5, 17), "temperature": 1.5, "top_k": 12, "min_p": 0.05, "seed": 5},
        "samples": {"prompt": SHARED + token_ids(6, 6), "n": 3, "temperature": 1.1, "seed": 6, "logprobs": 0},
        "stops": {
            "prompt": token_ids(7, 40),
            "temperature": 1.0,
            "seed": 7,
            "min_tokens": 6,
            "stop_token_ids": range(0, 256, 4),
        },
        "scored": {"prompt": SHARED + token_ids(8, 50), "prompt_logprobs": 3, "logprobs": 1},
        "words": {"prompt": token_ids(9, 16), "bad_words_token_ids": [(5, 6), (9,)], "logit_bias": {9: 40.0, 33: 2.5}},
        "guided": {
            "prompt": SHARED[:48],
            "temperature": 1.0,
            "seed": 8,
            "guided": GuidedOptions(regex="[a-z]{2,9}( [0-9]{3})*"),
        },
        "image": {
            "prompt": token_ids(10, 55),
            "embeddings": (EmbeddingSpan(10, image, b"image"),),
            "temperature": 1.0,
            "seed": 9,
        },
    }
    for options in requests.values():
        options["temperature"] = model.heat * options.get("temperature", 0.0)
    return [request(name, **{"max_tokens": LENGTH, "seed": 0, **options}) for name, options in requests.items()]


def bits(answer: Answer) -> tuple:
    """Everything of an answer that must not depend on what else runs; `repr` tells floats apart to the last bit."""
    last, first = answer.last, answer.deltas[0]
    scores = repr(answer.logprobs), repr(first.prompt_logprobs)
    return answer.token_ids, answer.text, scores, last.finish_reason, last.stop_reason, last.seed, last.error


def answers(engine: NativeEngine, requests: list[GenerationRequest]) -> dict[tuple[str, int], tuple]:
    """What requests that are submitted together get, by request and sample."""
    return {(a.last.request_id, a.last.index): bits(a) for a in ask(engine, *requests)}


@cache
def alone(model: Tiny) -> dict[tuple[str, int], tuple]:
    """Each request of the crowd after the other, without any sharing."""
    found = {}
    with tiny_engine(model, enable_prefix_caching=False) as engine:
        for one in crowd(model):
            found |= answers(engine, [one])
    return found


def interrupted(engine: NativeEngine, requests: list[GenerationRequest]) -> dict[tuple[str, int], tuple]:
    """What the requests get when the first two, once the first has four tokens, must make way for the others."""
    door = Door()
    patient, urgent = requests[:2], requests[2:]
    for one in patient:
        one.priority = 3

    def interrupt(outputs: Sequence[OutputDelta]) -> None:
        door(outputs)
        if urgent and len(door.deltas[patient[0].request_id, 0]) == 4:
            engine.submit(urgent, door)
            urgent.clear()

    engine.submit(patient, interrupt)
    found = [answer for one in requests for answer in door.wait(one.request_id, n=one.n)]
    assert engine.stats().preemptions > 0
    return {(answer.last.request_id, answer.last.index): bits(answer) for answer in found}
