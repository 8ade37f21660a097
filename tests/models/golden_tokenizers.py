"""The tokenizers that tests/golden/make_tokenizers.py has made."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from trivium.models.tokenizer import Tokenizer

FOLDER = Path(__file__).parent.parent / "golden" / "tokenizers"
BYTE_LEVEL = ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"]
SENTENCEPIECE = ["llama", "noprefix"]


@functools.cache
def _read(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text()


def metadata(name: str, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a tokenizer; `changes` replace values of `tokenizer.ggml.…`, None removes them."""
    values: dict[str, Any] = json.loads(_read(name))["metadata"]
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def cases(name: str) -> list[dict[str, Any]]:
    """Texts with the ids of the tokenizer's published form."""
    found: list[dict[str, Any]] = json.loads(_read(name))["cases"]
    return found


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(name))
