"""Whatever JSON object comes: it becomes the body of a chat completion, or a `RequestError` that names its field."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from translation_parts import FakeEngine, RoleTemplate

from trivium.doors.http.anthropic import request as messages
from trivium.doors.http.openai.request import CHAT, BodyReader
from trivium.doors.http.responses import request as responses
from trivium.errors import RequestError

WORDS = [
    "type",
    "role",
    "content",
    "text",
    "input_text",
    "output_text",
    "name",
    "id",
    "call_id",
    "arguments",
    "output",
    "input",
    "tool_use_id",
    "tool_use",
    "tool_result",
    "thinking",
    "budget_tokens",
    "function",
    "function_call",
    "function_call_output",
    "reasoning",
    "message",
    "user",
    "assistant",
    "system",
    "format",
    "json_schema",
    "schema",
    "effort",
    "tools",
    "mode",
    "allowed_tools",
    "any",
    "auto",
    "tool",
    "none",
    "required",
    "custom",
    "input_schema",
    "parameters",
    "enabled",
    "message.output_text.logprobs",
]
FIELDS = {
    responses: [
        "input",
        "instructions",
        "max_output_tokens",
        "temperature",
        "top_p",
        "stream",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "reasoning",
        "metadata",
        "store",
        "truncation",
        "background",
        "include",
        "top_logprobs",
        "user",
        "service_tier",
        "stop",
        "seed",
        "chat_template_kwargs",
        "stream_options",
        "max_tool_calls",
        "priority",
    ],
    messages: [
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "stream",
        "tools",
        "tool_choice",
        "thinking",
        "metadata",
        "service_tier",
        "output_config",
        "cache_control",
    ],
}
GOOD = {
    responses: {"input": "hi"},
    messages: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}

names = st.sampled_from(WORDS) | st.text(max_size=3)
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def reader():
    with FakeEngine(chat_template=RoleTemplate(), reasoning_parser="qwen3") as engine:
        yield BodyReader(engine)


@pytest.mark.parametrize("api", [responses, messages], ids=["responses", "messages"])
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_object_is_read_or_refused(api, reader, data):
    changed = data.draw(st.dictionaries(st.sampled_from(FIELDS[api]) | st.text(max_size=3), values, max_size=3))
    with contextlib.suppress(RequestError):
        body = api.read_body({**GOOD[api], **changed})
        try:
            reader.read(CHAT, body.chat, "r")
        except RequestError as error:
            own = body.renamed(error).field
            assert own is not None
            assert own.split(".")[0].split("[")[0] in FIELDS[api]
