"""OpenAI's chat completions, completions and models."""

from __future__ import annotations

from trivium.doors.http.limits import MAX_BAD_WORDS, MAX_MESSAGES, MAX_PROMPT_CHARS, MAX_PROMPTS, MAX_SAMPLES, MAX_TOOLS
from trivium.doors.http.openai.request import CHAT, COMPLETIONS
from trivium.doors.http.openapi.kinds import (
    Schema,
    anything,
    array,
    boolean,
    choice,
    either,
    event,
    integer,
    mapping,
    number,
    object_of,
    optional,
    record,
    ref,
    string,
)
from trivium.doors.http.openapi.operation import Operation, Payload
from trivium.doors.http.openapi.sampling import CHAT_LOGPROBS, EFFORTS, MODEL, SAMPLING, TOKEN_ID, USAGE, WORD

__all__ = ["JSON_SCHEMA", "OPERATIONS", "SCHEMAS"]

JSON_SCHEMA = mapping(text="A JSON schema")
_TOKEN_IDS = array(TOKEN_ID, minItems=1)
_TEXT = string(maxLength=MAX_PROMPT_CHARS)

_STREAMS: dict[str, Schema] = {
    "stream": boolean("Send the answer as events while it is made. Default: false."),
    "stream_options": object_of(
        {
            "include_usage": boolean("A last chunk tells the usage."),
            "continuous_usage_stats": boolean("So does every other chunk."),
        },
        text="Only with stream.",
    ),
}
_KINDS: dict[str, Schema] = {
    "json": either(JSON_SCHEMA, string("A JSON schema's text")),
    "regex": string(),
    "choice": array(string(), minItems=1),
    "grammar": string("A Lark grammar, as llguidance reads it"),
    "json_object": boolean(),
}
_STRUCTURE: dict[str, Schema] = {
    "response_format": either(
        object_of({"type": {"const": "text"}}, "type"),
        object_of({"type": {"const": "json_object"}}, "type"),
        object_of(
            {
                "type": {"const": "json_schema"},
                "json_schema": object_of(
                    {
                        "name": anything(),
                        "description": anything(),
                        "strict": anything("It is always so"),
                        "schema": JSON_SCHEMA,
                    },
                    "schema",
                ),
            },
            "type",
            "json_schema",
        ),
        text="What the answer must be. At most one of this, structured_outputs and the fields guided_….",
    ),
    "structured_outputs": object_of(_KINDS, text="The same in vLLM's form: exactly one member."),
    **{f"guided_{name}": schema for name, schema in _KINDS.items()},
}
_COMMON: dict[str, Schema] = {
    "model": MODEL,
    **SAMPLING,
    "max_tokens": integer(0, text="Tokens of the answer at most. 0 only with echo."),
    "n": integer(1, MAX_SAMPLES, "Answers to make. Default: 1."),
    "best_of": integer(1, MAX_SAMPLES, "At most n."),
    "logit_bias": mapping(
        number(-100, 100), "Token ids, and what is added to their logits.", propertyNames={"pattern": "^[0-9]{1,10}$"}
    ),
    "bad_words": array(WORD, "Texts that the answer must not have.", maxItems=MAX_BAD_WORDS),
    "include_stop_str_in_output": boolean("Keep the text that ended the answer."),
    "skip_special_tokens": boolean("Default: true."),
    "prompt_logprobs": integer(
        0, text="Tell the log-probabilities of the prompt's tokens and of so many others. Not streamed."
    ),
    **_STRUCTURE,
    **_STREAMS,
    "user": string("Without effect, as metadata."),
    "metadata": mapping(),
}

_PART = object_of({"type": {"const": "text"}, "text": string()}, "text")
_CONTENT = either(string(), array(_PART))
_CALL = object_of(
    {
        "id": anything("For the template, as the type"),
        "type": anything(),
        "function": object_of({"name": string(), "arguments": either(string("The text of a JSON object"), mapping())}, "name"),
    },
    "function",
)
_MESSAGE = either(
    object_of({"role": {"const": "assistant"}, "content": _CONTENT, "tool_calls": array(_CALL)}, "role"),
    object_of(
        {
            "role": string("system, user, tool, …: those that the model's template knows", minLength=1),
            "content": _CONTENT,
            "tool_call_id": anything("For the template"),
        },
        "role",
        "content",
    ),
)
_TOOL = object_of(
    {
        "type": {"const": "function"},
        "function": object_of(
            {
                "name": string(minLength=1),
                "description": string(),
                "parameters": mapping(text="A JSON schema of an object"),
            },
            "name",
        ),
    },
    "function",
)
_CHOSEN_TOOL = object_of(
    {"type": {"const": "function"}, "function": object_of({"name": string(minLength=1)}, "name")}, "function"
)

