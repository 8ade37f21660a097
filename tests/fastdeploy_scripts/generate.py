"""Continuing a prompt that the script has put together itself."""

import sys

from fastdeploy import LLM, SamplingParams
from fastdeploy.engine.request import CompletionOutput, RequestMetrics, RequestOutput

prompts = ["User: 写一篇短文。\nAssistant: 好的。"]

sampling_params = SamplingParams(top_p=0.95, max_tokens=48)
llm = LLM(model="baidu/ERNIE-4.5-21B-A3B-Base-Paddle", tensor_parallel_size=1, max_model_len=8192)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    assert isinstance(output, RequestOutput)
    assert isinstance(output.outputs, CompletionOutput)
    assert isinstance(output.metrics, RequestMetrics)
    assert output.prompt == prompts[0]
    print("arguments:", *sys.argv[1:])
