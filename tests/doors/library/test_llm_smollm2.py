"""`LLM` with the real model: what the original page's scripts do, and what the engine promises them."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trivium import LLM, AsyncLLM, GuidedDecodingParams, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm(smollm2: str) -> Iterator[LLM]:
    with LLM(smollm2, max_model_len=2048, max_num_seqs=4, kv_cache_memory=256_000_000) as llm:
        yield llm


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs.text for output in outputs]


def idle(llm: LLM) -> bool:
    stats = llm.engine.stats()
    return not (stats.running or stats.waiting or stats.used_blocks)


def test_batch_chat(llm: LLM) -> None:
    msg1 = [
        {"role": "system", "content": "I'm a helpful AI assistant."},
        {"role": "user", "content": "把李白的静夜思改写为现代诗"},
    ]
    msg2 = [{"role": "system", "content": "I'm a helpful AI assistant."}, {"role": "user", "content": "Write me a poem."}]
    outputs = llm.chat([msg1, msg2], SamplingParams(top_p=0.95, max_tokens=24), use_tqdm=False)
    assert len(outputs) == 2
    assert "静夜思" in outputs[0].prompt
    assert "poem" in outputs[1].prompt
    assert all(output.finished and output.outputs.text and output.error_code == 200 for output in outputs)


def test_generate(llm: LLM) -> None:
    outputs = llm.generate(["The capital of France is", "Once upon a time"], GREEDY, use_tqdm=False)
    assert "Paris" in outputs[0].outputs.text
    assert outputs[0].prompt == "The capital of France is"
    assert outputs[1].outputs.token_ids


def test_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode_prompt("The capital of France is")
    outputs = llm.generate([ids, {"prompt_token_ids": ids}, "The capital of France is"], GREEDY, use_tqdm=False)
    assert len(set(texts(outputs))) == 1


def test_greedy_answers_do_not_depend_on_the_batch(llm: LLM) -> None:
    alone = llm.chat(QUESTION, GREEDY, use_tqdm=False)[0].outputs
    crowd = [[{"role": "user", "content": f"Count to {i}."}] for i in range(6)]
    beside = llm.chat([*crowd, QUESTION], GREEDY, use_tqdm=False)[-1].outputs
    assert beside.token_ids == alone.token_ids


def test_seeds_repeat_and_samples_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, top_p=1.0, seed=11, n=3, max_tokens=12)
    first = llm.generate("The best thing about rain is", params, use_tqdm=False)
    again = llm.generate("The best thing about rain is", params, use_tqdm=False)
    assert texts(first) == texts(again)
    assert len(set(texts(first))) == 3
    assert [output.outputs.index for output in first] == [0, 1, 2]


def test_max_tokens_of_one_is_one_token(llm: LLM) -> None:
    output = llm.generate("Hello", SamplingParams(max_tokens=1), use_tqdm=False)[0].outputs
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_stop_strings_end_the_text_before_them(llm: LLM) -> None:
    free = llm.generate("One, two, three, four,", SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)[0].outputs.text
    stop = free[5:8]
    params = SamplingParams(temperature=0, max_tokens=24, stop=stop)
    output = llm.generate("One, two, three, four,", params, use_tqdm=False)[0].outputs
    assert output.text == free[: free.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    params.include_stop_str_in_output = True
    kept = llm.generate("One, two, three, four,", params, use_tqdm=False)[0].outputs
    assert kept.text == free[: free.index(stop) + len(stop)]


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=1)
    output = llm.generate("The capital of France is", params, use_tqdm=False)[0]
    assert output.outputs.logprobs is not None
    for token, row in zip(output.outputs.token_ids, output.outputs.logprobs, strict=True):
        assert row[token].rank == 1
        assert sorted(p.rank for p in row.values()) == [1, 2, 3]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_guided_json(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    params = SamplingParams(temperature=0, max_tokens=80, guided_decoding=GuidedDecodingParams(json=schema))
    answer = json.loads(llm.chat(QUESTION, params, use_tqdm=False)[0].outputs.text)
    assert set(answer) == {"city", "large"}
    choice = SamplingParams(temperature=0, guided_decoding=GuidedDecodingParams(choice=["yes", "no"]))
    assert llm.chat(QUESTION, choice, use_tqdm=False)[0].outputs.text in ("yes", "no")


def test_streaming_joins_to_the_whole(llm: LLM) -> None:
    whole = texts(llm.chat([QUESTION, QUESTION], GREEDY, use_tqdm=False))
    joined = ["", ""]
    for step in llm.chat([QUESTION, QUESTION], GREEDY, stream=True):
        for i, piece in enumerate(step):
            joined[i] += piece.outputs.text if piece is not None else ""
    assert joined == whole


def test_closing_a_stream_frees_everything(llm: LLM) -> None:
    stream = llm.generate(["Tell me a long story."] * 8, SamplingParams(max_tokens=500, ignore_eos=True), stream=True)
    next(stream)
    stream.close()
    assert idle(llm)


def test_ctrl_c_leaves_the_engine_clean(llm: LLM) -> None:
    before = texts(llm.chat(QUESTION, GREEDY, use_tqdm=False))
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Tell me a long story."] * 16, SamplingParams(max_tokens=1500, ignore_eos=True), use_tqdm=False)
    timer.join()
    assert idle(llm)
    assert texts(llm.chat(QUESTION, GREEDY, use_tqdm=False)) == before


def test_a_deadline_ends_one_answer(llm: LLM) -> None:
    slow = SamplingParams(max_tokens=1500, ignore_eos=True, timeout=0.3)
    late, fine = llm.generate(["A long story:", "The capital of France is"], [slow, GREEDY], use_tqdm=False)
    assert (late.error_code, late.outputs.finish_reason) == (408, "timeout")
    assert late.outputs.text
    assert fine.error_code == 200


def test_too_long_prompts_name_their_index(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompts\[1\]: the prompt has \d+ tokens") as caught:
        llm.generate(["short", "long " * 3000])
    assert caught.value.error_code == 400  # type: ignore[attr-defined]


def test_repeated_prompts_come_from_the_prefix_cache(llm: LLM) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    llm.generate(prompt, GREEDY, use_tqdm=False)
    again = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert again.num_cached_tokens >= 64
    assert again.metrics.gpu_cache_token_num == again.num_cached_tokens


def test_two_models_in_one_process(llm: LLM, smollm2: str) -> None:
    want = texts(llm.chat(QUESTION, GREEDY, use_tqdm=False))
    with LLM(smollm2, max_model_len=512, max_num_seqs=1, kv_cache_memory=64_000_000) as other:
        assert texts(other.chat(QUESTION, GREEDY, use_tqdm=False)) == want
        streams = llm.chat(QUESTION, GREEDY, stream=True), other.chat(QUESTION, GREEDY, stream=True)
        joined = ["".join(step[0].outputs.text for step in stream if step[0] is not None) for stream in streams]
        assert joined == want * 2
    assert texts(llm.chat(QUESTION, GREEDY, use_tqdm=False)) == want


def test_async_llm(smollm2: str) -> None:
    async def main() -> str:
        async with await AsyncLLM.load(smollm2, max_model_len=512, max_num_seqs=2, kv_cache_memory=64_000_000) as llm:
            return "".join([piece.outputs.text async for piece in llm.generate("The capital of France is", GREEDY)])

    assert "Paris" in asyncio.run(main())
