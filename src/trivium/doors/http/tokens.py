"""Text to token ids and back: vLLM's `/tokenize` and `/detokenize`, MindIE's `/v1/tokenizer`."""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.limits import MAX_DETOKENIZED, MAX_PROMPT_CHARS
from trivium.doors.http.openai.conversation import Conversations
from trivium.doors.http.openai.exchange import ChatApi
from trivium.doors.http.openai.fields import Fields, too_many, wrong
from trivium.doors.http.openai.tools import read_tools
from trivium.errors import RequestError

__all__ = ["DETOKENIZE", "TOKENIZE", "TOKENIZER", "routes"]

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
TOKENIZER = "/v1/tokenizer"

log = logging.getLogger("trivium.http")

_MAX_IGNORED = 1000  # names that are remembered, so that a hostile client cannot fill memory or log
_SHOWN_CHARS = 80  # of such a name
_OF_MESSAGES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_REFUSED = ("chat_template", "mm_processor_kwargs", "media_io_kwargs")  # vLLM's, which would change the answer


def routes() -> list[BaseRoute]:
    """`POST /tokenize`, `POST /detokenize` and `POST /v1/tokenizer`."""
    return [
        Route(TOKENIZE, _handler(TOKENIZE, _TokenApi.tokenize), methods=["POST"]),
        Route(DETOKENIZE, _handler(DETOKENIZE, _TokenApi.detokenize), methods=["POST"]),
        Route(TOKENIZER, _handler(TOKENIZER, _TokenApi.count, bad_status=422), methods=["POST"]),
    ]


def _handler(path: str, work: Callable[[_TokenApi, Fields], dict[str, Any]], bad_status: int = 400) -> Any:
    """A handler whose `work` is done on a worker thread."""

    async def handle(request: Request) -> JsonResponse:
        door = door_of(request)
        fields = Fields(await door.read_json(request, bad_status=bad_status))
        api = door.part(_TokenApi, _TokenApi)
        answer = await asyncio.to_thread(work, api, fields)
        api.note_unknown(path, fields)
        return JsonResponse(answer)

    return handle


class _TokenApi:
    """One per door. `tokenize`, `detokenize` and `count` answer the bodies of their routes, and raise `RequestError`."""

    def __init__(self, door: HttpDoor) -> None:
        self._engine = door.engine
        self._check_model = ChatApi.of(door).check_model
        template = self._engine.chat_template
        self._conversations = None if template is None else Conversations(template)
        self._ignored: set[str] = set()

    def note_unknown(self, path: str, fields: Fields) -> None:
        """Unknown fields are ignored, and logged the first time."""
        for name in fields.unread():
            shown = name[:_SHOWN_CHARS]
            if shown not in self._ignored and len(self._ignored) < _MAX_IGNORED:
                self._ignored.add(shown)
                log.warning("unknown field %r of %s: ignored", shown, path)

    def tokenize(self, fields: Fields) -> dict[str, Any]:
        """Also raises `HttpError` 404 for another model."""
        self._check_model(fields.any("model"))
        for name in _REFUSED:
            if fields.any(name):
                raise fields.wrong(name, "unset")
        if ("prompt" in fields) == ("messages" in fields):
            raise RequestError("exactly one of prompt and messages must be given", field="prompt", allowed="one of both")
        with_texts = fields.boolean("return_token_strs")
        ids = self._conversation(fields) if "messages" in fields else self._prompt(fields)
        return {
            "count": len(ids),
            "max_model_len": self._engine.model_info.max_model_len,
            "tokens": ids,
            "token_strs": [self._engine.tokenizer.token_text(token) for token in ids] if with_texts else None,
        }

    def detokenize(self, fields: Fields) -> dict[str, Any]:
        """Also raises `HttpError` 404 for another model."""
        self._check_model(fields.any("model"))
        tokens = fields.required("tokens", "a list of token ids")
        highest = self._engine.model_info.vocab_size - 1
        if not isinstance(tokens, list):
            raise fields.wrong("tokens", "a list of token ids")
        if len(tokens) > MAX_DETOKENIZED:
            raise too_many("tokens", MAX_DETOKENIZED, len(tokens))
        for index, token in enumerate(tokens):
            if type(token) is not int or not 0 <= token <= highest:
                raise wrong(f"tokens[{index}]", f"an integer from 0 to {highest}", token)
        return {"prompt": self._engine.tokenizer.decode(tokens, skip_special_tokens=False)}

    def count(self, fields: Fields) -> dict[str, Any]:
        """Tokens that only together make a character are told as one text."""
        text = _text(fields, "inputs")
        with_texts = fields.boolean("do_decode", True)
        tokenizer = self._engine.tokenizer
        ids = tokenizer.encode_prompt(text)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(tokenizer.token_bytes(token)) for token in ids if with_texts]
        texts.append(decoder.decode(b"", True))
        return {"token_number": len(ids), "tokens": [text for text in texts if text]}

    def _prompt(self, fields: Fields) -> list[int]:
        for name in _OF_MESSAGES:
            if fields.any(name) is not None:
                raise fields.wrong(name, "unset with prompt")
        text = _text(fields, "prompt")
        tokenizer = self._engine.tokenizer
        return tokenizer.encode_prompt(text) if fields.boolean("add_special_tokens", True) else tokenizer.encode(text)

    def _conversation(self, fields: Fields) -> list[int]:
        if fields.boolean("add_special_tokens"):
            raise fields.wrong("add_special_tokens", "false with messages, for which the chat template writes them")
        if self._conversations is None:
            raise RequestError("messages need a chat template, and the model has none; send a prompt", field="messages")
        continue_final = fields.boolean("continue_final_message")
        generation = fields.boolean("add_generation_prompt", not continue_final)
        if generation and continue_final:
            raise fields.wrong("add_generation_prompt", "false with continue_final_message")
        rendered = self._conversations.render(
            fields.any("messages"),
            read_tools(fields).tools,
            fields.mapping("chat_template_kwargs"),
            add_generation_prompt=generation,
            continue_final=continue_final,
        )
        if len(rendered.text) > MAX_PROMPT_CHARS:  # what is not in the messages, like tools, has no limit of its own
            raise RequestError(
                f"messages and tools must have at most {MAX_PROMPT_CHARS} characters once rendered, got {len(rendered.text)}",
                field="messages",
                allowed=f"at most {MAX_PROMPT_CHARS} characters",
                value=len(rendered.text),
            )
        return rendered.tokens(self._engine.tokenizer)


def _text(fields: Fields, name: str) -> str:
    fields.required(name, "a string")
    text = fields.string(name)
    if text is None or len(text) > MAX_PROMPT_CHARS:
        raise wrong(name, f"a string of at most {MAX_PROMPT_CHARS} characters", f"{len(text or '')} characters")
    return text
