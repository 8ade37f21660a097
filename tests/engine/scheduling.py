"""What the scheduler's tests share: short ways to make sequences and to run steps without a model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Series
from typing import Any

from trivium.engine.block_manager import BlockManager
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.engine.scheduler import Scheduler, StepPlan
from trivium.engine.sequence import Sequence

BLOCK = 4
orders = itertools.count()


def sequence(
    prompt: int | Series[int], *, priority: int = 0, max_tokens: int = 100, streamed: bool = True, **fields: Any
) -> Sequence:
    """A sequence with a prompt of its own of this length, or with these tokens."""
    order = next(orders)
    tokens = [1000 * (order + 1) + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    sampling = SamplingOptions(**fields.pop("sampling", {}))
    request = GenerationRequest(f"r{order}", tokens, sampling, priority=priority, streamed=streamed)
    fields = {"deadline": None, "index": 0, "order": order, **fields}
    return Sequence(
        request=request, tokens=list(tokens), num_prompt_tokens=len(tokens), max_tokens=max_tokens, seed=0, **fields
    )


def samples(parent: Sequence, count: int) -> list[Sequence]:
    return [sequence(parent.tokens, parent=parent, index=i, order=parent.order) for i in range(1, count)]


def scheduler(num_blocks: int = 64, *, seqs: int = 8, budget: int = 64, caching: bool = True, **options: Any) -> Scheduler:
    blocks = BlockManager(num_blocks, BLOCK, caching)
    return Scheduler(blocks=blocks, max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=1000, **options)


def add(target: Scheduler, *sequences: Sequence, now: float = 0.0) -> None:
    for item in sequences:
        target.add(item, now)


def complete(target: Scheduler, plan: StepPlan, token: int = 7) -> None:
    for chunk in plan.chunks:
        if chunk.sample:
            chunk.sequence.tokens.append(token)
    target.complete(plan)
    target.check_integrity()


def step(target: Scheduler, now: float = 0.0) -> StepPlan:
    plan = target.schedule(now)
    complete(target, plan)
    return plan


def rows(plan: StepPlan) -> list[tuple[Sequence, int, int, bool]]:
    return [(chunk.sequence, chunk.start, chunk.length, chunk.sample) for chunk in plan.chunks]


def drain(target: Scheduler) -> None:
    for item in [*target.running, *target.waiting]:
        target.finish(item)
    target.check_integrity()
    assert target.blocks.num_used == 0
