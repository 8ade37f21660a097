"""The scheduler driven by a fake model whose tokens depend on the KV it really reads.

The KV of a position is a hash of everything up to it, kept by block and slot. After the writes of each step, every position
of every scheduled sequence, read through its block table, must hold the hash of that sequence's own tokens. A block wrongly
shared, copied, reused or evicted holds another.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trivium.engine.block_manager import BlockManager
from trivium.engine.request import EmbeddingSpan, GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.engine.scheduler import Chunk, Scheduler, StepPlan
from trivium.engine.sequence import Sequence, SequenceStatus

VOCABULARY = 6
STOP = 0


def contexts(sequence: Sequence, tokens: list[int]) -> list[int]:
    """The right KV of each position."""
    request = sequence.request
    embedded = {span.start + i: (zlib.crc32(span.digest), i) for span in request.embeddings for i in range(len(span.values))}
    state = -1 if request.cache_salt is None else zlib.crc32(request.cache_salt.encode())
    states = []
    for position, token in enumerate(tokens):
        state = hash((state, position, token, *embedded.get(position, ())))
        states.append(state)
    return states


def next_token(context: int, seed: int) -> int:
    return hash((context, seed)) % VOCABULARY


def alone(sequence: Sequence) -> list[int]:
    """The tokens that the sequence has when nothing runs beside it."""
    tokens = list(sequence.tokens)
    for _ in range(sequence.max_tokens):
        tokens.append(next_token(contexts(sequence, tokens)[-1], sequence.seed))
        if tokens[-1] == STOP:
            break
    return tokens


class FakeModel:
    """Holds KV by (block, slot), and computes a plan as a native step would: copies, all writes, then all reads."""

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.kv: dict[tuple[int, int], int] = {}

    def place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        index, slot = divmod(position, self.blocks.block_size)
        return sequence.blocks[index], slot

    def run(self, plan: StepPlan) -> dict[Sequence, list[int]]:
        """The context read at each sampled row, by sequence."""
        for source, destination in plan.copies:
            for slot in range(self.blocks.block_size):
                self.kv[destination, slot] = self.kv.get((source, slot), 0)
        inputs = {chunk.sequence: chunk.sequence.tokens + list(chunk.drafts) for chunk in plan.chunks}
        written: set[tuple[int, int]] = set()
        for chunk in plan.chunks:
            expected = contexts(chunk.sequence, inputs[chunk.sequence])
            for position in range(chunk.start, chunk.start + chunk.length):
                place = self.place(chunk.sequence, position)
                assert place not in written, "two rows write one slot"
                assert not self.blocks._is_read_only(place[0]), "a shared or cached block is written"
                written.add(place)
                self.kv[place] = expected[position]
        read = {}
        for chunk in plan.chunks:
            sequence, stop = chunk.sequence, chunk.start + chunk.length
            found = [self.kv[self.place(sequence, position)] for position in range(stop)]
            assert found == contexts(sequence, inputs[sequence][:stop]), "KV of another sequence"
            read[sequence] = found[stop - 1 - len(chunk.drafts) :] if chunk.sample else []
        return read


@dataclass
class Options:
    num_blocks: int = 24
    block_size: int = 4
    seqs: int = 4
    budget: int = 24
    caching: bool = True
    ageing: float = 5.0
    max_preemptions: int = 2
    drafting: bool = False
    prefill_limit: int | None = None


@dataclass
class Shape:
    """A request, drawn at random; prompts begin with one of few common texts."""

    text: int = 0
    shared: int = 10
    own: int = 3
    n: int = 1
    priority: int = 0
    max_tokens: int = 12
    salt: str | None = None
    image: int | None = None
    prompt_logprobs: bool = False
    streamed: bool = True
    timeout: float | None = None


@dataclass
class World:
    """The engine's part: submits, steps, ends sequences, and checks everything after each step."""

    options: Options
    seed: int = 0
    now: float = 0.0
    live: list[Sequence] = field(default_factory=list)
    wanted: dict[Sequence, list[int]] = field(default_factory=dict)
    outcomes: dict[Sequence, str] = field(default_factory=dict)
    num_decoding: int = 0  # if the step was asked to spare them
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        o = self.options
        self.random = random.Random(self.seed)
        self.blocks = BlockManager(o.num_blocks, o.block_size, o.caching)
        self.model = FakeModel(self.blocks)
        self.capacity = o.num_blocks * o.block_size
        self.orders = itertools.count()
        self.scheduler = Scheduler(
            blocks=self.blocks,
            max_num_seqs=o.seqs,
            max_num_batched_tokens=o.budget,
            max_model_len=self.capacity,
            ageing=o.ageing,
            max_preemptions=o.max_preemptions,
            propose=self.propose if o.drafting else None,
            prefill_limit=None if o.prefill_limit is None else self.prefill_limit,
        )

    def submit(self, shape: Shape) -> None:
        common = random.Random(shape.text).choices(range(1, VOCABULARY), k=shape.shared)
        prompt = [*common, *self.random.choices(range(VOCABULARY), k=shape.own)][: self.capacity - 1] or [1]
        spans = () if shape.image is None else (EmbeddingSpan(shape.image, np.zeros((5, 1), np.float32), b"%d" % shape.text),)
        order = next(self.orders)
        request = GenerationRequest(
            f"r{order}",
            prompt,
            SamplingOptions(prompt_logprobs=0 if shape.prompt_logprobs else None),
            n=shape.n,
            priority=shape.priority,
            cache_salt=shape.salt,
            embeddings=spans,
            streamed=shape.streamed,
        )
        first: Sequence | None = None
        for index in range(shape.n):
            sequence = Sequence(
                request=request,
                index=index,
                tokens=list(prompt),
                num_prompt_tokens=len(prompt),
                max_tokens=min(shape.max_tokens, self.capacity - len(prompt)),
                deadline=None if shape.timeout is None else self.now + shape.timeout,
                seed=1000 * order + index,
                order=order,
                parent=first,
            )
            first = first or sequence
            self.wanted[sequence] = alone(sequence)
            self.live.append(sequence)
            self.scheduler.add(sequence, self.now)

    def propose(self, sequence: Sequence, limit: int, num_decoding: int) -> list[int]:
        right = self.wanted[sequence][len(sequence.tokens) :][: self.random.randint(0, 5)]
        return [token if self.random.random() < 0.8 else self.random.randrange(VOCABULARY) for token in right]

    def prefill_limit(self, num_decoding: int, depth: int) -> int:
        self.num_decoding = num_decoding
        assert depth in {0, *(sequence.num_computed for sequence in self.scheduler.running)}
        return self.options.prefill_limit if num_decoding and self.options.prefill_limit else 1000

    def end(self, sequence: Sequence, outcome: str) -> None:
        assert sequence not in self.outcomes, "ended twice"
        self.outcomes[sequence] = outcome
        self.live.remove(sequence)
        self.scheduler.finish(sequence)
        tokens = self.wanted[sequence]
        assert sequence.tokens == (tokens if outcome == "done" else tokens[: len(sequence.tokens)])

    def step(self) -> None:
        self.now += 0.5
        for sequence in self.scheduler.expired(self.now):
            self.end(sequence, "timeout")
        before = list(self.scheduler.running)
        self.num_decoding = 0
        plan = self.scheduler.schedule(self.now)
        self.check_plan(plan, before)
        read = self.model.run(plan)
        done = [chunk.sequence for chunk in plan.chunks if chunk.sample and self.accept(chunk, read[chunk.sequence])]
        if plan.chunks and self.random.random() < 0.05:  # an abort that arrives while the step runs
            victim = self.random.choice(plan.chunks).sequence
            if victim not in done:
                self.end(victim, "abort")
        self.scheduler.complete(plan)
        for sequence in done:
            self.end(sequence, "done")
        self.check_blocks()
        self.seen["copies"] += len(plan.copies)

    def accept(self, chunk: Chunk, read: list[int]) -> bool:
        """Sample row after row while the guesses hold. True if the sequence is done."""
        sequence = chunk.sequence
        right = chunk.length - len(chunk.drafts)
        for context, guess in itertools.zip_longest(read, chunk.drafts):
            token = next_token(context, sequence.seed)
            sequence.tokens.append(token)
            right += token == guess
            if token != guess or token == STOP or sequence.num_output_tokens == sequence.max_tokens:
                break
        chunk.accepted = right
        self.seen["refused drafts"] += chunk.length - right
        self.seen["accepted drafts"] += right - (chunk.length - len(chunk.drafts))
        return sequence.tokens[-1] == STOP or sequence.num_output_tokens == sequence.max_tokens

    def check_plan(self, plan: StepPlan, before: list[Sequence]) -> None:
        scheduled = {chunk.sequence: chunk for chunk in plan.chunks}
        running = self.scheduler.running
        assert len(scheduled) == len(plan.chunks)
        assert plan.num_tokens <= self.options.budget
        assert len(running) <= self.options.seqs
        assert set(scheduled) <= set(running)
        assert bool(plan.chunks) == bool(self.live), "nothing runs although something could"
        assert set(before) - set(running) <= set(plan.preempted)
        for sequence in plan.preempted:
            assert sequence.status is SequenceStatus.WAITING
            assert sequence in self.scheduler.waiting
        if running:
            assert running[0] in scheduled, "the most urgent does not progress"
        for sequence in running:
            assert len(sequence.tokens) - sequence.num_computed > 1 or sequence in scheduled, "a decode got no row"
        for chunk in plan.chunks:
            assert chunk.start == chunk.sequence.num_computed
            assert chunk.length > len(chunk.drafts)
            end = len(chunk.sequence.tokens) + len(chunk.drafts)
            assert chunk.sample == (chunk.start + chunk.length == end)
            assert not chunk.drafts or chunk.sample
        self.check_prompt_rows(plan)
        self.seen["preempted"] += len(plan.preempted)

    def check_prompt_rows(self, plan: StepPlan) -> None:
        if self.options.prefill_limit is None:
            return
        rows = [chunk.length for chunk in plan.chunks if not chunk.sample or chunk.length > 1 + len(chunk.drafts)]
        if self.num_decoding:
            assert any(chunk.sequence.request.streamed for chunk in plan.chunks[: self.num_decoding])
            assert sum(chunk.length for chunk in plan.chunks[self.num_decoding :]) <= self.options.prefill_limit
            self.seen["at the limit"] += sum(rows) == self.options.prefill_limit
        else:
            self.seen["above the limit"] += sum(rows) > self.options.prefill_limit and len(rows) < len(plan.chunks)

    def check_blocks(self) -> None:
        self.scheduler.check_integrity()
        assert {*self.scheduler.running, *self.scheduler.waiting} == set(self.live)
        holders = Counter(block for sequence in self.live for block in sequence.blocks)
        assert len(holders) == self.blocks.num_used
        for sequence in self.live:
            assert len(sequence.tokens) > sequence.num_computed or not sequence.num_computed
            assert len(sequence.blocks) == len(set(sequence.blocks))
            for position in range(sequence.num_computed):
                assert self.model.place(sequence, position) in self.model.kv
            for index, block in enumerate(sequence.blocks):
                if holders[block] > 1:
                    assert (index + 1) * self.options.block_size <= sequence.num_computed, "a shared block is not full"
        if not self.live:
            assert self.blocks.num_free == self.blocks.num_blocks

    def abort(self, index: int) -> None:
        if self.live:
            self.end(self.live[index % len(self.live)], "abort")
            self.check_blocks()

    def drain(self) -> None:
        """Every sequence ends, within a bound that a livelock or starvation would break."""
        work = sum(sequence.num_prompt_tokens + sequence.max_tokens for sequence in self.live)
        for _ in range(10 * work):
            if not self.live:
                break
            self.step()
        assert not self.live
        assert set(self.outcomes) == set(self.wanted)
        self.check_blocks()
        self.seen["hits"] = self.scheduler.prefix_hits
        assert self.seen["preempted"] == self.scheduler.num_preemptions


