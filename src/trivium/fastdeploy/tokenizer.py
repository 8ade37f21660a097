"""A model's tokenizer and chat template without its weights, under the names that FastDeploy's scripts use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trivium.models.catalogue import resolve_model
from trivium.models.chat_template import ChatTemplate, find_template, required_template
from trivium.models.gguf import GGUFFile
from trivium.models.tokenizer import Tokenizer

__all__ = ["Ernie4_5Tokenizer", "ErnieBotTokenizer"]


class ErnieBotTokenizer:
    """The tokenizer of any model that Trivium can load."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> ErnieBotTokenizer:
        """Find the model as `LLM` does and read its tokenizer. Raises `ModelLoadError` and its kinds."""
        found = resolve_model(os.fspath(path))
        if found.is_dir():
            tokenizer, template = Tokenizer.from_folder(found), find_template(found)
        else:
            file = GGUFFile.open(found)
            status = found.stat()
            cache_key = f"{found.resolve()}:{status.st_size}:{status.st_mtime_ns}"
            tokenizer, template = Tokenizer.from_gguf(file.metadata, cache_key), find_template(file.metadata)
            file.close()
        return cls(tokenizer, None if template is None else ChatTemplate(template, tokenizer))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str | list[int]:
        """The conversation as the model reads it: token ids, or text with `tokenize=False`. Raises `RequestError`."""
        rendered = required_template(self._chat_template).render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=kwargs
        )
        return rendered.tokens(self._tokenizer) if tokenize else rendered.text

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the begin token the model wants."""
        return self._tokenizer.encode_prompt(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(token_ids, skip_special_tokens)

    def tokenize(self, text: str) -> list[str]:
        """The texts of a text's tokens."""
        return [self._tokenizer.token_bytes(token).decode("utf-8", "replace") for token in self._tokenizer.encode(text)]

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._tokenizer.vocab_size


Ernie4_5Tokenizer = ErnieBotTokenizer
