"""What the library hands back: `RequestOutput` with its one `CompletionOutput` and its `RequestMetrics`.

All of them can also be read and set by name (`output["finished"]`, `output.get("error_msg")`, `output.set("finished", True)`)
and turned into plain dicts and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from trivium.engine.outputs import FinishReason
from trivium.parsing import ToolCall

__all__ = ["CompletionOutput", "Logprob", "LogprobsLists", "RequestMetrics", "RequestOutput"]

R = TypeVar("R", bound="Record")


@dataclass
class Record:
    """Fields that can also be reached by name."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` if there is none of that name."""
        return getattr(self, name) if name in self else default

    def set(self, name: str, value: Any) -> None:
        """Set a field; `KeyError` if there is none of that name."""
        self[name] = value

    def __contains__(self, name: object) -> bool:
        return any(f.name == name for f in fields(self))

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self:
            raise KeyError(name)
        setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain dicts, lists and numbers; the prompt is kept as it was passed."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[R], values: Mapping[str, Any]) -> R:
        """The inverse of `to_dict`; missing fields take their defaults, unknown names raise `TypeError`."""
        return cls(**values)


@dataclass
class Logprob(Record):
    """The log-probability of one token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class LogprobsLists(NamedTuple):
    """Log-probabilities as rows, one per generated token: the sampled token first, then the alternatives, best first."""

    logprob_token_ids: list[list[int]]
    logprobs: list[list[float]]
    sampled_token_ranks: list[int]


@dataclass
class RequestMetrics(Record):
    """When things happened, in seconds.

    Moments are wall-clock times (as `time.time`); the four other fields of the original page are durations.
    Moments of parts that this engine does not have (splitting prefill and decode between machines) stay None.
    """

    arrival_time: float | None = None  # whole results: when the call came; streamed pieces: when the piece came
    preprocess_start_time: float | None = None
    preprocess_end_time: float | None = None  # prompt rendered and tokenised
    inference_start_time: float | None = None
    first_token_time: float | None = None  # duration: inference start to first token
    time_in_queue: float | None = None  # duration: end of preprocessing to inference start
    preprocess_cost_time: float | None = None  # duration
    model_forward_time: float | None = None  # duration: inference start to latest token
    model_execute_time: float | None = None  # duration: the call to latest token, so with preprocessing and queue
    request_start_time: float | None = None  # when the call came
    engine_recv_first_token_time: float | None = None
    engine_recv_latest_token_time: float | None = None
    preempted_count: int = 0
    gpu_cache_token_num: int = 0  # prompt tokens found in the prefix cache, which lives in the memory of the processor here
    cpu_cache_token_num: int = 0
    storage_cache_token_num: int = 0
    cpu_cache_prepare_time: float | None = None
    storage_cache_prepare_time: float | None = None
    scheduler_recv_req_time: float | None = None
    engine_get_req_time: float | None = None
    ask_decode_resource_start_time: float | None = None
    ask_decode_resource_finish_time: float | None = None
    add_req_to_resource_manager_time: float | None = None
    wait_for_sending_cache_time: float | None = None
    send_request_output_to_decode_time: float | None = None
    decode_recv_req_time: float | None = None
    decode_preallocate_req_time: float | None = None
    decode_recv_first_token_time: float | None = None
    decode_inference_start_time: float | None = None
    decode_recv_second_token_time: float | None = None
    llm_engine_recv_req_timestamp: float | None = None
    llm_engine_send_req_to_engine_timestamp: float | None = None
    llm_engine_recv_latest_token_timestamp: float | None = None
    speculate_metrics: dict[str, Any] | None = None


@dataclass
class CompletionOutput(Record):
    """The answer to one prompt, or a piece of it.

    `index`: which of the prompt's `n` samples. `send_idx`: number of the piece, from 0; a whole answer is piece 0.
    `text` is the answer, `reasoning_content` the thought before it (None without a reasoning parser), `reasoning_token_num` the
    thought's length in tokens. `tool_calls` is what the tool parser took out of the answer; it comes with the last piece.
    `token_ids` holds every generated token, the end token included. `finish_reason` is None while tokens may follow, else
    stop, length, abort, timeout or error; `stop_reason` is the stop string or stop id that ended it.
    `logprobs`: per token a dict of token id to `Logprob`, the sampled token included; `top_logprobs` is the same as rows;
    `logprob` is the latest token's. The draft, speculation, media and sampling-mask fields keep their defaults on a text model.
    """

    index: int = 0
    send_idx: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning_content: str | None = None
    reasoning_token_num: int = 0
    tool_calls: list[ToolCall] | None = None
    logprob: float | None = None
    top_logprobs: LogprobsLists | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    completion_tokens: int = 0
    decode_type: int = 0
    draft_token_ids: list[int] | None = None
    draft_top_logprobs: LogprobsLists | None = None
    speculate_metrics: dict[str, Any] | None = None
    delta_message: dict[str, Any] | None = None
    multipart: list[Any] | None = None
    num_image_tokens: int | None = None
    enable_parser: bool = False
    sampling_mask: list[Any] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompletionOutput:
        given = dict(values)
        if given.get("tool_calls") is not None:
            given["tool_calls"] = [ToolCall(**c) if isinstance(c, Mapping) else c for c in given["tool_calls"]]
        if given.get("top_logprobs") is not None:
            given["top_logprobs"] = LogprobsLists(*given["top_logprobs"])
        if given.get("logprobs") is not None:
            given["logprobs"] = [_logprob_row(row) for row in given["logprobs"]]
        return cls(**given)

    def append(self, piece: CompletionOutput) -> None:
        """Add the piece that follows this one."""
        self.send_idx = piece.send_idx
        self.token_ids += piece.token_ids
        self.text += piece.text
        if piece.reasoning_content is not None:
            self.reasoning_content = (self.reasoning_content or "") + piece.reasoning_content
        if piece.logprobs is not None:
            self.logprobs = (self.logprobs or []) + piece.logprobs
        if piece.top_logprobs is not None:
            ours = self.top_logprobs or LogprobsLists([], [], [])
            self.top_logprobs = LogprobsLists(
                ours.logprob_token_ids + piece.top_logprobs.logprob_token_ids,
                ours.logprobs + piece.top_logprobs.logprobs,
                ours.sampled_token_ranks + piece.top_logprobs.sampled_token_ranks,
            )
        self.logprob = self.logprob if piece.logprob is None else piece.logprob
        self.reasoning_token_num = piece.reasoning_token_num or self.reasoning_token_num
        self.completion_tokens = piece.completion_tokens or self.completion_tokens
        self.tool_calls = piece.tool_calls or self.tool_calls
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.stop_reason = piece.stop_reason if piece.stop_reason is not None else self.stop_reason


@dataclass
class RequestOutput(Record):
    """One prompt's answer, or the newest piece of it when streaming.

    `prompt`: what was passed to `generate`; for `chat`, the rendered conversation. `prompt_token_ids`: what the model read.
    `outputs` is one `CompletionOutput`, not a list. `num_cached_tokens` of the prompt came from the prefix cache.
    `error_code` is 200, or 408 (deadline), 500 (fault of the engine), 503 (shut down) with `error_msg`; the text until then
    is kept.
    `prompt_logprobs`: one entry per prompt token, None for the first, else token id to `Logprob`.
    `output_type`, `ic_req_data` and `trace_carrier` exist for scripts that read them.
    """

    request_id: str
    prompt: Any = None
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    output_type: int = 3
    outputs: CompletionOutput = field(default_factory=CompletionOutput)
    finished: bool = False
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0
    num_input_image_tokens: int = 0
    num_input_video_tokens: int = 0
    error_code: int = 200
    error_msg: str | None = None
    prompt_token_ids_len: int = 0
    accumulate_tool_calls: list[ToolCall] | None = None
    ic_req_data: dict[str, Any] | None = None
    trace_carrier: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RequestOutput:
        given = dict(values)
        if isinstance(given.get("outputs"), Mapping):
            given["outputs"] = CompletionOutput.from_dict(given["outputs"])
        if isinstance(given.get("metrics"), Mapping):
            given["metrics"] = RequestMetrics.from_dict(given["metrics"])
        if given.get("prompt_token_ids") is None:
            given["prompt_token_ids"] = []
        if given.get("prompt_logprobs") is not None:
            given["prompt_logprobs"] = [None if row is None else _logprob_row(row) for row in given["prompt_logprobs"]]
        return cls(**given)

    def add(self, piece: RequestOutput) -> None:
        """Append the next streamed piece of the same answer."""
        self.outputs.append(piece.outputs)
        self.prompt_logprobs = self.prompt_logprobs if piece.prompt_logprobs is None else piece.prompt_logprobs
        self.finished = self.finished or piece.finished
        self.metrics = piece.metrics
        self.num_cached_tokens = max(self.num_cached_tokens, piece.num_cached_tokens)
        self.error_code = piece.error_code
        self.error_msg = piece.error_msg
        self.accumulate_tool_calls = piece.accumulate_tool_calls or self.accumulate_tool_calls

    accumulate = add


def _logprob_row(row: Mapping[Any, Any]) -> dict[int, Logprob]:
    """A row whose keys may have become text on the way through JSON."""
    return {int(token): Logprob(**value) if isinstance(value, Mapping) else value for token, value in row.items()}