def random_shape(chance: random.Random, capacity: int) -> Shape:
    return Shape(
        text=chance.randrange(3),
        shared=chance.choice([0, 3, 4, 8, 13, 16, 30, capacity]),
        own=chance.randrange(9),
        n=chance.choice([1, 1, 1, 2, 4]),
        priority=chance.choice([0, 0, 1, 2, -1]),
        max_tokens=chance.choice([1, 2, 9, 20, 40]),
        salt=chance.choice([None, None, None, "a", ""]),
        image=chance.choice([None, None, None, 2, 4]),
        prompt_logprobs=chance.random() < 0.1,
        streamed=chance.random() < 0.5,
        timeout=chance.choice([None, None, None, 4.0, 30.0]),
    )


CASES = {
    "roomy": (Options(num_blocks=60), {"hits", "copies"}),
    "tight": (Options(num_blocks=14), {"hits", "copies", "preempted"}),
    "drafts": (Options(num_blocks=16, drafting=True), {"hits", "preempted", "refused drafts", "accepted drafts"}),
    "one seat": (Options(seqs=1, budget=5), {"hits", "preempted"}),
    "many seats, small budget": (Options(num_blocks=30, seqs=20, budget=7, drafting=True), {"hits", "copies", "preempted"}),
    "no caching": (Options(num_blocks=14, caching=False, block_size=3), {"copies", "preempted"}),
    "limited prompts": (
        Options(num_blocks=30, prefill_limit=3, drafting=True),
        {"hits", "preempted", "at the limit", "above the limit"},
    ),
    "single-token blocks": (Options(num_blocks=50, block_size=1), {"hits", "preempted"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(8))
def test_random_life(case: str, seed: int) -> None:
    options, expected = CASES[case]
    world = World(options, seed)
    chance = world.random
    for _ in range(500):
        action = chance.random()
        if action < 0.35 and len(world.live) < 25:
            world.submit(random_shape(chance, world.capacity))
        elif action < 0.42:
            world.abort(chance.randrange(1000))
        elif action < 0.44:
            world.blocks.reset_prefix_cache()
        elif action < 0.46:
            world.now += 20.0
        else:
            world.step()
    world.drain()
    assert [name for name in expected if not world.seen[name]] == []
    assert set(world.outcomes.values()) == {"done", "abort", "timeout"}


shapes = st.builds(
    Shape,
    text=st.integers(0, 1),
    shared=st.integers(0, 20),
    own=st.integers(0, 6),
    n=st.integers(1, 3),
    priority=st.integers(-1, 1),
    max_tokens=st.integers(1, 15),
    salt=st.sampled_from([None, "a"]),
    image=st.sampled_from([None, 3]),
    prompt_logprobs=st.booleans(),
    timeout=st.sampled_from([None, 3.0]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Short lives that hypothesis can shrink to the smallest one that breaks a rule."""

    @initialize(
        options=st.builds(
            Options,
            num_blocks=st.integers(3, 12),
            block_size=st.integers(1, 5),
            seqs=st.integers(1, 4),
            budget=st.integers(1, 20),
            caching=st.booleans(),
            ageing=st.sampled_from([0.5, 1000.0]),
            max_preemptions=st.integers(0, 2),
            drafting=st.booleans(),
        )
    )
    def start(self, options: Options) -> None:
        self.world = World(options)

    @rule(shape=shapes)
    def submit(self, shape: Shape) -> None:
        self.world.submit(shape)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule(index=st.integers(0, 20))
    def abort(self, index: int) -> None:
        self.world.abort(index)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.world.blocks.reset_prefix_cache()

    @invariant()
    def books_are_in_order(self) -> None:
        if hasattr(self, "world"):
            self.world.check_blocks()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


SchedulerMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSchedulerMachine = SchedulerMachine.TestCase
