"""MindIE's `/infer`, `/infer_token` and `/v1/tokenizer`."""

from __future__ import annotations

from trivium.doors.http.infer.parameters import body_schema
from trivium.doors.http.limits import MAX_PROMPT_CHARS
from trivium.doors.http.openapi.kinds import Schema, array, boolean, choice, event, integer, object_of, record, ref, string
from trivium.doors.http.openapi.operation import Operation, Payload
from trivium.doors.http.tokens import TOKENIZER

__all__ = ["OPERATIONS", "SCHEMAS"]

_DETAILS = record({"finish_reason": choice("eos_token", "length"), "generated_tokens": integer(1), "seed": integer(0)})
_EVENTS = event(
    "The first has `prefill_time`, the others `decode_time`, in milliseconds; the last has `generated_text`, `details` and "
    "null for `token.text`. An error is an event with `error` and `error_type`."
)


_BODY = body_schema()["properties"]


def _request() -> Schema:
    """The body: one of `inputs` and `input_id`; the other may be there if it is null."""
    members = {**_BODY, "parameters": ref("InferParameters")}
    kinds = [
        {"type": "object", "properties": {**members, other: {"type": "null"}}, "required": [name]}
        for name, other in (("inputs", "input_id"), ("input_id", "inputs"))
    ]
    return {"oneOf": kinds}


SCHEMAS: dict[str, Schema] = {
    "InferRequest": _request(),
    "InferParameters": _BODY["parameters"],
    "InferAnswer": record({"generated_text": string(), "details": _DETAILS}, "details"),
}


def _infer(path: str, name: str, example: dict[str, object]) -> Operation:
    return Operation(
        "post",
        path,
        name,
        "MindIE",
        "Go on with a prompt: `inputs`, or token ids in `input_id`.",
        {
            200: Payload(
                "What follows",
                {"application/json": ref("InferAnswer"), "text/event-stream": _EVENTS},
                {"RequestUUID": string("The id of the request")},
            )
        },
        body=ref("InferRequest"),
        example=example,
        errors="InferError",
        also=(422, 424),
    )


OPERATIONS = (
    _infer("/infer", "infer", {"inputs": "My name is Olivier and I", "parameters": {"max_new_tokens": 20, "details": True}}),
    _infer("/infer_token", "inferToken", {"input_id": [1, 2, 3], "parameters": {"max_new_tokens": 20}}),
    Operation(
        "post",
        TOKENIZER,
        "countTokens",
        "MindIE",
        "Count the tokens of a text.",
        {
            200: Payload(
                "Their number and texts",
                {
                    "application/json": record(
                        {"token_number": integer(0), "tokens": array(string(), "Empty without do_decode")}
                    )
                },
            )
        },
        body=object_of({"inputs": string(maxLength=MAX_PROMPT_CHARS), "do_decode": boolean("Default: true.")}, "inputs"),
        example={"inputs": "what is your name?"},
        errors="InferError",
        also=(422,),
    ),
)
