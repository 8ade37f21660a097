"""Random prompts: short words, as many as make the tokens that are asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trivium.models.catalogue import resolve_model
from trivium.models.gguf import GGUFFile
from trivium.models.tokenizer import Tokenizer

__all__ = ["Prompt", "load_tokenizer", "make_prompts"]

# Common enough to be one token each in most vocabularies.
_TEXT = (
    "about after again also always another any away back because been before being best better between big both but came can "
    "city come could day did different does done down each early end even every fact family far few find first for found from "
    "get give go good great group had hand hard has have head help her here high him his home hour house how idea if into it "
    "just keep kind know large last late left less let life light like line little live long look made make man many may me "
    "mean might money more morning most move much must my name need never new next night not now number of off old on once one "
    "only open or order other our out over own page part people place plan play point power problem put question read real "
    "right room run said same say school see seem set she should show side small so some still story such sure take talk tell "
    "than that the their them then there these they thing think this those three time to today too turn two under until up us "
    "use very want war was water way we week well went were what when where which while white who why will with without woman "
    "word work world would year yes yet you young your"
)
_WORDS = tuple(_TEXT.split())
_MIN_WORDS = 32  # fewer make prompts too alike
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, the tokens it has (as far as is known here), and those its answer may have."""

    text: str
    num_tokens: int
    max_tokens: int


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model's file, folder or name, without its weights. Raises `ModelLoadError` and its kinds."""
    path = resolve_model(model)
    if path.is_dir():
        return Tokenizer.from_folder(path)
    return _from_gguf(path)


def _from_gguf(path: Path) -> Tokenizer:
    file = GGUFFile.open(path)
    try:
        status = path.stat()
        return Tokenizer.from_gguf(file.metadata, f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}")
    finally:
        file.close()


def make_prompts(
    count: int, input_len: tuple[int, int], output_len: tuple[int, int], draw: random.Random, tokenizer: Tokenizer | None
) -> list[Prompt]:
    """Prompts of lengths drawn from a range. Without a tokenizer a word counts as a token."""
    words = _WORDS if tokenizer is None else _single_tokens(tokenizer)
    prompts = []
    for _ in range(count):
        length, max_tokens = draw.randint(*input_len), draw.randint(*output_len)
        chosen = draw.choices(words, k=length)
        if tokenizer is not None:
            chosen = _fit(chosen, length, draw, words, tokenizer)
            length = len(tokenizer.encode_prompt(" ".join(chosen)))
        prompts.append(Prompt(" ".join(chosen), length, max_tokens))
    return prompts


def _single_tokens(tokenizer: Tokenizer) -> Sequence[str]:
    """The words that add one token to a text; all of them if there are too few."""
    start = len(tokenizer.encode("so"))
    words = [word for word in _WORDS if len(tokenizer.encode(f"so {word}")) == start + 1]
    return words if len(words) >= _MIN_WORDS else _WORDS


def _fit(chosen: list[str], length: int, draw: random.Random, words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Add or take away words until the prompt has `length` tokens, or nearly: begin tokens and long words count, too."""
    for _ in range(_ATTEMPTS):
        excess = len(tokenizer.encode_prompt(" ".join(chosen))) - length
        if excess == 0:
            break
        chosen = chosen[: max(len(chosen) - excess, 1)] if excess > 0 else chosen + draw.choices(words, k=-excess)
    return chosen
