"""Parts of a prompt that holds more than text: the list of objects that clients send, read and checked.

Nothing is fetched or decoded here: a `MediaPart` says where its content is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trivium.errors import RequestError

__all__ = ["MAX_MEDIA", "PART_KINDS", "MediaPart", "TextPart", "parse_parts"]

MAX_MEDIA = 20  # of one prompt: images, videos and audios together

MediaKind = Literal["image", "video", "audio"]

_MEDIA: dict[str, MediaKind] = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
_AUDIO_TYPES = {"mp3": "audio/mpeg", "wav": "audio/x-wav", "flac": "audio/flac"}  # format of input_audio -> media type

PART_KINDS = ("text", *_MEDIA)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image, video or audio; `url` as the client sent it: a path, a `file:`, `http(s):` or `data:` URL, or bare base64."""

    kind: MediaKind
    url: str


def parse_parts(
    items: object, field: str, on_ignored: Callable[[str], object] = lambda name: None
) -> list[TextPart | MediaPart]:
    """Read a list like `[{"type": "text", "text": …}, {"type": "image_url", "image_url": …}]`.

    The value stands under the key that `type` names; `type` may be missing when exactly one known key is there. A media value
    is a string or `{"url": …}`; `input_audio` is `{"data": base64, "format": mp3, wav or flac}` and becomes a `data:` URL. Null
    counts as not given. Keys that nothing reads are told to `on_ignored`. Raises `RequestError` naming the item.
    """
    if not isinstance(items, list) or not items:
        raise RequestError.out_of_range(field, "a non-empty list of objects", items)
    parts = [_parse(item, f"{field}[{i}]", on_ignored) for i, item in enumerate(items)]
    num_media = sum(isinstance(part, MediaPart) for part in parts)
    if num_media > MAX_MEDIA:
        allowed = f"a list with at most {MAX_MEDIA} images, videos and audios"
        raise RequestError(f"{field} must be {allowed}, got {num_media}", field=field, allowed=allowed, value=num_media)
    return parts


def _parse(item: object, field: str, on_ignored: Callable[[str], object]) -> TextPart | MediaPart:
    if not isinstance(item, dict):
        raise RequestError.out_of_range(field, "an object", item)
    given = {name: value for name, value in item.items() if value is not None}
    key = _key(given, field)
    for name in given.keys() - {"type", key}:
        on_ignored(name)
    value = given[key]
    if key == "text":
        if not isinstance(value, str) or not value:
            raise RequestError.out_of_range(f"{field}.text", "a non-empty string", value)
        return TextPart(value)
    url = _input_audio(value, f"{field}.{key}") if key == "input_audio" else _url(value, f"{field}.{key}", on_ignored)
    return MediaPart(_MEDIA[key], url)


def _key(given: Mapping[str, Any], field: str) -> str:
    """The key of an item's value."""
    known = [name for name in PART_KINDS if name in given]
    kind = given.get("type")
    if kind is None:
        if len(known) != 1:
            raise RequestError.out_of_range(
                f"{field}.type", f"given, one of {', '.join(PART_KINDS)}, unless exactly one of these keys is there", known
            )
        return known[0]
    if not isinstance(kind, str) or kind not in PART_KINDS:
        raise RequestError.out_of_range(f"{field}.type", f"one of {', '.join(PART_KINDS)}", kind)
    if known != [kind]:
        raise RequestError.out_of_range(field, f"an object with the key {kind}, as its type says, and no other", known)
    return kind


def _url(value: object, field: str, on_ignored: Callable[[str], object]) -> str:
    if isinstance(value, dict):
        for name in value.keys() - {"url"}:
            if (name, value[name]) != ("detail", "auto") and value[name] is not None:
                on_ignored(name)
        value = value.get("url")
    if not isinstance(value, str) or not value:
        raise RequestError.out_of_range(field, 'a non-empty string, or {"url": …} with one', value)
    return value


def _input_audio(value: object, field: str) -> str:
    data, audio_format = (value.get("data"), value.get("format")) if isinstance(value, dict) else (None, None)
    if not isinstance(audio_format, str) or audio_format not in _AUDIO_TYPES:
        raise RequestError.out_of_range(f"{field}.format", f"one of {', '.join(_AUDIO_TYPES)}", audio_format)
    if not isinstance(data, str) or not data:
        raise RequestError.out_of_range(f"{field}.data", "audio in base64", data)
    return f"data:{_AUDIO_TYPES[audio_format]};base64,{data}"
