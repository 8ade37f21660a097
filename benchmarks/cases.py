"""What `peers.py` can run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["CASES", "Sizes", "kv_tokens", "read_case", "rows"]

CASES = "decode-1,decode-8,decode-32,prefill-512"
_KINDS = ("decode", "prefill", "long", "offline")


@dataclass(frozen=True)
class Sizes:
    """Tokens of each sequence; of an offline case, the least and the most, in and out alike."""

    prompt: int = 128
    output: int = 128
    long_prompt: int = 7000
    long_output: int = 256
    offline: tuple[int, int] = (100, 1024)


def read_case(name: str, sizes: Sizes) -> dict[str, Any]:
    """`decode-BATCH`, `prefill-TOKENS`, `long-BATCH` or `offline-REQUESTS` as the fields of a run request."""
    match = re.fullmatch(rf"({'|'.join(_KINDS)})-([1-9]\d*)", name)
    if match is None:
        raise SystemExit(f"--cases takes decode-BATCH, prefill-TOKENS, long-BATCH and offline-REQUESTS, got {name!r}")
    kind, number = match[1], int(match[2])
    least, most = sizes.offline
    batch, prompt, output = {
        "decode": (number, sizes.prompt, sizes.output),
        "prefill": (1, number, 1),
        "long": (number, sizes.long_prompt, sizes.long_output),
        "offline": (number, most, most),
    }[kind]
    shortest = least if kind == "offline" else 0
    return {"kind": kind, "batch": batch, "prompt_tokens": prompt, "output_tokens": output, "shortest": shortest}


def rows(name: str, case: dict[str, Any]) -> dict[str, str]:
    """The rates that a case gives, and what they are called in tables."""
    if case["kind"] == "long":
        return {phase: f"{name} {phase}" for phase in ("prefill", "decode")}
    return {"": name}


def kv_tokens(cases: list[dict[str, Any]]) -> int:
    """The most tokens that a case keeps at once."""
    return max(int(case["batch"] * (case["prompt_tokens"] + case["output_tokens"])) for case in cases)
