"""Fields that several APIs take under the same names."""

from __future__ import annotations

from trivium.doors.http.limits import (
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from trivium.doors.http.openai.request import EFFORTS
from trivium.doors.http.openapi.kinds import (
    Schema,
    array,
    boolean,
    either,
    integer,
    number,
    record,
    string,
)
from trivium.engine.request import MAX_CACHE_SALT
from trivium.engine.sampling import MAX_SEED

__all__ = ["CHAT_LOGPROBS", "EFFORTS", "MODEL", "SAMPLING", "TOKEN_ID", "USAGE", "WORD"]

MODEL = string("Name of the model; another one than the served one is a 404. Default: the served one.")
TOKEN_ID = integer(0, text="A token of the vocabulary")
WORD = string(minLength=1, maxLength=MAX_STOP_CHARS)
# How the next token is chosen.
SAMPLING: dict[str, Schema] = {
    "temperature": number(0, 2, "0 takes the most likely token each time. Default: the model's, else 1."),
    "top_p": number(0, 1, "Only the most likely tokens whose probabilities add up to this are drawn from."),
    "top_k": integer(-1, text="Only so many of the most likely tokens are drawn from; 0 and -1: all."),
    "min_p": number(0, 1, "Only tokens are drawn from that are this likely, compared to the likeliest."),
    "repetition_penalty": number(text="Above 1 what has been in prompt or answer becomes less likely.", exclusiveMinimum=0),
    "presence_penalty": number(-2, 2, "Above 0 tokens that the answer has become less likely."),
    "frequency_penalty": number(-2, 2, "The same, as often as it has them."),
    "min_tokens": integer(0, text="Before so many tokens no end token is chosen."),
    "ignore_eos": boolean("Go on after end tokens."),
    "stop": either(
        WORD, array(WORD, maxItems=MAX_STOP_STRINGS), text="Texts that end the answer, which does not have them itself."
    ),
    "stop_token_ids": array(TOKEN_ID, "Tokens that end the answer.", maxItems=MAX_STOP_TOKEN_IDS),
    "seed": integer(0, MAX_SEED, "The same request with the same seed gives the same answer."),
    "priority": integer(-(2**31), 2**31 - 1, "Lower ones go first. Default: 0."),
    "cache_salt": string(
        "Separates what is kept of prompts from that of requests with another salt.", minLength=1, maxLength=MAX_CACHE_SALT
    ),
}

USAGE = record(
    {
        "prompt_tokens": integer(0),
        "completion_tokens": integer(0),
        "total_tokens": integer(0),
        "prompt_tokens_details": record({"cached_tokens": integer(0)}),
        "completion_tokens_details": record({"reasoning_tokens": integer(0)}),
    },
    "completion_tokens_details",
)
_TOKEN: dict[str, Schema] = {
    "token": string(),
    "logprob": number(),
    "bytes": array(integer(0, 255), "The token's exact bytes: it may be a part of a character."),
}
CHAT_LOGPROBS = array(record({**_TOKEN, "top_logprobs": array(record(_TOKEN))}))
