"""From messages to a prompt, also with templates that know nothing of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.doors.http.openai.messages import Message, check_messages, extended, without_tools
from trivium.errors import RequestError
from trivium.models.chat_template import ChatTemplate, RenderedPrompt

__all__ = ["Conversations"]

_PROBE = "probe0of0tools"
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _PROBE, "description": _PROBE, "parameters": {"type": "object", "properties": {}}},
}
_CALL_TAG = "<tool_call>"
_END = "\ue000\ue001\ue000"  # private-use characters: where the last message ends in a prompt that goes on with it

_INSTRUCTIONS = """\
You can call functions. Each line between <tools> and </tools> describes one as a JSON object; its parameters are a JSON schema:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as a JSON object between tags, one pair of tags for each call:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of a parameter": "its value"}}}}
</tool_call>
What the functions return then comes between <tool_response> and </tool_response>."""


class Conversations:
    """Renders conversations with one template.

    Attributes:
        knows_tools: whether the template itself tells the model of tools. If not, they are described in a system message, and
            calls and their results become text.
        writes_call_tags: whether the model is told to write calls between `<tool_call>` tags.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.knows_tools = self._passes_on([{"role": "user", "content": "x"}], [_PROBE_TOOL])
        self.writes_call_tags = not self.knows_tools or _CALL_TAG in template.source
        self._takes_system = self._passes_on([{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}], None)
        self._takes_developer = "developer" in template.source

    def render(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> RenderedPrompt:
        """`continue_final`: the prompt ends inside the last message, which the model goes on with.

        Raises `RequestError` naming what is wrong with the messages.
        """
        messages = check_messages(messages)
        if not self._takes_developer:
            messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
        if not self.knows_tools:
            messages = without_tools(messages)
            messages = self._with_instructions(messages, tools) if tools else messages
        if continue_final:
            messages = _with_end(messages)
        rendered = self._template.render(
            messages,
            tools=list(tools) if tools and self.knows_tools else None,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        return _cut(rendered) if continue_final else rendered

    def _passes_on(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> bool:
        """Whether the probe comes out of the template."""
        try:
            return _PROBE in self._template.render(messages, tools=tools).text
        except RequestError:
            return False

    def _with_instructions(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=described)
        if self._takes_system:
            if messages[0]["role"] == "system":
                return [extended(messages[0], after=f"\n\n{text}"), *messages[1:]]
            return [{"role": "system", "content": text}, *messages]
        at = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
        if at is None:
            raise RequestError("messages must hold one of the user: tools are described in it", field="messages")
        return [*messages[:at], extended(messages[at], before=f"{text}\n\n"), *messages[at + 1 :]]


def _with_end(messages: Sequence[Message]) -> list[Message]:
    last = messages[-1]
    if last["role"] != "assistant" or not last.get("content"):
        raise RequestError(
            "continue_final_message needs a last message of the assistant that has content",
            field="continue_final_message",
            allowed="false, or a last message of the assistant",
        )
    return [*messages[:-1], extended(last, after=_END)]


def _cut(rendered: RenderedPrompt) -> RenderedPrompt:
    end = rendered.text.rfind(_END)
    if end < 0:
        raise RequestError("the model's chat template does not let the last message go on", field="continue_final_message")
    return RenderedPrompt(rendered.text[:end], rendered.plain_starts)
