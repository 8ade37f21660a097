"""Two conversations in one call."""

from fastdeploy import LLM, SamplingParams

system = {"role": "system", "content": "You answer briefly."}
messages = [
    [system, {"role": "user", "content": "用一句话介绍李白"}],
    [system, {"role": "user", "content": "Name three rivers."}],
]

sampling_params = SamplingParams(top_p=0.95, max_tokens=48)
llm = LLM(model="baidu/ERNIE-4.5-0.3B-Paddle", tensor_parallel_size=1, max_model_len=8192, num_gpu_blocks_override=640)
outputs = llm.chat(messages, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs.text
    print("prompt:", prompt)
    assert isinstance(generated_text, str)
    assert 1 <= len(output.outputs.token_ids) <= 48
