"""Prompts that are too long are refused before they are tokenized: millions of characters take seconds and gigabytes."""

from __future__ import annotations

from trivium.engine.engine import Engine
from trivium.errors import PromptTooLongError

__all__ = ["check_size"]

_SHORT = 65_536  # characters that are tokenized at once in any case


def check_size(engine: Engine, text: str, field: str, limit: int | None = None) -> None:
    """Raise `PromptTooLongError` for a text that cannot but have more tokens than the model, or `limit`, allows."""
    if len(text) <= _SHORT:
        return
    most = engine.model_info.max_model_len - 1
    most = most if limit is None else min(most, limit)
    fewest = engine.tokenizer.fewest_tokens(text)
    if fewest > most:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters and so at least {fewest} tokens, but prompts may have at most {most}",
            field=field,
            allowed=f"at most {most} tokens",
        )
