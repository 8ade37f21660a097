"""An image, which a text model cannot read."""

from fastdeploy.entrypoints.llm import LLM

llm = LLM(model="baidu/ERNIE-4.5-VL-28B-A3B-Paddle", max_model_len=1024, limit_mm_per_prompt={"image": 100})
llm.chat(
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
                {"type": "text", "text": "Which century was it made in?"},
            ],
        }
    ]
)
