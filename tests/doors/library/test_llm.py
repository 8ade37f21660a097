"""`LLM` over a fake engine: input forms, checks, order, outputs, chat, parsers."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine, reply_to, texts

from trivium.doors.library import llm as llm_module
from trivium.doors.library.llm import LLM
from trivium.doors.library.sampling_params import SamplingParams
from trivium.engine.native_engine import NativeEngine
from trivium.engine.request import GenerationRequest
from trivium.errors import ConfigError, EngineDeadError, EngineError, ModelLoadError, PromptTooLongError, RequestError
from trivium.models.chat_template import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}[tools]{{ tools | length }}{% endif %}"
    "{% if not enable_thinking %}[no thought]{% endif %}[assistant]"
)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(max_num_seqs=4, max_waiting=16) as engine:
        engine.chat_template = ChatTemplate(TEMPLATE, engine.tokenizer)
        yield engine


@pytest.fixture
def llm(engine: FakeEngine) -> LLM:
    return LLM.from_engine(engine)


# Input forms


def test_generate_takes_every_documented_form(llm: LLM) -> None:
    ids = list(b"hello")
    want = [reply_to("hello")]
    assert texts(llm.generate("hello", use_tqdm=False)) == want
    assert texts(llm.generate(["hello"], use_tqdm=False)) == want
    assert texts(llm.generate(ids, use_tqdm=False)) == want
    assert texts(llm.generate([ids, ids], use_tqdm=False)) == want * 2
    assert texts(llm.generate({"prompt": "hello"}, use_tqdm=False)) == want
    assert texts(llm.generate({"prompt": "hello", "prompt_token_ids": ids, "multimodal_data": {}}, use_tqdm=False)) == want
    assert texts(llm.generate([{"prompt_token_ids": ids}, "hello", ids], use_tqdm=False)) == want * 3
    assert texts(llm.generate({"prompt": "hello", "multimodal_data": {"image": [], "video": []}}, use_tqdm=False)) == want


def test_prompt_is_what_was_passed(llm: LLM) -> None:
    given: list[Any] = ["hello", [104, 105], {"prompt": "hey"}]
    outputs = llm.generate(given, use_tqdm=False)
    assert [output.prompt for output in outputs] == given
    assert outputs[1].prompt_token_ids == [104, 105]
    assert outputs[2].prompt_token_ids_len == 3


def test_the_callers_objects_are_not_changed(llm: LLM) -> None:
    prompts: list[Any] = [{"prompt": "a", "prompt_token_ids": [97], "multimodal_data": {"image": []}}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    params = SamplingParams(stop=["x"], logits_processors_args={"logit_bias": {1: 2}})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    extra = {"enable_thinking": False}
    before = copy.deepcopy((prompts, messages, params, tools, extra))
    llm.generate(prompts, params, use_tqdm=False)
    llm.chat(messages, params, use_tqdm=False, tools=tools, chat_template_kwargs=extra)
    assert (prompts, messages, params, tools, extra) == before


def test_an_empty_batch_is_an_empty_list(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.generate([], []) == []
    assert llm.chat([]) == []
    assert list(llm.generate([], stream=True)) == []


@pytest.mark.parametrize(
    ("prompts", "kind", "message"),
    [
        (None, ValueError, "prompts must be given"),
        (5, TypeError, "prompts must be a str"),
        (["a", 5], TypeError, r"prompts\[1\] has an invalid type"),
        (["a", None], TypeError, r"prompts\[1\]"),
        (["a", [1, "b"]], TypeError, r"prompts\[1\]"),
        (["a", []], ValueError, r"prompts\[1\] has no token ids"),
        (["a", ""], ValueError, r"prompts\[1\]: the prompt has no tokens"),
        ("", ValueError, "the prompt has no tokens"),
        ({}, ValueError, "must hold 'prompt'"),
        ({"prompt_token_ids": [1]}, ValueError, "must hold 'prompt'"),
        ({"prompt": "a", "multimodal_data": {"image": [object()]}}, ValueError, r"\['image'\] .* takes text only"),
        ({"prompt": "a", "multimodal_data": {"image": [1, 2]}}, ValueError, "limit_mm_per_prompt allows 1"),
        ({"prompt": "a", "multimodal_data": {"smell": [1]}}, ValueError, "'smell'"),
        (["a", {"text": "b"}], ValueError, r"prompts\[1\] must hold 'prompt'"),
    ],
)
def test_wrong_prompts_raise_before_anything_runs(
    llm: LLM, engine: FakeEngine, prompts: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        llm.generate(prompts)
    with pytest.raises(kind, match=message):
        llm.generate(prompts, stream=True)
    assert engine.requests == []


def test_prompts_that_are_too_long_are_engine_errors_400(llm: LLM, engine: FakeEngine) -> None:
    with pytest.raises(EngineError, match=r"prompts\[1\]: the prompt has 600 tokens") as caught:
        llm.generate(["a", "b" * 600])
    assert isinstance(caught.value, PromptTooLongError)
    assert caught.value.error_code == 400
    assert engine.requests == []


# Sampling parameters


def test_sampling_params_one_for_all_or_one_each(llm: LLM, engine: FakeEngine) -> None:
    llm.generate(["a", "b"], SamplingParams(max_tokens=3), use_tqdm=False)
    llm.generate(["a", "b"], [SamplingParams(max_tokens=4)], use_tqdm=False)
    llm.generate(["a", "b"], [SamplingParams(max_tokens=5), SamplingParams(max_tokens=6)], use_tqdm=False)
    llm.generate(["a"], None, use_tqdm=False)
    assert [request.sampling.max_tokens for request in engine.requests] == [3, 3, 4, 4, 5, 6, None]


@pytest.mark.parametrize(
    ("params", "kind", "message"),
    [
        ([SamplingParams()] * 3, ValueError, r"same length as the prompts \(2\)"),
        ([], ValueError, "same length"),
        ({"temperature": 1}, TypeError, "must be a SamplingParams"),
        ([SamplingParams(), 5], TypeError, r"sampling_params\[1\]"),
    ],
)
def test_wrong_sampling_params(llm: LLM, params: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        llm.generate(["a", "b"], params)


def test_model_defaults_apply_where_nothing_is_set() -> None:
    with FakeEngine(generation_defaults={"temperature": 0.6}) as engine:
        LLM.from_engine(engine).generate(["a", "b"], [SamplingParams(), SamplingParams(temperature=0.1)], use_tqdm=False)
        assert [r.sampling.temperature for r in engine.requests] == [0.6, 0.1]


def test_priority_and_timeout_reach_the_engine(llm: LLM, engine: FakeEngine) -> None:
    llm.generate("a", SamplingParams(priority=-3, timeout=20.0), use_tqdm=False)
    assert (engine.requests[0].priority, engine.requests[0].timeout) == (-3, 20.0)


def test_nobody_reads_a_batch_along(llm: LLM, engine: FakeEngine) -> None:
    llm.generate("a", use_tqdm=False)
    list(llm.generate("a", use_tqdm=False, stream=True))
    assert [request.streamed for request in engine.requests] == [False, False]


def test_samples_are_consecutive_and_prompts_in_order(llm: LLM) -> None:
    params = [SamplingParams(n=2, seed=1), SamplingParams(), SamplingParams(n=3, seed=2)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [(o.prompt, o.outputs.index) for o in outputs] == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]
    assert "seed 2 sample 1" in outputs[4].outputs.text


def test_without_n_there_is_one_output_per_prompt_in_order() -> None:
    def by_length(prompt: str, request: GenerationRequest, index: int) -> str:
        return prompt * (10 - int(prompt))  # later prompts end first

    with FakeEngine(by_length, max_num_seqs=8) as engine:
        prompts = [str(i) for i in range(10)]
        outputs = LLM.from_engine(engine).generate(prompts, use_tqdm=False)
        assert [o.prompt for o in outputs] == prompts
        assert texts(outputs) == [p * (10 - int(p)) for p in prompts]


# What an output holds


def test_output_fields(llm: LLM) -> None:
    before = time.time()
    stopped, cut = llm.generate(["hello", "world"], [SamplingParams(), SamplingParams(max_tokens=4)], use_tqdm=False)
    assert (stopped.outputs.finish_reason, cut.outputs.finish_reason) == ("stop", "length")
    assert (stopped.finished, stopped.error_code, stopped.error_msg) == (True, 200, None)
    assert cut.outputs.token_ids == list(reply_to("world").encode())[:4]
    assert cut.outputs.completion_tokens == 4
    assert stopped.request_id != cut.request_id
    assert (cut.outputs.reasoning_content, cut.outputs.tool_calls, cut.outputs.logprobs) == (None, None, None)
    metrics = stopped.metrics
    assert before - 1 < metrics.arrival_time <= metrics.inference_start_time < time.time() + 1
    assert metrics.request_start_time == metrics.arrival_time
    assert metrics.first_token_time <= metrics.model_forward_time <= metrics.model_execute_time
    assert metrics.preprocess_cost_time >= 0
    assert metrics.time_in_queue >= 0
    parts = metrics.preprocess_cost_time + metrics.time_in_queue + metrics.model_forward_time
    assert parts == pytest.approx(metrics.model_execute_time, abs=1e-6)


def test_logprobs(llm: LLM) -> None:
    output = llm.generate("ab", SamplingParams(logprobs=1, prompt_logprobs=0, max_tokens=2), use_tqdm=False)[0]
    token = output.outputs.token_ids[0]
    row = output.outputs.logprobs[0]
    assert {t: (p.logprob, p.rank) for t, p in row.items()} == {token: (-0.5, 2), (token + 1) % 256: (-2.0, 1)}
    assert row[token].decoded_token == chr(token)
    assert output.outputs.logprob == -0.5
    assert output.outputs.top_logprobs.logprob_token_ids[0] == [token, token + 1]
    assert output.outputs.top_logprobs.sampled_token_ranks == [2, 2]
    assert output.prompt_logprobs[0] is None
    assert list(output.prompt_logprobs[1]) == [ord("b")]


def test_a_fault_ends_one_answer_and_not_the_batch(llm: LLM) -> None:
    good, bad, other = llm.generate(["a", "boom", "c"], use_tqdm=False)
    assert (bad.error_code, bad.error_msg, bad.finished) == (500, "the step failed", True)
    assert bad.outputs.finish_reason == "error"
    assert texts([good, other]) == [reply_to("a"), reply_to("c")]


# Chat


def test_chat_takes_one_conversation_or_a_batch(llm: LLM) -> None:
    one = [{"role": "user", "content": "hi"}]
    two = [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "ho"}]}]
    assert [o.prompt for o in llm.chat(one, use_tqdm=False)] == ["[user]hi[assistant]"]
    assert [o.prompt for o in llm.chat([one, two], use_tqdm=False)] == [
        "[user]hi[assistant]",
        "[system]be kind[user]ho[assistant]",
    ]


def test_chat_template_variables_and_overrides(llm: LLM, tmp_path: Any) -> None:
    message = [{"role": "user", "content": "hi"}]
    quiet = llm.chat(message, use_tqdm=False, chat_template_kwargs={"enable_thinking": False})
    assert quiet[0].prompt == "[user]hi[no thought][assistant]"
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }} {{ colour }}", encoding="utf-8")
    for template in ("{{ messages[0].content }} {{ colour }}", tmp_path / "t.jinja", str(tmp_path / "t.jinja")):
        output = llm.chat(message, use_tqdm=False, chat_template=template, chat_template_kwargs={"colour": "red"})
        assert output[0].prompt == "hi red"


def test_tools_are_one_or_many_or_objects(llm: LLM) -> None:
    message = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f"}}

    class Typed:
        def model_dump(self) -> dict[str, Any]:
            return tool

    for tools in (tool, [tool], [Typed()]):
        assert llm.chat(message, use_tqdm=False, tools=tools)[0].prompt == "[user]hi[tools]1[assistant]"
    assert llm.chat(message, use_tqdm=False, tools=[])[0].prompt == "[user]hi[assistant]"
    with pytest.raises(ValueError, match=r"tools\[1\]"):
        llm.chat(message, tools=[tool, {"name": "f"}])


def test_tools_that_the_template_does_not_show_are_refused(llm: LLM, engine: FakeEngine) -> None:
    message = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f"}}
    silent = "{{ messages[0].content }}"
    with pytest.raises(RequestError, match="chat template does not tell the model of them") as caught:
        llm.chat(message, tools=tool, chat_template=silent)
    assert caught.value.field == "tools"
    assert engine.requests == []
    assert llm.chat(message, use_tqdm=False, tools=[], chat_template=silent)[0].prompt == "hi"
    picky = "{{ messages[0].content if messages | length == 2 else raise_exception('two') }}{{ tools | length }}"
    assert llm.chat(message * 2, use_tqdm=False, tools=tool, chat_template=picky)[0].prompt == "hi1"


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        (None, ValueError, "messages must be given"),
        ("hi", TypeError, "messages must be a list"),
        ([[{"role": "user", "content": "a"}], []], ValueError, r"messages\[1\] has no messages"),
        ([[{"role": "user", "content": "a"}], "b"], TypeError, r"messages\[1\] must be a list of messages"),
        ([{"content": "a"}], ValueError, r"messages\[0\]\.role"),
        ([{"role": "user", "content": 5}], ValueError, r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], ValueError, r"unknown type 'hologram'"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], ValueError, r"unknown type \['text'\]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], ValueError, "neither 'image_url' nor 'uuid'"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "x"}}],
                }
            ],
            ValueError,
            r"messages\[0\]\['content'\]\[1\] \(image_url\) .* takes text only",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}] * 2}],
            ValueError,
            "limit_mm_per_prompt allows 1",
        ),
    ],
)
def test_wrong_conversations(llm: LLM, engine: FakeEngine, messages: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        llm.chat(messages)
    assert engine.requests == []


def test_wrong_chat_arguments(llm: LLM, engine: FakeEngine) -> None:
    message = [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match="chat_template_kwargs must be a dict"):
        llm.chat(message, chat_template_kwargs=["enable_thinking"])  # type: ignore[call-overload]
    for wrong in ({"messages": []}, {"tools": []}, {"self": 1, "add_generation_prompt": False}, {1: 2}):
        with pytest.raises(RequestError, match="chat_template_kwargs must"):
            llm.chat(message, chat_template_kwargs=wrong)
    assert llm.chat(message, use_tqdm=False, chat_template_kwargs={"self": 1})[0].prompt == "[user]hi[assistant]"
    with pytest.raises(ValueError, match="looks like a path"):
        llm.chat(message, chat_template="no_such.jinja")
    with pytest.raises(ValueError, match="line 1"):
        llm.chat(message, chat_template="{% if %}")
    engine.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        llm.chat(message)


# Reasoning and tools


@pytest.fixture
def thinking_llm() -> Iterator[LLM]:
    def reply(prompt: str, request: GenerationRequest, index: int) -> str:
        return 'hmm</think>Yes.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

    with FakeEngine(reply, reasoning_parser="qwen3", tool_call_parser="ernie-x1") as engine:
        yield LLM.from_engine(engine)


def test_thought_and_tool_calls_are_taken_out_of_the_text(thinking_llm: LLM) -> None:
    answer = thinking_llm.generate("Q<think>", use_tqdm=False)[0].outputs
    assert (answer.reasoning_content, answer.text) == ("hmm", "Yes.")
    assert [(call.name, call.arguments) for call in answer.tool_calls or []] == [("add", '{"a": 1}')]
    assert answer.reasoning_token_num == len("hmm</think")  # bytes are this model's tokens


def test_streamed_thought_and_text_join_to_the_whole(thinking_llm: LLM) -> None:
    whole = thinking_llm.generate("Q<think>", use_tqdm=False)[0]
    pieces = [step[0] for step in thinking_llm.generate("Q<think>", stream=True)]
    joined = copy.deepcopy(pieces[0])
    for piece in pieces[1:]:
        joined.add(piece)
    for name in ("text", "reasoning_content", "token_ids", "reasoning_token_num", "finish_reason", "completion_tokens"):
        assert joined.outputs[name] == whole.outputs[name]
    assert [call.name for call in joined.outputs.tool_calls] == ["add"]
    assert not any("<" in piece.outputs.text for piece in pieces)


def test_the_prompts_end_decides_whether_a_thought_is_open(thinking_llm: LLM) -> None:
    thinking_llm.generate(["Q<think>", "Q<think></think>", list(b"Q<think>")], use_tqdm=False)
    engine: Any = thinking_llm.engine
    assert [request.thinking for request in engine.requests] == [True, False, True]


def test_without_a_parser_thinking_is_unknown(llm: LLM, engine: FakeEngine) -> None:
    llm.generate("Q<think>", use_tqdm=False)
    assert engine.requests[0].thinking is None


# Construction


def test_a_parser_that_lacks_tokens_leaves_no_engine(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: object, options: object, *, streamed: bool) -> None:
        raise ModelLoadError("no such token")

    monkeypatch.setattr(llm_module, "Preparation", fail)
    monkeypatch.setattr(NativeEngine, "load", lambda config, progress: engine)
    with pytest.raises(ModelLoadError, match="no such token"):
        LLM("smollm2")
    with pytest.raises(EngineDeadError):
        engine.submit([], lambda deltas: None)


def test_construction_checks_before_it_loads() -> None:
    with pytest.raises(TypeError, match="'resoning_parser'; did you mean 'reasoning_parser'"):
        LLM("no-such-model", resoning_parser="qwen3")
    with pytest.raises(ConfigError, match="quantization='wint2'"):
        LLM("no-such-model", quantization="wint2")
    with pytest.raises(ConfigError, match="model must be"):
        LLM(None)  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        SamplingParams(n=0)
