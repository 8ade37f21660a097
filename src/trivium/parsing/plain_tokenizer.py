"""A tokenizer in which no text becomes a special token: what llguidance needs to spell answers.

Where a grammar leaves no choice, llguidance tokenises the text that must follow with the tokenizer it was given, allows only
the token found, and then refuses it if it is a special one: an answer that holds the text `<|im_end|>` could never be written.
With the special tokens under other names, such text is spelt with ordinary tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["without_special_texts"]

# The names hold a character that is reserved for ever and stands in no text (Unicode, section 23.7, "Noncharacters").
_NAME = "<\U0010ffff{}>"


def without_special_texts(tokenizer_json: str) -> tuple[str, frozenset[int]]:
    """A copy of a `tokenizer.json` whose special tokens have names that no text holds, and the ids of those tokens.

    Raises ValueError if the text is not of this form.
    """
    try:
        tokenizer = json.loads(tokenizer_json)
        special = [token for token in tokenizer["added_tokens"] if _is_special(token)]
        names = {token["content"]: _NAME.format(token["id"]) for token in special}
        for token in special:
            token |= {"content": names[token["content"]], "special": True, "normalized": False}
        _rename(tokenizer["model"], names)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tokenizer.json: {error!r}") from error
    return json.dumps(tokenizer), frozenset(token["id"] for token in special)


def _is_special(token: Mapping[str, Any]) -> bool:
    """What llguidance takes for special: added tokens marked so, and those of the form <…>."""
    content = token["content"]
    return bool(token["special"]) or (content.startswith("<") and content.endswith(">"))


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
    else:  # Unigram: pairs of text and score
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, names)]


def _makes(merge: list[str] | str, names: Mapping[str, str]) -> bool:
    """Whether a merge has to do with a renamed token."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
