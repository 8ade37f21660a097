"""Fields of chat completions in the body of another API: known, so not to be ignored, but not to be had there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.doors.http.openai.fields import Fields, is_one_of
from trivium.doors.http.openai.request import WITHOUT_EFFECT
from trivium.errors import RequestError

__all__ = ["unknown_fields"]

# Each with what of it asks for nothing.
_FIELDS: dict[str, tuple[Any, ...]] = {
    **WITHOUT_EFFECT,
    "messages": (),
    "prompt": (),
    "max_tokens": (),
    "max_completion_tokens": (),
    "n": (1,),
    "best_of": (1,),
    "stop": ([],),
    "seed": (),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "parallel_tool_calls": (True,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (False,),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "priority": (0,),
    "cache_salt": (),
}


def unknown_fields(fields: Fields, api: str, instead: Mapping[str, str]) -> tuple[str, ...]:
    """Names in the body of a request to `api` that nothing has read, and that mean nothing.

    `instead` tells what it has in place of a field. Raises `RequestError` for those of chat completions that ask for
    something: whoever sends them counts on them.
    """
    unread = tuple(fields.unread())
    for name in unread:
        if name in _FIELDS and not is_one_of(fields.any(name), _FIELDS[name]):
            hint = f", which has {instead[name]}" if name in instead else ""
            raise RequestError(f"{name!r} is no field of the {api} API{hint}", field=name, value=fields.any(name))
    return unread
