"""The template rendered by the tokenizer, then `generate` with a dict."""

from fastdeploy.engine.sampling_params import SamplingParams
from fastdeploy.entrypoints.llm import LLM
from fastdeploy.input.ernie_tokenizer import ErnieBotTokenizer

PATH = "baidu/ERNIE-4.5-VL-28B-A3B-Paddle"
tokenizer = ErnieBotTokenizer.from_pretrained(PATH)
messages = [{"role": "user", "content": [{"type": "text", "text": "Which century was it made in?"}]}]
prompt = tokenizer.apply_chat_template(messages, tokenize=False)
images, videos = [], []

sampling_params = SamplingParams(temperature=0.1, max_tokens=48)
llm = LLM(
    model=PATH, tensor_parallel_size=1, max_model_len=8192, limit_mm_per_prompt={"image": 100}, reasoning_parser="ernie-45-vl"
)
outputs = llm.generate(
    prompts={"prompt": prompt, "multimodal_data": {"image": images, "video": videos}}, sampling_params=sampling_params
)

for output in outputs:
    print("prompt:", output.prompt["prompt"])
    assert output.prompt_token_ids == tokenizer.encode(prompt) == tokenizer.apply_chat_template(messages)
    assert tokenizer.decode(output.prompt_token_ids) == prompt
    assert isinstance(output.outputs.text, str)
