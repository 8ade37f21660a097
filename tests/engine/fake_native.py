"""A stand-in for the native core: its KV cache holds the tokens it was given, the next token is a hash of what it finds there.

It reads its own paged cache through the block tables of the step, so that a wrong table, position, copy or a block used twice
changes what comes out. `continuation` computes the same without pages.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field

import numpy as np

LETTERS = 26
EMPTY = -1


def hash_of(*values) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=6).digest(), "little")


class FakeSampler:
    """Letters chosen by hash; a token with a bias of 100 or more is taken whenever it is allowed."""

    def __init__(
        self,
        *,
        vocab_size,
        prompt,
        seed,
        temperature=1.0,
        min_tokens=0,
        suppressed=(),
        bad_words=(),
        bias_ids=(),
        bias_values=(),
        logprobs=-2,
        **others,
    ):
        if seed == 666:
            raise ValueError("no such seed")
        assert prompt.dtype == np.int32
        assert all(array.dtype == np.int32 for array in (suppressed, bias_ids))
        self.vocab_size = vocab_size
        self.prompt = prompt.tolist()
        self.key = 0 if temperature < 1e-5 else seed
        self.min_tokens = min_tokens
        self.suppressed = set(suppressed.tolist())
        self.bad_words = [list(word) for word in bad_words]
        self.bias = dict(zip(bias_ids.tolist(), bias_values.tolist(), strict=True))
        self.logprobs = logprobs
        self.others = others
        self.output = []
        self.forced = None

    @property
    def num_output(self):
        return len(self.output)

    def force(self, token):
        self.forced = token

    def allowed(self, token, mask):
        if mask is not None and not (mask[token // 32] >> np.uint32(token % 32)) & 1:
            return False
        if token in self.suppressed and self.num_output < self.min_tokens:
            return False
        return all(
            word[-1] != token or (self.output[len(self.output) - len(word) + 1 :] != word[:-1]) for word in self.bad_words
        )

    def choose(self, cells, mask=None):
        token = self._choose(cells, mask)
        if token >= 0:
            self.output.append(token)
        return token

    def _choose(self, cells, mask):
        if self.forced is not None:
            token, self.forced = self.forced, None
            return token
        base = hash_of(cells, self.key, self.num_output if self.key else 0)
        wanted = [token for token, bias in self.bias.items() if bias >= 100]
        letters = [97 + (base + k) % LETTERS for k in range(LETTERS)]
        for token in [*wanted, *letters, *range(self.vocab_size)]:
            if self.allowed(token, mask):
                return token
        return -1

    def row(self, token):
        count = min(self.logprobs, self.vocab_size)
        return (-token / 256, 1, np.arange(count, dtype=np.int32), -np.arange(count, dtype=np.float32))


@dataclass
class FakeResult:
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)


class FakeModel:
    """`poison`: a sequence whose newest token is this one gets logits that are not finite. `gate`: steps wait for it."""

    def __init__(self, num_blocks=64, block_size=16, vocab_size=300, hidden_size=4):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.cells = np.full(num_blocks * block_size, EMPTY, np.int64)
        self.poison = None
        self.fault = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()  # a step has begun
        self.calls = []  # keyword arguments of every step, with the rows of each sequence
        self.copies = 0

    def copy_blocks(self, pairs):
        for source, destination in pairs:
            size = self.block_size
            self.cells[destination * size : (destination + 1) * size] = self.cells[source * size : (source + 1) * size]
            self.copies += 1

    def step(self, token_ids, positions, query_starts, context_lens, block_tables, samplers, **options):
        self.entered.set()
        assert self.gate.wait(20)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        for array in (token_ids, positions, query_starts, context_lens, block_tables):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        count = len(context_lens)
        assert len(query_starts) == count + 1
        assert len(block_tables) == count == len(samplers)
        assert len(token_ids) == query_starts[-1] == positions.shape[-1]
        result = FakeResult()
        targets = {sequence: wanted for sequence, _, wanted in options.get("prompt_logprobs", ())}
        self.calls.append({**options, "lengths": np.diff(query_starts).tolist(), "positions": positions.copy()})
        self._embed(token_ids.astype(np.int64), options)
        for s in range(count):
            cells = self._write(s, query_starts, context_lens, block_tables)
            self._sample(result, cells, samplers[s], self._mask(s, options))
            wanted = targets.get(s)
            scores = (
                None
                if wanted is None
                else [(-float(t), 1, np.array([t], np.int32), np.array([-float(t)], np.float32)) for t in wanted if t >= 0]
            )
            result.prompt_logprobs.append(scores)
        return result

    def _embed(self, values, options):
        """Embeddings stand in the cache as the sum of their values, with what layers add."""
        rows = options.get("embedding_rows")
        if rows is not None:
            assert options["embeddings"].shape == (len(rows), self.hidden_size)
            values[rows] = 1_000_000 + options["embeddings"].sum(axis=1).astype(np.int64)
        for layer, rows, added in options.get("layer_additions", ()):
            values[rows] += (layer + 1) * 1000 * added.sum(axis=1).astype(np.int64)
        self.values = values

    def _write(self, s, query_starts, context_lens, block_tables):
        first, last, length = query_starts[s], query_starts[s + 1], context_lens[s]
        places = np.arange(length)
        slots = block_tables[s][places // self.block_size] * self.block_size + places % self.block_size
        new = slots[length - (last - first) :]
        self.cells[new] = self.values[first:last]
        return self.cells[slots].tolist()

    def _mask(self, s, options):
        rows = options.get("mask_rows")
        return None if rows is None or rows[s] < 0 else options["masks"][rows[s]]

    def _sample(self, result, cells, sampler, mask):
        if sampler is None:
            result.tokens.append([])
            result.logprobs.append(None)
            return
        token = -1 if self.poison is not None and cells[-1] == self.poison else sampler.choose(cells, mask)
        result.tokens.append([token])
        result.logprobs.append([sampler.row(token)] if sampler.logprobs > -2 and token >= 0 else None)


def continuation(prompt, count, *, seed=0, temperature=0.0, cells=None):
    """The letters the fake model goes on with. `cells`: what the prompt leaves in the cache, if not its tokens."""
    empty = np.zeros(0, np.int32)
    sampler = FakeSampler(
        vocab_size=300,
        prompt=np.array(prompt, np.int32),
        seed=seed,
        temperature=temperature,
        suppressed=empty,
        bias_ids=empty,
        bias_values=empty,
    )
    cells = list(prompt if cells is None else cells)
    for _ in range(count):
        cells.append(sampler.choose(cells))
    return sampler.output
