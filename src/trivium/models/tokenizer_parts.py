"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import tokenizers

from trivium.errors import ModelLoadError

__all__ = ["TokenizerParts", "guarded", "is_backend_fault"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A `tokenizers` pipeline and what the model's files say beside it.

    `special_tokens` maps roles ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", …) to the tokens' text.
    `prefix` and `suffix` are the ids that the model wants around a prompt. `end_ids` end an answer. `vocab_size` is the highest
    id plus one.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    end_ids: frozenset[int] = frozenset()


def is_backend_fault(error: BaseException) -> bool:
    """Whether `tokenizers` failed. It is written in Rust; its panics are BaseExceptions of a class it does not export."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def guarded(build: Callable[[], T], what: str) -> T:
    """The result of `build`; what `tokenizers` raises on damaged data becomes a `ModelLoadError` that starts with `what`."""
    try:
        return build()
    except BaseException as error:
        if isinstance(error, ModelLoadError) or not is_backend_fault(error):
            raise
        raise ModelLoadError(f"{what}: {error}") from error
