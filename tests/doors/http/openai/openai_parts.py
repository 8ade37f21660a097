"""What the tests of the OpenAI API share; and the folders of the parts that they borrow."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "library"))

from fake_engine import FakeEngine, FakeTokenizer, RoleTemplate
from http_parts import RunningServer, serving

__all__ = ["FakeEngine", "FakeTokenizer", "RoleTemplate", "RunningServer", "read_stream", "serving"]


def read_stream(lines: Iterable[str]) -> dict[str, Any]:
    """The answer that the events of a stream tell, in the form of one that is not streamed."""
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for new in chunk["choices"]:
            _join(choices.setdefault(new["index"], {}), new)
    last = chunks[-1]
    return {
        "id": last["id"],
        "object": last["object"].removesuffix(".chunk"),
        "created": last["created"],
        "model": last["model"],
        "choices": [choices[index] for index in sorted(choices)],
        "usage": last["usage"],
    }


def _join(choice: dict[str, Any], new: dict[str, Any]) -> None:
    assert choice.get("finish_reason") is None
    choice |= {name: new[name] for name in ("index", "finish_reason", "stop_reason") if name in new}
    if "text" in new:
        choice["text"] = choice.get("text", "") + new["text"]
    else:
        _join_message(choice, new["delta"])
    known = choice.setdefault("logprobs", None)
    for name, rows in (new["logprobs"] or {}).items():
        known = choice["logprobs"] = known or {}
        known[name] = rows if rows is None else known.get(name, []) + rows


def _join_message(choice: dict[str, Any], delta: dict[str, Any]) -> None:
    message = choice.get("message")
    if message is None:
        assert delta == {"role": "assistant", "content": ""}
        choice["message"] = {"role": "assistant", "content": None}
        return
    for name in ("content", "reasoning_content"):
        if name in delta:
            assert delta[name]
            message[name] = (message.get(name) or "") + delta[name]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            calls.append({"id": call["id"], "type": call["type"], "function": call["function"]})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
