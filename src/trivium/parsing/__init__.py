"""Reading what models write: reasoning and tool-call parsers; and structured output, in `trivium.parsing.structured`."""

from __future__ import annotations

from trivium.parsing.reasoning import ReasoningParser, ReasoningStream, get_reasoning_parser, reasoning_parsers
from trivium.parsing.registry import MissingTokenError, UnknownParserError
from trivium.parsing.tool_calls import ToolCall, ToolCallDelta, ToolParser, ToolStream, get_tool_parser, tool_parsers

__all__ = [
    "MissingTokenError",
    "ReasoningParser",
    "ReasoningStream",
    "ToolCall",
    "ToolCallDelta",
    "ToolParser",
    "ToolStream",
    "UnknownParserError",
    "get_reasoning_parser",
    "get_tool_parser",
    "reasoning_parsers",
    "tool_parsers",
]
