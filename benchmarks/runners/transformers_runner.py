"""transformers' `generate` on the same GGUF file, whose weights it expands to float32."""

from __future__ import annotations

import os

import torch
import transformers
from protocol import GeneratingRunner, Job, serve


class TransformersRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        torch.set_num_threads(job.threads)
        transformers.logging.disable_progress_bar()
        folder, file = os.path.split(os.path.abspath(job.model))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
        self.vocab_size = self.model.config.vocab_size
        self.warm_up()
        return {
            "version": transformers.__version__,
            "details": f"torch {torch.__version__}, float32, {torch.get_num_threads()} threads",
        }

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[int]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            outputs = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=output_tokens,
                min_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return [outputs.shape[1] - ids.shape[1]] * outputs.shape[0]


if __name__ == "__main__":
    serve(TransformersRunner())
