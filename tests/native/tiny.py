"""A tiny random decoder straight on the native core, for tests of steps, caches and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from quantized import random_tensor

from trivium._native import Matrix, Model, Sampler
from trivium.models.checkpoint import TensorType

VOCAB = 200


def spec(**changes: Any) -> dict[str, Any]:
    """The specification of a two-layer decoder with three query heads per KV head."""
    base: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 96,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 20,
        "intermediate_size": 64,
        "norm_eps": 1e-5,
        "attention_scale": 20**-0.5,
        "inv_freq": (10000.0 ** (-np.arange(0, 20, 2) / 20)).astype(np.float32),
        "rope_interleaved": False,
        "attention_factor": 1.0,
        "sections": [],
        "windows": [0, 0],
        "moe_layers": [False, False],
        "num_experts": 0,
        "experts_per_token": 0,
        "expert_size": 0,
        "scoring": "softmax",
        "normalize": True,
        "norm_min": 0.0,
        "expert_scale": 1.0,
        "shared_size": 0,
        "qk_norm": False,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logit_scale": 1.0,
        "tied_output": True,
        "activation": "auto",
    }
    return base | changes


def matrix(type: TensorType, rows: int, cols: int, seed: int) -> Matrix:
    """Random weights of about 1/sqrt(cols); quantised types need columns in whole blocks."""
    kind = type if cols % type.block_size == 0 else TensorType.F32
    data = random_tensor(kind, rows, cols, seed)
    if kind == TensorType.F32:
        data = (data.view(np.float32) * np.float32(cols**-0.5)).view(np.uint8)
    return Matrix(rows, cols, [(int(kind), data)], "auto")


def tiny_model(
    type: TensorType = TensorType.Q4_1, kv: str = "int16", blocks: int = 64, block_size: int = 16, **changes: Any
) -> Model:
    """A model with its cache; the same arguments give the same weights."""
    s = spec(**changes)
    model = Model(s)
    hidden, q, kv_size = s["hidden_size"], s["num_heads"] * s["head_dim"], s["num_kv_heads"] * s["head_dim"]
    model.set_matrix("output", matrix(TensorType.Q8_0, s["vocab_size"], hidden, 1))
    model.set_vector("final_norm", np.full(hidden, 3.0, np.float32))
    for i in range(s["num_layers"]):
        name = f"layers.{i}."
        for norm in ("attention_norm", "ffn_norm"):
            model.set_vector(name + norm, np.ones(hidden, np.float32))
        model.set_matrix(name + "qkv", matrix(type, q + 2 * kv_size, hidden, 10 * i + 2))
        model.set_matrix(name + "attention_output", matrix(type, hidden, q, 10 * i + 3))
        ffns = [(name, s["intermediate_size"])]
        if s["moe_layers"][i]:
            model.set_matrix(name + "router", matrix(TensorType.F32, s["num_experts"], hidden, 10 * i + 4))
            ffns = [(f"{name}experts.{e}.", s["expert_size"]) for e in range(s["num_experts"])]
            ffns += [(name + "shared.", s["shared_size"])] if s["shared_size"] else []
        for k, (prefix, inner) in enumerate(ffns):
            model.set_matrix(prefix + "gate_up", matrix(type, 2 * inner, hidden, 1000 + 100 * i + 2 * k))
            model.set_matrix(prefix + "down", matrix(type, hidden, inner, 1001 + 100 * i + 2 * k))
    model.finish()
    model.allocate_cache(blocks, block_size, kv)
    return model


def greedy(seed: int = 0, **options: Any) -> Sampler:
    """A sampler that reports the logits of the whole vocabulary, so that tests compare bits and not only tokens."""
    options = {"temperature": 0.0, "logprobs": -1, "logprobs_mode": "raw_logits"} | options
    return Sampler(vocab_size=VOCAB, prompt=np.array([1], np.int32), seed=seed, **options)


class Row:
    """One sequence's share of a step: tokens [start, end) of `tokens`, with its own blocks."""

    def __init__(
        self, tokens: list[int], start: int, end: int, blocks: list[int], sampler: Sampler | None = None, drafts: int = 0
    ):
        self.tokens, self.start, self.end, self.blocks, self.sampler, self.drafts = tokens, start, end, blocks, sampler, drafts


def run(model: Model, rows: list[Row], **extra: Any) -> Any:
    """One step of the given rows."""
    ids = np.concatenate([np.array(r.tokens[r.start : r.end], np.int32) for r in rows])
    positions = np.concatenate([np.arange(r.start, r.end, dtype=np.int32) for r in rows])
    starts = np.cumsum([0] + [r.end - r.start for r in rows]).astype(np.int32)
    tables = np.full((len(rows), max(len(r.blocks) for r in rows)), -1, np.int32)
    for i, r in enumerate(rows):
        tables[i, : len(r.blocks)] = r.blocks
    return model.step(
        token_ids=ids,
        positions=extra.pop("positions", positions),
        query_starts=starts,
        context_lens=np.array([r.end for r in rows], np.int32),
        block_tables=tables,
        samplers=[r.sampler for r in rows],
        num_drafts=np.array([r.drafts for r in rows], np.int32),
        **extra,
    )


def last_logits(result: Any, sequence: int) -> np.ndarray:
    """The reported logits of a sequence's last sampled row, by token id."""
    _, _, ids, values = result.logprobs[sequence][-1]
    out = np.empty(VOCAB, np.float32)
    out[ids] = values
    return out
