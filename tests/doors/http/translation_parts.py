"""What the tests of the responses and the messages API share."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "library"))

from fake_engine import FakeEngine, RoleTemplate
from http_parts import RunningServer, serving

from trivium.doors.http.openai.pieces import Piece
from trivium.parsing.tool_calls import ToolCallDelta

__all__ = ["CALL", "FakeEngine", "RoleTemplate", "RunningServer", "frames", "pieces_of", "serving", "wait_idle"]

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def frames(data: bytes):
    """The events of a stream, each as its name and its object; every byte of it must belong to one."""
    assert data.endswith(b"\n\n")
    told = []
    for frame in data.decode().split("\n\n")[:-1]:
        event, content = frame.split("\n")
        assert event.startswith("event: ")
        assert content.startswith("data: ")
        told.append((event.removeprefix("event: "), json.loads(content.removeprefix("data: "))))
        assert told[-1][0] == told[-1][1]["type"]
    return told


def pieces_of(*parts, finish="stop", stop_reason=None, cached=0):
    """Pieces of two tokens each: a text is content, a text in a tuple is thought, (index, id, name, arguments) is of a call."""
    pieces = []
    for part in parts:
        piece = Piece(0, token_ids=[1, 2], num_cached_tokens=cached)
        if isinstance(part, str):
            piece.content = part
        elif len(part) == 1:
            piece.reasoning, piece.num_reasoning_tokens = part[0], 2
        else:
            piece.tool_calls = [ToolCallDelta(*part)]
        pieces.append(piece)
    last = Piece(0, token_ids=[3], finish_reason=finish, stop_reason=stop_reason, num_cached_tokens=cached)
    return [*pieces, last]


def wait_idle(engine, seconds=10.0):
    """Until nothing runs or waits, and no block is held."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stats = engine.stats()
        if (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0):
            return
        time.sleep(0.01)
    raise AssertionError(stats)
