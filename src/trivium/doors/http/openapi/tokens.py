"""vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

from trivium.doors.http.limits import MAX_DETOKENIZED, MAX_MESSAGES, MAX_PROMPT_CHARS, MAX_TOOLS
from trivium.doors.http.openapi.kinds import Schema, array, boolean, integer, mapping, object_of, record, ref, string
from trivium.doors.http.openapi.operation import Operation, Payload
from trivium.doors.http.openapi.sampling import MODEL, TOKEN_ID
from trivium.doors.http.tokens import DETOKENIZE, TOKENIZE

__all__ = ["OPERATIONS", "SCHEMAS"]

SCHEMAS: dict[str, Schema] = {
    "TokenizeRequest": {
        "oneOf": [
            object_of(
                {
                    "model": MODEL,
                    "prompt": string(maxLength=MAX_PROMPT_CHARS),
                    "add_special_tokens": boolean("Put the model's begin token before it. Default: true."),
                    "return_token_strs": boolean("Default: false."),
                    "messages": {"type": "null"},
                },
                "prompt",
            ),
            object_of(
                {
                    "model": MODEL,
                    "messages": array(ref("ChatMessage"), minItems=1, maxItems=MAX_MESSAGES),
                    "tools": array(ref("ChatTool"), maxItems=MAX_TOOLS),
                    "chat_template_kwargs": mapping(),
                    "add_generation_prompt": boolean("Default: true, but with continue_final_message."),
                    "continue_final_message": boolean("Default: false."),
                    "return_token_strs": boolean("Default: false."),
                    "prompt": {"type": "null"},
                },
                "messages",
            ),
        ]
    },
}

OPERATIONS = (
    Operation(
        "post",
        TOKENIZE,
        "tokenize",
        "Tokens",
        "The tokens of a text or of a conversation.",
        {
            200: Payload(
                "The tokens",
                {
                    "application/json": record(
                        {
                            "count": integer(0),
                            "max_model_len": integer(1),
                            "tokens": array(TOKEN_ID),
                            "token_strs": {
                                "type": ["array", "null"],
                                "items": string(),
                                "description": "As the vocabulary writes them",
                            },
                        }
                    )
                },
            )
        },
        body=ref("TokenizeRequest"),
        example={"prompt": "Hello world", "return_token_strs": True},
        also=(404,),
    ),
    Operation(
        "post",
        DETOKENIZE,
        "detokenize",
        "Tokens",
        "The text of tokens.",
        {200: Payload("The text", {"application/json": record({"prompt": string()})})},
        body=object_of({"model": MODEL, "tokens": array(TOKEN_ID, maxItems=MAX_DETOKENIZED)}, "tokens"),
        example={"tokens": [1, 2, 3]},
        also=(404,),
    ),
)
