"""Structured output: which tokens may come next so that the answer fits a JSON schema, regular expression, choice or grammar.

The work is done by llguidance (https://github.com/guidance-ai/llguidance), which is imported with the first use.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trivium.engine.sampling import GuidedOptions
from trivium.errors import ConfigError, RequestError
from trivium.parsing.grammar import compile_error, grammar_text
from trivium.parsing.plain_tokenizer import without_special_texts
from trivium.thread_stack import start_with_stack

__all__ = ["GuidedCompiler", "GuidedMatcher", "GuidedTokenizer"]

Result = TypeVar("Result")

# llguidance descends a grammar's references recursively, and a chain of them as long as the size limits allow needs far more
# than a thread's usual stack. Only touched pages cost memory.
_STACK_BYTES = 256 * 1024 * 1024

_MAX_COMPILED = 32  # grammars that a compiler keeps; a large one takes some megabytes


class GuidedTokenizer(Protocol):
    """What structured output uses of `trivium.models.tokenizer.Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    def to_json(self) -> str:
        """The tokenizer in the format of `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """llguidance's tokenizer, and masks over its tokens, uint32 [ceil(vocab_size / 32)]."""

    tokenizer: Any
    size: int  # token ids below it exist
    usable: NDArray[np.uint32]  # tokens with text: within model and tokenizer, no special and no end token
    ends: NDArray[np.uint32]
    end_ids: frozenset[int]


