"""The output objects: access by name, dicts and back, joining pieces."""

from __future__ import annotations

import json

import pytest

from trivium.doors.library.outputs import CompletionOutput, Logprob, LogprobsLists, RequestMetrics, RequestOutput
from trivium.parsing import ToolCall


def full_output() -> RequestOutput:
    return RequestOutput(
        request_id="r1",
        prompt=[1, 2],
        prompt_token_ids=[1, 2],
        prompt_logprobs=[None, {2: Logprob(-0.5, 1, "b")}],
        outputs=CompletionOutput(
            index=1,
            token_ids=[3],
            text="c",
            logprobs=[{3: Logprob(-0.1, 1, "c")}],
            top_logprobs=LogprobsLists([[3]], [[-0.1]], [1]),
            tool_calls=[ToolCall("call-1", "add", "{}")],
            finish_reason="stop",
        ),
        finished=True,
        metrics=RequestMetrics(arrival_time=5.0),
    )


def test_documented_fields_exist_with_their_defaults() -> None:
    output = RequestOutput("r")
    assert (output.output_type, output.error_code, output.error_msg, output.finished) == (3, 200, None, False)
    assert (output.num_cached_tokens, output.prompt_token_ids, output.prompt_token_ids_len) == (0, [], 0)
    assert isinstance(output.outputs, CompletionOutput)
    for name in (
        "arrival_time",
        "inference_start_time",
        "first_token_time",
        "time_in_queue",
        "model_forward_time",
        "model_execute_time",
        "preprocess_cost_time",
        "request_start_time",
    ):
        assert name in output.metrics
    for name in ("index", "send_idx", "token_ids", "text", "reasoning_content", "tool_calls", "logprobs", "draft_token_ids"):
        assert name in output.outputs


def test_access_by_name() -> None:
    output = RequestOutput("r")
    assert output["request_id"] == output.get("request_id") == "r"
    assert output.get("nothing", 7) == 7
    output["finished"] = True
    output.set("error_code", 500)
    assert (output.finished, output.error_code) == (True, 500)
    with pytest.raises(KeyError):
        output["nothing"]
    with pytest.raises(KeyError):
        output["nothing"] = 1


def test_dict_round_trip_even_through_json() -> None:
    output = full_output()
    assert RequestOutput.from_dict(output.to_dict()) == output
    assert RequestOutput.from_dict(json.loads(json.dumps(output.to_dict()))) == output


def test_missing_prompt_ids_are_an_empty_list() -> None:
    assert RequestOutput.from_dict({"request_id": "r", "prompt_token_ids": None}).prompt_token_ids == []


def test_pieces_join() -> None:
    def piece(number: int, token: int, text: str, thought: str | None) -> RequestOutput:
        return RequestOutput(
            "r",
            outputs=CompletionOutput(
                send_idx=number,
                token_ids=[token],
                text=text,
                reasoning_content=thought,
                logprobs=[{token: Logprob(-float(token))}],
                top_logprobs=LogprobsLists([[token]], [[-float(token)]], [1]),
                logprob=-float(token),
                completion_tokens=number + 1,
            ),
            metrics=RequestMetrics(model_execute_time=float(number)),
        )

    whole = piece(0, 10, "", "Let me")
    whole.add(piece(1, 11, "", " see."))
    last = piece(2, 12, "Yes", None)
    last.finished, last.outputs.finish_reason, last.outputs.stop_reason = True, "stop", 0
    whole.accumulate(last)
    answer = whole.outputs
    assert (answer.token_ids, answer.text, answer.reasoning_content) == ([10, 11, 12], "Yes", "Let me see.")
    assert (answer.finish_reason, answer.stop_reason, answer.send_idx, answer.completion_tokens) == ("stop", 0, 2, 3)
    assert [list(row) for row in answer.logprobs or []] == [[10], [11], [12]]
    assert answer.top_logprobs == LogprobsLists([[10], [11], [12]], [[-10.0], [-11.0], [-12.0]], [1, 1, 1])
    assert (whole.finished, whole.metrics.model_execute_time) == (True, 2.0)
