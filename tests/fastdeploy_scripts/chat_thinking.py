"""A reasoning parser, and the thought switched off for one call."""

from fastdeploy.engine.sampling_params import SamplingParams
from fastdeploy.entrypoints.llm import LLM

llm = LLM(
    model="baidu/ERNIE-4.5-VL-28B-A3B-Paddle",
    tensor_parallel_size=1,
    max_model_len=32768,
    limit_mm_per_prompt={"image": 100},
    reasoning_parser="ernie-45-vl",
    num_gpu_blocks_override=600,
)
outputs = llm.chat(
    messages=[{"role": "user", "content": [{"type": "text", "text": "Which century was it made in?"}]}],
    sampling_params=SamplingParams(max_tokens=48),
    chat_template_kwargs={"enable_thinking": False},
)

for output in outputs:
    print("prompt:", output.prompt)
    assert isinstance(output.outputs.text, str)
    assert output.outputs.reasoning_content is None
