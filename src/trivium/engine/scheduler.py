"""Which sequences compute which tokens in the next step. Pure Python; knows nothing of the model.

A step holds, under one token budget: a row for every decoding sequence, then chunks of prompts that are being computed, then
prompts that waited. The order everywhere is that of *rank*: ageing · priority + waiting_since, then arrival number; lower comes
first. Waiting for `ageing` seconds thus weighs as much as one step of priority. Since all sequences age alike, each rank is
a constant and the queues stay sorted. Every newcomer ranks behind a sequence that is old enough, so nothing starves.

Preemption takes the blocks and keeps the tokens, which are computed again later. It happens
 - when a running sequence finds no free block: the running sequence of the highest rank goes, at worst the needy one itself.
   The sequence of the lowest rank is never taken, so every step brings it forward.
 - when a waiting sequence of strictly lower `priority` (not rank: age entitles to the next free place, not to another's) finds
   no place or no blocks: running sequences of higher `priority` go, the highest and latest first, unless they were preempted
   `max_preemptions` times already.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

from trivium.engine.block_manager import BlockManager
from trivium.engine.sequence import Sequence, SequenceStatus
from trivium.errors import ConfigError

__all__ = ["Chunk", "Proposer", "Scheduler", "StepPlan"]

# Guesses at most so many next tokens of a sequence, as ids in the vocabulary.
Proposer = Callable[[Sequence, int, int], Series[int]]  # a sequence, the most tokens, how many sequences decode

MAX_DRAFTS = 63  # with the row before them, the rows of one sequence that the core can sample in a step
MIN_SHARE = 16  # rows: prompts are not cut finer to let several progress, unless there are few rows for all
MAX_RANKED_PRIORITY = 2**31  # a rank is a float; beyond this, priorities rank alike

_RUNNING = SequenceStatus.RUNNING


@dataclass(slots=True)
class Chunk:
    """Consecutive tokens of one sequence in one step, positions start .. start + length - 1.

    `sample`: the chunk reaches the sequence's last token, so the next one can be chosen. The last `len(drafts)` rows are
    guesses. `accepted` is set by the engine before `Scheduler.complete`: the rows whose KV is valid; -1 means all.
    """

    sequence: Sequence
    start: int
    length: int
    sample: bool
    drafts: tuple[int, ...] = ()
    accepted: int = -1


@dataclass(slots=True)
class StepPlan:
    """One step: first copy the KV blocks `copies`, in order, then compute `chunks`. `preempted` sequences wait again.

    A preempted sequence may have copies in the plan: nothing reads what they write.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


