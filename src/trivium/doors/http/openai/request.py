"""From the body of an OpenAI request (`/v1/chat/completions`, `/v1/completions`) to what the engine is asked."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.doors.http.limits import MAX_PROMPT_CHARS, MAX_PROMPTS, MAX_SAMPLES
from trivium.doors.http.openai.conversation import Conversations
from trivium.doors.http.openai.fields import Fields, is_integer, is_list, is_one_of, renamed, too_many, wrong
from trivium.doors.http.openai.sampling import read_chat_logprobs, read_max_tokens, read_sampling
from trivium.doors.http.openai.structured import STRUCTURES, Structure, read_structure
from trivium.doors.http.openai.tools import ToolUse, read_tools
from trivium.doors.prompt_size import check_size
from trivium.engine.request import MAX_CACHE_SALT, GenerationRequest
from trivium.engine.sampling import SamplingOptions
from trivium.errors import PromptTooLongError, RequestError
from trivium.parsing import ReasoningParser, ToolParser, get_reasoning_parser, get_tool_parser

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.models.tokenizer import Tokenizer

__all__ = ["CHAT", "COMPLETIONS", "EFFORTS", "WITHOUT_EFFECT", "BodyReader", "OpenAIRequest"]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

log = logging.getLogger("trivium.http")

_COMPLETION_TOKENS = 16  # of a completion without max_tokens, as OpenAI has it
_PROMPTS = "a string, token ids, or a list of these"
_SHOWN_CHARS = 80  # of an unknown field's name
_MAX_NOTES = 1000  # unknown fields that are remembered; after so many, none is logged any more
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

# Texts of no effect on the answer. Whether the server has the `model` is for the caller to say.
_NOTED = ("model", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")

# Fields that belong to one kind of request, and what of them asks for nothing with the other kind.
_OWN: dict[str, dict[str, tuple[Any, ...]]] = {
    CHAT: {
        "messages": (),
        "max_completion_tokens": (),
        "top_logprobs": (),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "chat_template_kwargs": ({},),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "reasoning_effort": (),
    },
    COMPLETIONS: {"prompt": (), "echo": (False,)},
}

# Fields that would change the answer and cannot be honoured: what they may be is what has no effect.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "guided_whitespace_pattern": (),
}


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """One body, read. A completion with several prompts is several requests; `n` samples of each are choices, in order.

    Attributes:
        kind: CHAT or COMPLETIONS.
        reasoning: separates thought and answer of a chat, None without a reasoning parser.
        tool_parser: finds the calls in an answer; only with `tool_use.mode` "auto".
        echoes: with `echo`, the text of each request's prompt, which its choices begin with.
        prompt_only: the engine's token is not wanted: `max_tokens` is 0.
    """

    kind: str
    requests: tuple[GenerationRequest, ...]
    tokenizer: Tokenizer
    tool_use: ToolUse = field(default_factory=ToolUse)
    reasoning: ReasoningParser | None = None
    tool_parser: ToolParser | None = None
    stream: bool = False
    include_usage: bool = False  # a last chunk of a stream tells it
    continuous_usage: bool = False  # so does every other chunk
    echoes: tuple[str, ...] = ()
    prompt_only: bool = False
    prompt_logprobs: bool = False  # are told for themselves, not only with `echo`

    def echo_of(self, number: int) -> str | None:
        """What the choices of request `number` begin with."""
        return self.echoes[number] if self.echoes else None

    @property
    def num_samples(self) -> int:
        return sum(request.n for request in self.requests)

    @property
    def key(self) -> str:
        """What the ids of the requests have in common; the answer's id has it, too."""
        return self.requests[0].request_id.rpartition("-")[0]

    @property
    def id(self) -> str:
        """The id of the answer."""
        return f"{'chatcmpl' if self.kind == CHAT else 'cmpl'}-{self.key}"


@dataclass(frozen=True, slots=True)
class _Prompt:
    token_ids: list[int]
    text: str = ""  # as `echo` gives it back
    thinking: bool | None = None