_CHAT = object_of(
    {
        "messages": array(ref("ChatMessage"), minItems=1, maxItems=MAX_MESSAGES),
        **_COMMON,
        "max_tokens": integer(1, text="Tokens of the answer at most. Default: the room left."),
        "max_completion_tokens": integer(1, text="The same under its newer name, which stands above it."),
        "logprobs": boolean("Tell the log-probabilities of the answer's tokens."),
        "top_logprobs": integer(0, 20, "And of so many of the likeliest. Only with logprobs."),
        "tools": array(ref("ChatTool"), "Functions that the model may ask for.", maxItems=MAX_TOOLS),
        "tool_choice": either(choice("none", "auto", "required"), _CHOSEN_TOOL),
        "parallel_tool_calls": boolean("Default: true."),
        "reasoning_effort": choice(*EFFORTS, text="For the model's template."),
        "chat_template_kwargs": mapping(text="Variables of the model's template, such as enable_thinking."),
        "add_generation_prompt": boolean("Default: true, but with continue_final_message."),
        "continue_final_message": boolean("Go on with the last message, the assistant's."),
    },
    "messages",
)
_COMPLETION = object_of(
    {
        "prompt": either(
            _TEXT,
            _TOKEN_IDS,
            array(_TEXT, minItems=1, maxItems=MAX_PROMPTS),
            array(_TOKEN_IDS, minItems=1, maxItems=MAX_PROMPTS),
        ),
        **_COMMON,
        "echo": boolean("Begin the text with the prompt."),
        "logprobs": integer(0, text="Tell the log-probabilities of the answer's tokens, and of so many others."),
    },
    "prompt",
)

_REASON: dict[str, Schema] = {
    "finish_reason": choice("stop", "length", "tool_calls"),
    "stop_reason": {"type": ["string", "integer", "null"], "description": "The text or token of the request that ended it"},
}
_PROMPT_LOGPROBS = optional(
    array(optional(mapping(record({"logprob": number(), "rank": integer(1), "decoded_token": string()}))))
)
_ABOUT: dict[str, Schema] = {"id": string(), "created": integer(0), "model": string()}
_CHAT_ANSWER = record(
    {
        **_ABOUT,
        "object": {"const": "chat.completion"},
        "choices": array(
            record(
                {
                    "index": integer(0),
                    "message": record(
                        {
                            "role": {"const": "assistant"},
                            "content": {"type": ["string", "null"]},
                            "reasoning_content": {"type": ["string", "null"]},
                            "tool_calls": array(
                                record(
                                    {
                                        "id": string(),
                                        "type": {"const": "function"},
                                        "function": record({"name": string(), "arguments": string()}),
                                    }
                                )
                            ),
                        },
                        "reasoning_content",
                        "tool_calls",
                    ),
                    "logprobs": optional(record({"content": CHAT_LOGPROBS, "refusal": {"type": "null"}})),
                    **_REASON,
                }
            )
        ),
        "usage": USAGE,
        "prompt_logprobs": _PROMPT_LOGPROBS,
    },
    "prompt_logprobs",
)
_NUMBERS = array({"type": ["number", "null"]})
_COMPLETION_ANSWER = record(
    {
        **_ABOUT,
        "object": {"const": "text_completion"},
        "choices": array(
            record(
                {
                    "index": integer(0),
                    "text": string(),
                    "logprobs": optional(
                        record(
                            {
                                "tokens": array(string()),
                                "token_logprobs": _NUMBERS,
                                "top_logprobs": array(optional(mapping(number()))),
                                "text_offset": array(integer(0)),
                            }
                        )
                    ),
                    **_REASON,
                    "prompt_logprobs": _PROMPT_LOGPROBS,
                },
                "prompt_logprobs",
            )
        ),
        "usage": USAGE,
    }
)
_MODEL = record(
    {
        "id": string(),
        "object": {"const": "model"},
        "created": integer(0),
        "owned_by": string(),
        "max_model_len": integer(1, text="Tokens of prompt and answer together"),
    }
)
_CHUNKS = event("A chunk; the last event is `[DONE]`. An error is a chunk with `error`.")

SCHEMAS: dict[str, Schema] = {
    "ChatMessage": _MESSAGE,
    "ChatTool": _TOOL,
    "ChatRequest": _CHAT,
    "ChatCompletion": _CHAT_ANSWER,
    "CompletionRequest": _COMPLETION,
    "Completion": _COMPLETION_ANSWER,
    "Model": _MODEL,
}
_MODEL_ID = {"name": "id", "in": "path", "required": True, "description": "The model's name", "schema": string(minLength=1)}

OPERATIONS = (
    Operation(
        "post",
        CHAT,
        "createChatCompletion",
        "OpenAI",
        "Answer a conversation.",
        {200: Payload("The answer", {"application/json": ref("ChatCompletion"), "text/event-stream": _CHUNKS})},
        body=ref("ChatRequest"),
        example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32},
        also=(404,),
    ),
    Operation(
        "post",
        COMPLETIONS,
        "createCompletion",
        "OpenAI",
        "Go on with texts.",
        {200: Payload("What follows", {"application/json": ref("Completion"), "text/event-stream": _CHUNKS})},
        body=ref("CompletionRequest"),
        example={"prompt": "Once upon a time", "max_tokens": 16},
        also=(404,),
    ),
    Operation(
        "get",
        "/v1/models",
        "listModels",
        "OpenAI",
        "The model that is served.",
        {
            200: Payload(
                "A list of one", {"application/json": record({"object": {"const": "list"}, "data": array(ref("Model"))})}
            )
        },
    ),
    Operation(
        "get",
        "/v1/models/{id}",
        "getModel",
        "OpenAI",
        "The model, by its name.",
        {200: Payload("The model", {"application/json": ref("Model")})},
        parameters=(_MODEL_ID,),
        also=(404,),
    ),
)