class Scheduler:
    """Owns the queues and the progress (`status`, `blocks`, `num_computed`, `waiting_since`, …) of the sequences it is given.

    `ageing` is the number of seconds in the queue that weigh as much as one step of priority. At most
    min(max_num_seqs, max_num_batched_tokens) sequences run, so that each decode gets its row. `propose`, if given, is asked for
    draft tokens of decoding, `predictable` sequences; drafts take at most half of what the decodes leave of the budget.
    `prefill_limit`, if given, says how many rows of prompts a step may have beside so many decoding sequences, if any of these
    is streamed; it is also told how far the first of the prompts is.
    Not thread-safe. Raises ConfigError for sizes below 1, `ageing` not above 0 or negative `max_preemptions`.
    """

    def __init__(
        self,
        *,
        blocks: BlockManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        ageing: float = 10.0,
        max_preemptions: int = 3,
        propose: Proposer | None = None,
        prefill_limit: Callable[[int, int], int] | None = None,
    ) -> None:
        _require(max_num_seqs >= 1, "max_num_seqs", ">= 1", max_num_seqs)
        _require(max_num_batched_tokens >= 1, "max_num_batched_tokens", ">= 1", max_num_batched_tokens)
        _require(max_model_len >= 1, "max_model_len", ">= 1", max_model_len)
        _require(0 < ageing < float("inf"), "ageing", "a number of seconds > 0", ageing)
        _require(max_preemptions >= 0, "max_preemptions", ">= 0", max_preemptions)
        self.blocks = blocks
        self.running: list[Sequence] = []  # by rank
        self.num_preemptions = 0
        self.prefix_queries = 0  # prompt tokens looked up in the prefix cache, once per sequence
        self.prefix_hits = 0  # of these, found
        self.num_drafted = 0  # tokens that were guessed
        self.num_accepted = 0  # of these, right
        self._max_running = min(max_num_seqs, max_num_batched_tokens)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._ageing = ageing
        self._max_preemptions = max_preemptions
        self._propose = propose
        self._prefill_limit = prefill_limit
        self._waiting: list[Sequence] = []  # by rank
        self._waiting_priorities: Counter[int] = Counter()
        self._samples: dict[Sequence, list[Sequence]] = {}  # by the sample 0 whose prompt they wait for
        self._deadlines: list[tuple[float, int, Sequence]] = []  # a heap; finished sequences leave late
        self._deadline_number = itertools.count()

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences that do not run: the queue by rank, then samples that wait for their prompt."""
        return [*self._waiting, *itertools.chain.from_iterable(self._samples.values())]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + sum(map(len, self._samples.values()))

    @property
    def num_running(self) -> int:
        return len(self.running)

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence. With a `parent`, added before it, it waits for the parent's prompt.

        RuntimeError if it could never run.
        """
        self._check_fits(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.waiting_since = now
        if sequence.deadline is not None:
            heapq.heappush(self._deadlines, (sequence.deadline, next(self._deadline_number), sequence))
        parent = sequence.parent
        if parent is None or parent.status is SequenceStatus.FINISHED or _prompt_is_computed(parent):
            self._enqueue(sequence)
        else:
            self._samples.setdefault(parent, []).append(sequence)

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step; no chunks if nothing can run. Each plan must be completed before the next is made.

        RuntimeError if a sequence alone exceeds the KV cache.
        """
        plan = StepPlan()
        if self._waiting:
            self._make_way(plan, now)
        budget = self._plan_decodes(plan)
        if self._prefill_limit is not None and any(chunk.sequence.request.streamed for chunk in plan.chunks):
            depth = next((s.num_computed for s in self.running if len(s.tokens) - s.num_computed > 1), 0)
            budget = min(budget, self._prefill_limit(len(plan.chunks), depth))
        if budget > 0:
            self._plan_prefills(plan, budget, now)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Record that a planned step was computed, after the accepted tokens were appended to `Sequence.tokens`.

        Full blocks are offered to the prefix cache; samples whose prompt is now computed queue up to fork it.
        """
        block_size = self.blocks.block_size
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.status is not _RUNNING:  # ended since
                continue
            accepted = chunk.length if chunk.accepted < 0 else chunk.accepted
            if not chunk.length - len(chunk.drafts) <= accepted <= chunk.length:
                raise RuntimeError(
                    f"{sequence.key}: {accepted} rows accepted of {chunk.length} with {len(chunk.drafts)} drafts"
                )
            self.num_drafted += len(chunk.drafts)
            self.num_accepted += accepted - (chunk.length - len(chunk.drafts))
            sequence.num_computed = chunk.start + accepted
            if accepted < chunk.length:
                self.blocks.truncate(sequence, sequence.num_computed)
            if sequence.num_computed >= (sequence.num_hashed_blocks + 1) * block_size:
                self.blocks.register(sequence)
            if self._samples and sequence.num_computed >= sequence.num_prompt_tokens:
                for sample in self._samples.pop(sequence, ()):
                    self._enqueue(sample)

    def finish(self, sequence: Sequence) -> None:
        """Let a sequence leave, whatever its state, and free its blocks. Idempotent."""
        if sequence.status is SequenceStatus.FINISHED:
            return
        siblings = self._samples.get(sequence.parent, []) if sequence.parent is not None else []
        if sequence.status is _RUNNING:
            self.running.remove(sequence)
        elif sequence in siblings:
            siblings.remove(sequence)
        elif sequence in self._waiting:
            self._dequeue(sequence)
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.parent = None
        self._release_samples(sequence)
        unfinished = self.num_running + self.num_waiting
        if not unfinished or len(self._deadlines) > 2 * unfinished + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[2].status is not SequenceStatus.FINISHED]
            heapq.heapify(self._deadlines)

    def expired(self, now: float) -> list[Sequence]:
        """The unfinished sequences whose deadline is `now` or before, earliest first."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if entry[2].status is not SequenceStatus.FINISHED:
                late.append(entry)
        for entry in late:
            heapq.heappush(self._deadlines, entry)
        return [sequence for _, _, sequence in late]

    def is_clean(self) -> bool:
        """Whether nothing is queued or runs and no block is held; takes the same time however many blocks there are."""
        return not (self.running or self._waiting or self._samples) and self.blocks.is_clean()

    def check_integrity(self) -> None:
        """Raise RuntimeError naming what is inconsistent; once nothing is queued or runs, every block must be free."""
        waiting = self.waiting
        for name, queue, status in (("running", self.running, _RUNNING), ("waiting", waiting, SequenceStatus.WAITING)):
            for sequence in queue:
                if sequence.status is not status:
                    raise RuntimeError(f"{sequence.key} is among the {name} but {sequence.status.value}")
        if len({*self.running, *waiting}) != len(self.running) + len(waiting):
            raise RuntimeError("a sequence is queued twice")
        for name, queue in (("running", self.running), ("waiting", self._waiting)):
            if queue != sorted(queue, key=self._rank):
                raise RuntimeError(f"the {name} sequences are out of order")
        if Counter(s.request.priority for s in self._waiting) != self._waiting_priorities:
            raise RuntimeError("the count of waiting priorities is wrong")
        for sequence in waiting:
            if sequence.blocks or sequence.num_computed:
                raise RuntimeError(f"{sequence.key} waits but holds blocks {sequence.blocks}")
        for sequence in self.running:
            if not sequence.num_computed <= len(sequence.blocks) * self.blocks.block_size:
                raise RuntimeError(f"{sequence.key} has {sequence.num_computed} tokens in {len(sequence.blocks)} blocks")
        self.blocks.check_integrity([*self.running, *waiting])

    def _make_way(self, plan: StepPlan, now: float) -> None:
        """Preempt for waiting sequences of strictly lower priority number than running ones, and admit them."""
        while self._waiting_priorities and self.running:
            priority = min(self._waiting_priorities)
            if priority >= max(sequence.request.priority for sequence in self.running):
                return
            urgent = next(sequence for sequence in self._waiting if sequence.request.priority == priority)
            places = self.num_running + 1 - self._max_running
            prefix, missing = self._demand(urgent)
            if places <= 0 and missing <= 0:  # nobody needs to go
                return
            victims = self._victims(priority, places, prefix, missing)
            if not victims:
                return
            for victim in victims:
                self._preempt(victim, plan)
            self._admit(urgent, plan, now)

    def _victims(self, priority: int, places: int, prefix: list[int], missing: int) -> list[Sequence]:
        """Running sequences of priority above `priority` that together give so many places and blocks; empty if they cannot."""
        victims: list[Sequence] = []
        spared = frozenset(prefix)
        # By priority before rank, or a victim might in turn make its way over one that was spared for its age.
        for sequence in sorted(self.running, key=lambda s: (s.request.priority, self._rank(s)), reverse=True):
            if len(victims) >= places and missing <= 0:
                break
            if sequence.request.priority > priority and sequence.preemptions < self._max_preemptions:
                victims.append(sequence)
                missing -= self.blocks.num_exclusive(sequence, spared)
        return victims if len(victims) >= places and missing <= 0 else []

    def _plan_decodes(self, plan: StepPlan) -> int:
        """A row for every decoding sequence, with drafts if there is a proposer. Returns what is left of the budget."""
        decoding = [sequence for sequence in self.running if len(sequence.tokens) - sequence.num_computed == 1]
        budget = self._max_num_batched_tokens
        block_size = self.blocks.block_size
        for sequence in decoding:  # all rows have their blocks before drafts take any
            num_tokens = len(sequence.tokens)
            if sequence.status is _RUNNING and num_tokens > len(sequence.blocks) * block_size:
                self._grow(sequence, num_tokens, plan)
        draft_room = (budget - len(decoding)) // 2 if self._propose is not None else 0
        for sequence in decoding:
            if sequence.status is not _RUNNING:  # preempted
                continue
            num_tokens = len(sequence.tokens)
            drafts = self._drafts(sequence, draft_room, len(decoding)) if draft_room else ()
            if drafts and not self.blocks.allocate(sequence, num_tokens + len(drafts)):
                drafts = ()
            draft_room -= len(drafts)
            budget -= 1 + len(drafts)
            plan.chunks.append(Chunk(sequence, num_tokens - 1, 1 + len(drafts), True, drafts))
        return budget

    def _drafts(self, sequence: Sequence, room: int, num_decoding: int) -> tuple[int, ...]:
        """Guesses that leave room for one more token: the one sampled after the last of them."""
        left = min(sequence.max_tokens - sequence.num_output_tokens - 1, self._max_model_len - len(sequence.tokens))
        limit = min(room, left, MAX_DRAFTS)
        if limit <= 0 or self._propose is None or not sequence.predictable:
            return ()
        return tuple(self._propose(sequence, limit, num_decoding))[:limit]

    def _grow(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> None:
        """Give a running sequence blocks, preempting those of higher rank, at worst itself."""
        while not self.blocks.allocate(sequence, num_tokens):
            if len(self.running) == 1:
                raise RuntimeError(f"{sequence.key}: {num_tokens} tokens exceed the {self.blocks.num_blocks} KV blocks")
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return

    def _plan_prefills(self, plan: StepPlan, budget: int, now: float) -> None:
        """Share the budget among prompts: half of it evenly, so that all (or the first of many) progress, the rest in order."""
        prefilling = [sequence for sequence in self.running if len(sequence.tokens) - sequence.num_computed > 1]
        # What was just preempted must not come back at once, nor anything that would take its blocks.
        admissible = 0 if plan.preempted else min(self._max_running - self.num_running, len(self._waiting))
        if not prefilling and not admissible:
            return
        share = max(budget // (2 * (len(prefilling) + admissible)), min(MIN_SHARE, max(1, budget // 4)))
        chunks: list[Chunk] = []
        for sequence in itertools.chain(prefilling, self._admissions(plan, admissible, now)):
            length = min(len(sequence.tokens) - sequence.num_computed, share, budget)
            chunks.append(Chunk(sequence, sequence.num_computed, length, False))
            budget -= length
            if not budget:
                break
        for chunk in chunks:
            num_left = len(chunk.sequence.tokens) - chunk.start - chunk.length
            more = min(num_left, budget)
            chunk.length += more
            budget -= more
            chunk.sample = more == num_left
        plan.chunks += chunks

    def _admissions(self, plan: StepPlan, admissible: int, now: float) -> Iterator[Sequence]:
        """Admit waiting sequences one by one, in order; the first that finds no blocks holds up those behind it."""
        for _ in range(admissible):
            sequence = self._waiting[0]
            if not self._admit(sequence, plan, now):
                return
            yield sequence

    def _demand(self, sequence: Sequence) -> tuple[list[int], int]:
        """Cached blocks that a waiting sequence can begin with, and the blocks it lacks to be admitted (0 or less: none).

        Beside those for all its tokens, a block must stay free for every running sequence that could preempt it when it grows;
        else admission would often be followed by preemption at once.
        """
        spare = bisect_left(self.running, self._rank(sequence), key=self._rank)
        if self._can_fork(sequence):
            return [], 1 + spare - self.blocks.num_free
        prefix = self.blocks.match_prefix(sequence)
        return prefix, self.blocks.missing(sequence, len(sequence.tokens), prefix) + spare

    def _admit(self, sequence: Sequence, plan: StepPlan, now: float) -> bool:
        """Let a waiting sequence run, with blocks for all its tokens; False if there are too few."""
        prefix, missing = self._demand(sequence)
        if missing > 0:
            if not self.running:
                raise RuntimeError(f"{sequence.key}: {missing} blocks are lacking although nothing runs")
            return False
        parent = sequence.parent
        if parent is not None and self._can_fork(sequence):
            self._fork(parent, sequence, plan)
        else:
            self.blocks.allocate(sequence, len(sequence.tokens), prefix)
            sequence.num_computed = len(prefix) * self.blocks.block_size
            if not sequence.preemptions:
                self._count_prefix(sequence)
        sequence.parent = None
        self._dequeue(sequence)
        sequence.status = _RUNNING
        insort(self.running, sequence, key=self._rank)
        sequence.times.scheduled = sequence.times.scheduled or now
        return True

    def _fork(self, parent: Sequence, sample: Sequence, plan: StepPlan) -> None:
        """Begin a sample with its parent's prompt but the last token, which it computes again for its own first logits."""
        num_shared = sample.num_prompt_tokens - 1
        copies = self.blocks.fork(parent, sample, num_shared)
        if copies is None:
            raise RuntimeError(f"{sample.key}: no free block to fork into")
        plan.copies += copies
        sample.num_computed = num_shared
        sample.num_cached_tokens = parent.num_cached_tokens

    def _can_fork(self, sequence: Sequence) -> bool:
        parent = sequence.parent
        return parent is not None and parent.status is _RUNNING and _prompt_is_computed(parent)

    def _count_prefix(self, sequence: Sequence) -> None:
        if self.blocks.enable_prefix_caching and sequence.request.sampling.prompt_logprobs is None:
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_computed
        sequence.num_cached_tokens = sequence.num_computed

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        self.running.remove(sequence)
        self.blocks.free(sequence)
        sequence.num_computed = 0
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        sequence.times.preemptions += 1
        self.num_preemptions += 1
        plan.preempted.append(sequence)
        self._release_samples(sequence)
        self._enqueue(sequence)

    def _release_samples(self, parent: Sequence) -> None:
        """The parent's prompt will not be computed soon: its samples become ordinary waiting sequences."""
        for sample in self._samples.pop(parent, ()):
            sample.parent = None
            self._enqueue(sample)

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=self._rank)
        self._waiting_priorities[sequence.request.priority] += 1

    def _dequeue(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        priority = sequence.request.priority
        self._waiting_priorities[priority] -= 1
        if not self._waiting_priorities[priority]:
            del self._waiting_priorities[priority]

    def _rank(self, sequence: Sequence) -> tuple[float, int, int]:
        priority = max(-MAX_RANKED_PRIORITY, min(sequence.request.priority, MAX_RANKED_PRIORITY))
        return (self._ageing * priority + sequence.waiting_since, sequence.order, sequence.index)

    def _check_fits(self, sequence: Sequence) -> None:
        limit = min(self._max_model_len, self.blocks.num_blocks * self.blocks.block_size)
        if not 0 < len(sequence.tokens) <= limit:
            raise RuntimeError(f"{sequence.key}: a sequence must have 1 to {limit} tokens to run, got {len(sequence.tokens)}")


def _prompt_is_computed(sequence: Sequence) -> bool:
    return sequence.num_computed >= sequence.num_prompt_tokens


def _require(condition: bool, name: str, allowed: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")