class GuidedCompiler:
    """Makes matchers for one model. All methods may be called from any thread.

    `vocab_size` is the number of logits, which may exceed the tokenizer's. Raises ConfigError for end tokens outside of it.
    """

    def __init__(self, tokenizer: GuidedTokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = frozenset(eos_token_ids)
        for token in self._end_ids:
            if not 0 <= token < vocab_size:
                raise ConfigError(f"eos_token_ids must be from 0 to {vocab_size - 1}, got {token}")
        self._vocabulary: _Vocabulary | None = None
        self._compiled: OrderedDict[tuple[str, str], GuidedMatcher] = OrderedDict()  # latest used last
        self._lock = threading.Lock()
        _compilers.add(self)

    def compile(self, options: GuidedOptions) -> GuidedMatcher:
        """A matcher at the beginning of an answer.

        The first call also prepares the vocabulary (0.2 s for 49,152 tokens); then a schema takes about a millisecond, and
        less if it was among the latest ones.
        Raises RequestError with llguidance's message: its field is the kind of `options` if they cannot be compiled,
        "guided_decoding" if llguidance cannot read the tokenizer.
        """
        kind, grammar = grammar_text(options)
        with self._lock:
            if (known := self._compiled.get((kind, grammar))) is not None:
                self._compiled.move_to_end((kind, grammar))
                return known.copy()
        vocabulary = self._prepare()
        matcher = _on_deep_stack(lambda: _build(vocabulary.tokenizer, grammar))
        if matcher.is_error():
            raise compile_error(kind, matcher.get_error())
        compiled = GuidedMatcher(matcher, vocabulary, kind)
        with self._lock:
            self._compiled[kind, grammar] = compiled
            while len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            return compiled.copy()

    def after_fork(self) -> None:
        """Make the compiler usable in a forked child, where a thread that does not exist there may have been at work."""
        self._lock = threading.Lock()
        self._compiled = OrderedDict()

    def _prepare(self) -> _Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def _load(self) -> _Vocabulary:
        from llguidance import LLTokenizer

        size = max(self._vocab_size, self._tokenizer.vocab_size)
        # Without end tokens llguidance guesses one; it is masked out below, because only ours end an answer.
        try:
            text, special = without_special_texts(self._tokenizer.to_json())
            tokenizer = LLTokenizer(text, n_vocab=size, eos_token=sorted(self._end_ids) or None)
        except ValueError as error:
            message = f"guided decoding is not available with this model's tokenizer: {error}"
            raise RequestError(message, field="guided_decoding") from error
        usable = np.zeros(-(-self._vocab_size // 32) * 32, np.uint8)
        usable[: min(self._vocab_size, self._tokenizer.vocab_size)] = 1
        ends = np.zeros_like(usable)
        ends[list(self._end_ids)] = 1
        usable[[token for token in {*special, *tokenizer.eos_tokens} if token < len(usable)]] = 0
        return _Vocabulary(tokenizer, size, _pack(usable), _pack(ends), self._end_ids)


class GuidedMatcher:
    """Follows one answer through its grammar. Not for several threads at once."""

    def __init__(self, matcher: Any, vocabulary: _Vocabulary, kind: str) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._kind = kind
        self._num_tokens = 0
        self._ended = False  # by an end token, which llguidance never sees
        self._only_ends = False

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        """Set the bits of the tokens that may come next, clear all others; `row` is uint32 [ceil(vocab_size / 32)].

        End tokens are allowed when the answer may be complete. Raises RequestError if the grammar has become too complex.
        """
        if self._ended:
            row[:] = self._vocabulary.ends
            self._only_ends = True
            return
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        np.bitwise_and(bits[: len(row)], self._vocabulary.usable, out=row)
        self._only_ends = not row.any()
        if self._matcher.is_accepting():
            row |= self._vocabulary.ends

    def forced_end(self) -> int | None:
        """An end token, if the latest mask allows nothing else and there are any."""
        return min(self._vocabulary.end_ids, default=None) if self._only_ends and self._matcher.is_accepting() else None

    def accept(self, token: int) -> bool:
        """Move on by one token; False, and nothing changes, if it is not allowed here.

        Raises RequestError if the grammar has become too complex.
        """
        if self._ended or not 0 <= token < self._vocabulary.size:
            return False
        if token in self._vocabulary.end_ids:
            self._ended = bool(self._matcher.is_accepting())
            accepted = self._ended
        else:
            accepted = self._matcher.try_consume_tokens([token]) == 1
            self._check()
        self._num_tokens += accepted
        return accepted

    def is_finished(self) -> bool:
        """Whether the answer is complete and only an end token could follow, or one did."""
        return self._ended or bool(self._matcher.is_stopped())

    def copy(self) -> GuidedMatcher:
        """A matcher at the same place that moves on by itself."""
        twin = GuidedMatcher(self._matcher.deep_copy(), self._vocabulary, self._kind)
        twin._num_tokens, twin._ended = self._num_tokens, self._ended
        return twin

    def rollback(self, num_tokens: int) -> None:
        """Take back the latest accepted tokens. Raises ValueError if there were not so many."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError(f"num_tokens must be from 0 to {self._num_tokens}, got {num_tokens}")
        self._num_tokens -= num_tokens
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        self._matcher.rollback(num_tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
            raise RequestError(f"guided decoding with this {self._kind} became too complex: {reason}", field=self._kind)


def _build(tokenizer: Any, grammar: str) -> Any:
    """An LLMatcher whose first mask has been computed: that builds most of its lexer, and finds grammars without any answer."""
    from llguidance import LLMatcher, LLParserLimits

    # The limits are llguidance's own, about 15 ms of lexer work and 50,000 parser items a step; verbose errors show internals.
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def _on_deep_stack(function: Callable[[], Result]) -> Result:
    """Call in a thread with a stack of `_STACK_BYTES` and wait for its result."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # raised again where the result is taken
            future.set_exception(error)

    thread = threading.Thread(target=run, name="trivium-grammar")
    start_with_stack(thread, _STACK_BYTES)
    thread.join()
    return future.result()


def _pack(flags: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return np.packbits(flags, bitorder="little").view(np.uint32)


_compilers: weakref.WeakSet[GuidedCompiler] = weakref.WeakSet()


def _after_fork() -> None:
    for compiler in list(_compilers):
        compiler.after_fork()


os.register_at_fork(after_in_child=_after_fork)