class BodyReader:
    """Reads bodies for one engine. `read` may be called from any thread.

    `max_input_len` and `max_output_len` cap the tokens of prompts and answers below what the model allows, `timeout` is every
    request's. Raises `ConfigError` for parsers (of the engine's configuration) that the model's vocabulary does not suit.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_input_len: int | None = None,
        max_output_len: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._engine = engine
        self._max_input_len = max_input_len
        self._max_output_len = max_output_len
        self._timeout = timeout
        self._ignored: set[str] = set()
        self._conversations = None if engine.chat_template is None else Conversations(engine.chat_template)
        name = engine.config.reasoning_parser
        parser = None if name is None else get_reasoning_parser(name)
        self._reasoning = None if parser is None else parser(engine.tokenizer)
        self._reasoning_before_calls = None if parser is None else parser(engine.tokenizer, keep_tool_calls=True)
        self._tool_parser = self._find_tool_parser()

    def read(self, kind: str, body: Mapping[str, Any], request_id: str, arrival_time: float | None = None) -> OpenAIRequest:
        """Check a body and make its requests, whose ids are `request_id` with a number.

        Null counts as not given. Unknown fields are ignored, and logged the first time. Raises `RequestError` naming the field.
        """
        fields = Fields(body)
        _check_names(kind, fields)
        for name in _NOTED:
            fields.string(name)
        fields.mapping("metadata")
        asked = self._read(kind, fields, request_id, time.monotonic() if arrival_time is None else arrival_time)
        self._note_unknown(kind, fields)
        return asked

    def _read(self, kind: str, fields: Fields, request_id: str, arrival_time: float) -> OpenAIRequest:
        is_chat = kind == CHAT
        stream = fields.boolean("stream")
        include_usage, continuous_usage = _stream_options(fields, stream)
        use = read_tools(fields) if is_chat else ToolUse()
        structure = _one_structure(use.structure(), read_structure(fields))
        echo = not is_chat and fields.boolean("echo")
        sampling, prompt_only = self._sampling(is_chat, fields, structure, echo, stream)
        n = fields.integer("n", 1, MAX_SAMPLES) or 1
        fields.integer("best_of", 1, n)  # the best of no more than all of them: all
        priority = fields.integer("priority", -(2**31), 2**31 - 1) or 0
        salt = fields.string("cache_salt")
        if salt is not None and not 1 <= len(salt) <= MAX_CACHE_SALT:
            raise fields.wrong("cache_salt", f"a string of 1 to {MAX_CACHE_SALT} characters")
        prompts = [self._conversation(fields, use)] if is_chat else self._prompts(fields, echo)
        requests = tuple(
            GenerationRequest(
                request_id=f"{request_id}-{i}",
                prompt_token_ids=prompt.token_ids,
                sampling=sampling,
                n=n,
                priority=priority,
                timeout=self._timeout,
                cache_salt=salt,
                thinking=prompt.thinking,
                streamed=stream,
                arrival_time=arrival_time,
            )
            for i, prompt in enumerate(prompts)
        )
        for request in requests:
            self._validate(request, "messages" if is_chat else "prompt", structure)
        return OpenAIRequest(
            kind,
            requests,
            self._engine.tokenizer,
            tool_use=use,
            reasoning=self._reasoning_for(use) if is_chat else None,
            tool_parser=self._tool_parser if use.mode == "auto" else None,
            stream=stream,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            echoes=tuple(prompt.text for prompt in prompts) if echo else (),
            prompt_only=prompt_only,
            prompt_logprobs="prompt_logprobs" in fields,
        )

    def _sampling(
        self, is_chat: bool, fields: Fields, structure: Structure | None, echo: bool, stream: bool
    ) -> tuple[SamplingOptions, bool]:
        """Sampling options, and whether no output is wanted at all."""
        max_tokens = read_max_tokens(fields, None if is_chat else _COMPLETION_TOKENS, low=0 if echo else 1)
        prompt_only = max_tokens == 0
        limits = [1 if prompt_only else max_tokens, self._max_output_len]
        logprobs = read_chat_logprobs(fields) if is_chat else fields.integer("logprobs", 0)
        prompt_logprobs = fields.integer("prompt_logprobs", 0)
        if prompt_logprobs is not None and stream:
            raise RequestError("prompt_logprobs cannot be streamed", field="prompt_logprobs", allowed="stream: false")
        if echo and logprobs is not None:
            prompt_logprobs = max(logprobs, prompt_logprobs or 0)
        sampling = read_sampling(
            fields,
            self._engine.model_info.generation_defaults,
            max_tokens=min((limit for limit in limits if limit is not None), default=None),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            guided=None if structure is None else structure.options,
        )
        return sampling, prompt_only

    def _conversation(self, fields: Fields, use: ToolUse) -> _Prompt:
        conversations = self._conversations
        if conversations is None:
            raise RequestError(f"the model has no chat template; use {COMPLETIONS}, or give it one", field="messages")
        if use.mode == "auto" and self._tool_parser is None:
            raise RequestError(
                "tool_choice 'auto' needs to know how the model writes calls: start the server with --tool-call-parser",
                field="tool_choice",
                allowed="'none', 'required' or a named tool",
            )
        variables = fields.mapping("chat_template_kwargs") or {}
        effort = fields.choice("reasoning_effort", *EFFORTS)
        if effort is not None:
            variables = {"reasoning_effort": effort, **variables}
        continue_final = fields.boolean("continue_final_message")
        rendered = conversations.render(
            fields.required("messages", "a list of messages"),
            use.tools,
            variables,
            add_generation_prompt=_add_generation_prompt(fields, continue_final),
            continue_final=continue_final,
        )
        thinking = None if self._reasoning is None else self._reasoning.prompt_opens_thought(rendered.text)
        check_size(self._engine, rendered.text, "messages", self._max_input_len)
        return _Prompt(rendered.tokens(self._engine.tokenizer), thinking=thinking)

    def _prompts(self, fields: Fields, echo: bool) -> list[_Prompt]:
        """A text, token ids, or a list of texts or of lists of token ids."""
        prompt = fields.required("prompt", _PROMPTS)
        single = isinstance(prompt, str) or (is_list(prompt) and bool(prompt) and all(map(is_integer, prompt)))
        if single:
            return [self._encode(prompt, "prompt", echo)]
        if not is_list(prompt) or not prompt:
            raise wrong("prompt", _PROMPTS, prompt)
        if len(prompt) > MAX_PROMPTS:
            raise too_many("prompt", MAX_PROMPTS, len(prompt))
        return [self._encode(one, f"prompt[{index}]", echo) for index, one in enumerate(prompt)]

    def _encode(self, prompt: Any, name: str, echo: bool) -> _Prompt:
        tokenizer = self._engine.tokenizer
        if isinstance(prompt, str):
            if len(prompt) > MAX_PROMPT_CHARS:
                message = f"{name} must have at most {MAX_PROMPT_CHARS} characters, got {len(prompt)}"
                raise RequestError(message, field="prompt", allowed=f"at most {MAX_PROMPT_CHARS} characters")
            check_size(self._engine, prompt, "prompt", self._max_input_len)
            return _Prompt(tokenizer.encode_prompt(prompt), prompt)
        if not (is_list(prompt) and all(map(is_integer, prompt))):
            raise wrong(name, _PROMPTS, prompt)
        return _Prompt(list(prompt), tokenizer.decode(prompt, skip_special_tokens=False) if echo else "")

    def _validate(self, request: GenerationRequest, field: str, structure: Structure | None) -> None:
        """Raise `RequestError` if the request can never be served; `field` is where its prompt comes from."""
        length, limit = len(request.prompt_token_ids), self._max_input_len
        if limit is not None and length > limit:
            raise PromptTooLongError(
                f"the prompt has {length} tokens, but prompts may have at most {limit}",
                field=field,
                allowed=f"at most {limit} tokens",
                value=length,
            )
        try:
            self._engine.validate(request)
        except PromptTooLongError as error:
            error.field = field
            raise
        except RequestError as error:
            names = {"prompt_token_ids": field}
            if field == "messages":
                names["logprobs"] = "top_logprobs"
            if structure is not None:
                names |= dict.fromkeys(STRUCTURES, structure.field)
            raise renamed(error, names[error.field]) if error.field in names else error from None

    def _find_tool_parser(self) -> ToolParser | None:
        """How calls are read that the model is free to make: as the template has it write them."""
        name, conversations = self._engine.config.tool_call_parser, self._conversations
        configured = None if name is None else get_tool_parser(name)(self._engine.tokenizer)
        if conversations is None or (conversations.knows_tools and configured is not None):
            return configured
        return get_tool_parser("hermes")(self._engine.tokenizer) if conversations.writes_call_tags else None

    def _reasoning_for(self, use: ToolUse) -> ReasoningParser | None:
        return self._reasoning if use.mode == "none" else self._reasoning_before_calls

    def _note_unknown(self, kind: str, fields: Fields) -> None:
        for name in fields.unread():
            shown = name[:_SHOWN_CHARS]
            if shown not in self._ignored and len(self._ignored) < _MAX_NOTES:
                self._ignored.add(shown)
                log.warning("unknown field %r of %s: ignored", shown, kind)


def _check_names(kind: str, fields: Fields) -> None:
    """Raise `RequestError` for fields of the other kind of request, and for those that cannot be honoured."""
    for other, own in _OWN.items():
        if other == kind:
            continue
        for name, neutral in own.items():
            if name in fields and not is_one_of(fields.any(name), neutral):
                raise RequestError(f"{name!r} is no field of {kind}", field=name, value=fields.any(name))
    for name, neutral in WITHOUT_EFFECT.items():
        if name in fields and not is_one_of(fields.any(name), neutral):
            raise fields.wrong(name, " or ".join(map(json.dumps, neutral)) or "unset")


def _stream_options(fields: Fields, stream: bool) -> tuple[bool, bool]:
    options = fields.object("stream_options")
    if options is None:
        return False, False
    if not stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options", allowed="stream: true")
    if options.boolean("include_obfuscation"):
        raise options.wrong("include_obfuscation", "false")
    return options.boolean("include_usage"), options.boolean("continuous_usage_stats")


def _one_structure(forced: Structure | None, asked: Structure | None) -> Structure | None:
    """What the answer must fit: calls that must be made leave no room for anything else."""
    if forced is not None and asked is not None:
        raise RequestError(
            f"tool_choice and {asked.field} cannot both decide what the answer is",
            field=asked.field,
            allowed="unset with a tool_choice of 'required' or a named tool",
        )
    return asked if forced is None else forced


def _add_generation_prompt(fields: Fields, continue_final: bool) -> bool:
    wanted = fields.boolean("add_generation_prompt", not continue_final)
    if wanted and continue_final:
        raise fields.wrong("add_generation_prompt", "false with continue_final_message")
    return wanted
