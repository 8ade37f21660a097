"""From what callers pass to `GenerationRequest`s: rendering, tokenising, defaults, and every check before anything runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from trivium.doors.library.answers import Asked, Reader
from trivium.doors.library.arguments import LibraryOptions, read_template
from trivium.doors.library.inputs import RawPrompt, read_conversations, read_prompts, read_sampling, read_tools
from trivium.doors.library.sampling_params import ParameterTypeError, SamplingParams
from trivium.engine.engine import Engine
from trivium.engine.request import GenerationRequest
from trivium.errors import ModelLoadError, RequestError
from trivium.models.chat_template import ChatTemplate, required_template
from trivium.parsing import get_reasoning_parser, get_tool_parser

__all__ = ["Preparation"]

_THOUGHT_TAIL = 256  # tokens at a prompt's end that tell whether a thought is open


class Preparation:
    """Turns prompts and conversations into requests for one engine, and knows how its answers are read.

    Everything wrong with a batch is raised here, before any of it runs, with the index of the prompt. `streamed`: see
    `GenerationRequest`.
    """

    def __init__(self, engine: Engine, options: LibraryOptions, *, streamed: bool) -> None:
        config = engine.config
        tokenizer = engine.tokenizer
        self._engine = engine
        self._options = options
        self._streamed = streamed
        tools = None if config.tool_call_parser is None else get_tool_parser(config.tool_call_parser)(tokenizer)
        reasoning = None
        if config.reasoning_parser is not None:
            reasoning = get_reasoning_parser(config.reasoning_parser)(tokenizer, keep_tool_calls=tools is not None)
        self.reader = Reader(
            token_text=lambda token: tokenizer.token_bytes(token).decode("utf-8", "replace"),
            token_bytes=tokenizer.token_bytes,
            reasoning=reasoning,
            tools=tools,
        )

    def prompts(self, prompts: Any, sampling_params: Any) -> list[Asked]:
        """What `generate` was given."""
        called = time.monotonic()
        raw = read_prompts(prompts, self._options.limit_mm_per_prompt)
        sampling = read_sampling(sampling_params, len(raw))
        return self._build("prompts", called, sampling, [partial(self._read, p) for p in raw])

    def conversations(
        self,
        messages: Any,
        sampling_params: Any,
        chat_template_kwargs: Any = None,
        chat_template: Any = None,
        tools: Any = None,
    ) -> list[Asked]:
        """What `chat` was given."""
        called = time.monotonic()
        conversations = read_conversations(messages, self._options.limit_mm_per_prompt)
        sampling = read_sampling(sampling_params, len(conversations))
        if chat_template_kwargs is not None and not isinstance(chat_template_kwargs, Mapping):
            raise ParameterTypeError(
                f"chat_template_kwargs must be a dict, got {chat_template_kwargs!r}", field="chat_template_kwargs"
            )
        variables = {"enable_thinking": True, **(chat_template_kwargs or {})}
        template = self._template(chat_template)
        plain_tools = read_tools(tools)
        if plain_tools is not None:
            _check_tools_shown(template, plain_tools, variables)
        readers = [partial(self._render, template, c, plain_tools, variables) for c in conversations]
        return self._build("messages", called, sampling, readers)

    def _build(
        self,
        name: str,
        called: float,
        sampling: Sequence[SamplingParams],
        readers: Sequence[Callable[[], tuple[Any, list[int], bool | None]]],
    ) -> list[Asked]:
        asked = []
        for i, (read, params) in enumerate(zip(readers, sampling, strict=True)):
            try:
                prompt, token_ids, thinking = read()
                request = GenerationRequest(
                    request_id=f"lib-{uuid.uuid4().hex}",
                    prompt_token_ids=token_ids,
                    sampling=params.to_options(self._engine.model_info.generation_defaults, self._options.logprobs_mode),
                    n=int(params.n),
                    priority=int(params.priority),
                    timeout=params.timeout,
                    thinking=thinking,
                    streamed=self._streamed,
                    arrival_time=called,
                )
                self._engine.validate(request)
            except RequestError as error:
                if len(readers) > 1:
                    error.args = (f"{name}[{i}]: {error}",)
                raise
            asked.append(Asked(request, prompt, time.monotonic()))
        return asked

    def _read(self, prompt: RawPrompt) -> tuple[Any, list[int], bool | None]:
        tokenizer = self._engine.tokenizer
        ids = tokenizer.encode_prompt(prompt.text or "") if prompt.token_ids is None else prompt.token_ids
        thinking = None
        if self.reader.reasoning is not None:
            thinking = self.reader.reasoning.prompt_opens_thought(
                prompt.text or tokenizer.decode(ids[-_THOUGHT_TAIL:], skip_special_tokens=False)
            )
        return prompt.given, ids, thinking

    def _template(self, given: Any) -> ChatTemplate:
        if given is None:
            return required_template(self._engine.chat_template)
        try:
            return ChatTemplate(read_template(given), self._engine.tokenizer)
        except ModelLoadError as error:
            raise RequestError(str(error), field="chat_template", value=given) from error

    def _render(
        self,
        template: ChatTemplate,
        conversation: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> tuple[str, list[int], bool | None]:
        rendered = template.render(conversation, tools=tools, variables=variables)
        thinking = None if self.reader.reasoning is None else self.reader.reasoning.prompt_opens_thought(rendered.text)
        return rendered.text, rendered.tokens(self._engine.tokenizer), thinking


def _check_tools_shown(template: ChatTemplate, tools: list[dict[str, Any]], variables: Mapping[str, Any]) -> None:
    """Raise `RequestError` if the template would keep the tools from the model."""
    probe = [{"role": "user", "content": "x"}]
    try:
        with_tools, without = (template.render(probe, tools=given, variables=variables).text for given in (tools, None))
    except RequestError:  # it is the conversation's rendering that says what is wrong
        return
    if with_tools == without:
        raise RequestError(
            "tools must be None: the chat template does not tell the model of them; give a chat_template that does, or "
            "describe them in a message",
            field="tools",
            allowed="None",
            value=tools,
        )
