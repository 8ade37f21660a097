"""What callers may pass to `generate` and `chat`, checked and brought into one form. The caller's objects are never changed."""

from __future__ import annotations

import copy
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.doors.library.sampling_params import ParameterTypeError, SamplingParams
from trivium.errors import RequestError

__all__ = ["RawPrompt", "read_conversations", "read_prompts", "read_sampling", "read_tools"]

_MEDIA_PARTS = {
    "image_url": "image",
    "image": "image",
    "video_url": "video",
    "video": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """One prompt as passed (`given`), and what is to be read: token ids if there are any, else the text."""

    given: Any
    text: str | None
    token_ids: list[int] | None


def read_prompts(prompts: Any, limits: Mapping[str, int]) -> list[RawPrompt]:
    """The prompts of `generate`: a str, token ids, a dict, or a list of any of these.

    Raises `RequestError` (a `ValueError`), or `ParameterTypeError` (also a `TypeError`) for an element of another type; both
    name the index of the bad prompt.
    """
    if prompts is None:
        raise RequestError("prompts must be given, got None", field="prompts", value=None)
    if isinstance(prompts, (str, Mapping)) or (_is_list(prompts) and prompts and all(map(_is_id, prompts))):
        return [_read_prompt(prompts, "prompts", limits, single=True)]
    if not _is_list(prompts):
        raise ParameterTypeError(
            f"prompts must be a str, a dict, a list of token ids, or a list of these, got {type(prompts).__name__}",
            field="prompts",
        )
    return [_read_prompt(item, f"prompts[{i}]", limits, single=False) for i, item in enumerate(prompts)]


def read_conversations(messages: Any, limits: Mapping[str, int]) -> list[list[dict[str, Any]]]:
    """The conversations of `chat`: one list of message dicts, or a list of such lists.

    Raises `RequestError` naming the conversation, message and part that is wrong.
    """
    if messages is None:
        raise RequestError("messages must be given, got None", field="messages", value=None)
    if not _is_list(messages):
        raise ParameterTypeError(
            f"messages must be a list of messages, or of conversations, got {messages!r}", field="messages"
        )
    if not messages:
        return []
    if all(isinstance(m, Mapping) for m in messages):
        return [_read_conversation(messages, "messages", limits)]
    return [_read_conversation(item, f"messages[{i}]", limits) for i, item in enumerate(messages)]


def read_sampling(sampling_params: Any, count: int) -> list[SamplingParams]:
    """One `SamplingParams` per prompt, from None, one for all, or a list of one or of as many as there are prompts."""
    if sampling_params is None:
        return [SamplingParams()] * count
    params = list(sampling_params) if _is_list(sampling_params) else [sampling_params]
    for i, item in enumerate(params):
        if not isinstance(item, SamplingParams):
            where = f"sampling_params[{i}]" if _is_list(sampling_params) else "sampling_params"
            raise ParameterTypeError(f"{where} must be a SamplingParams, got {item!r}", field="sampling_params", value=item)
    if len(params) == 1:
        return params * count
    if len(params) != count:
        raise RequestError(
            f"sampling_params must have the same length as the prompts ({count}), or be one for all, got {len(params)}",
            field="sampling_params",
        )
    return params


def read_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as a list of dicts: from None, one tool or a list; objects with `model_dump` are dumped. Empty gives None."""
    if tools is None or (_is_list(tools) and not tools):
        return None
    items = list(tools) if _is_list(tools) else [tools]
    result = []
    for i, tool in enumerate(items):
        plain = tool.model_dump() if hasattr(tool, "model_dump") else tool
        function = plain.get("function") if isinstance(plain, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] must be a dict like {{'type': 'function', 'function': {{'name': …}}}}, got {tool!r}",
                field="tools",
                value=tool,
            )
        result.append(copy.deepcopy(dict(plain)))
    return result


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_id(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _read_prompt(item: Any, where: str, limits: Mapping[str, int], *, single: bool) -> RawPrompt:
    if isinstance(item, str):
        return RawPrompt(item, item, None)
    if isinstance(item, Mapping):
        return _read_dict(item, where, limits, single=single)
    if _is_list(item):
        return RawPrompt(item, None, _read_ids(item, where))
    raise ParameterTypeError(
        f"{where} has an invalid type: it must be a str, token ids or a dict, got {type(item).__name__}",
        field="prompts",
        value=item,
    )


def _read_dict(item: Mapping[str, Any], where: str, limits: Mapping[str, int], *, single: bool) -> RawPrompt:
    media = item.get("multimodal_data") or {}
    if not isinstance(media, Mapping):
        raise ParameterTypeError(
            f"{where}['multimodal_data'] must be a dict, got {media!r}", field="multimodal_data", value=media
        )
    for kind, parts in media.items():
        if kind not in limits:
            raise RequestError(
                f"{where}['multimodal_data'] takes {', '.join(limits)}, got {kind!r}", field="multimodal_data", value=kind
            )
        if parts:
            count = len(parts) if _is_list(parts) else 1
            _check_limit(where, kind, count, limits)
            raise _text_only(f"{where}['multimodal_data'][{kind!r}]", kind)
    text, ids = item.get("prompt"), item.get("prompt_token_ids")
    if (single and text is None) or (text is None and ids is None):
        raise RequestError(f"{where} must hold 'prompt', got keys {sorted(map(str, item))}", field="prompts", value=item)
    if ids is not None:
        return RawPrompt(item, text if isinstance(text, str) else None, _read_ids(ids, f"{where}['prompt_token_ids']"))
    inner = _read_prompt(text, f"{where}['prompt']", limits, single=False)
    return RawPrompt(item, inner.text, inner.token_ids)


def _read_ids(ids: Any, where: str) -> list[int]:
    if not _is_list(ids) or not all(map(_is_id, ids)):
        raise ParameterTypeError(
            f"{where} has an invalid type: it must be a list of token ids, got {ids!r}", field="prompt_token_ids"
        )
    if not ids:
        raise RequestError(f"{where} has no token ids: a prompt needs at least one", field="prompt_token_ids", value=ids)
    return [int(i) for i in ids]


def _read_conversation(conversation: Any, where: str, limits: Mapping[str, int]) -> list[dict[str, Any]]:
    if not _is_list(conversation) or not all(isinstance(m, Mapping) for m in conversation):
        raise ParameterTypeError(f"{where} must be a list of messages (dicts), got {conversation!r}", field="messages")
    if not conversation:
        raise RequestError(f"{where} has no messages", field="messages", value=conversation)
    media: Counter[str] = Counter()
    refusals: list[RequestError] = []
    for i, message in enumerate(conversation):
        content = message.get("content")
        if _is_list(content):
            for j, part in enumerate(content):
                kind = _media_kind(part, f"{where}[{i}]['content'][{j}]")
                if kind is not None:
                    media[kind] += 1
                    refusals.append(_text_only(f"{where}[{i}]['content'][{j}] ({part['type']})", kind))
    for kind, count in media.items():
        _check_limit(where, kind, count, limits)
    if refusals:
        raise refusals[0]
    return [dict(message) for message in conversation]


def _media_kind(part: Any, where: str) -> str | None:
    """The kind of a media part; None for a text part. The rest of a message is checked where templates are rendered."""
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind == "text":
        return None
    if not isinstance(kind, str) or kind not in _MEDIA_PARTS:
        raise RequestError(
            f"{where} has the unknown type {kind!r}; parts are text, image_url, video_url", field="messages", value=part
        )
    if part.get(kind) is None and part.get("uuid") is None:
        raise RequestError(f"{where} has neither {kind!r} nor 'uuid'", field="messages", value=part)
    return _MEDIA_PARTS[kind]


def _check_limit(where: str, kind: str, count: int, limits: Mapping[str, int]) -> None:
    if count > limits[kind]:
        raise RequestError(
            f"{where} has {count} parts of kind {kind}, limit_mm_per_prompt allows {limits[kind]}",
            field="limit_mm_per_prompt",
            value=count,
        )


def _text_only(where: str, kind: str) -> RequestError:
    return RequestError(
        f"{where} is a part of kind {kind}, but this model takes text only", field="messages", allowed="text", value=kind
    )
