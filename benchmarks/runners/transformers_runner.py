"""transformers' `generate` on the same GGUF file, whose weights it expands to float32."""

from __future__ import annotations

import os

import torch
import transformers
from protocol import GeneratingRunner, Job, serve

_GROUP = 8  # sequences of different lengths that run together


class TransformersRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        torch.set_num_threads(job.threads)
        transformers.logging.disable_progress_bar()
        folder, file = os.path.split(os.path.abspath(job.model))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.float32, **job.settings
        ).eval()
        self.vocab_size = self.model.config.vocab_size
        self.warm_up()
        return {
            "version": transformers.__version__,
            "details": f"torch {torch.__version__}, float32, {torch.get_num_threads()} threads",
        }

    def generate(self, prompts: list[list[int]], output_tokens: list[int]) -> list[int]:
        """Prompts of one length run together; others in groups of like output lengths, filled up on the left.

        A group runs until its longest output is done; the surplus of the others does not count.
        """
        same = len({len(ids) for ids in prompts}) == len(set(output_tokens)) == 1
        size = len(prompts) if same else _GROUP
        order = sorted(range(len(prompts)), key=lambda number: output_tokens[number])
        counts = [0] * len(prompts)
        for start in range(0, len(order), size):
            group = order[start : start + size]
            made = self._generate_group([prompts[number] for number in group], max(output_tokens[number] for number in group))
            for number in group:
                counts[number] = min(made, output_tokens[number])
        return counts

    def _generate_group(self, prompts: list[list[int]], output_tokens: int) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            outputs = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=output_tokens,
                min_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int(outputs.shape[1]) - longest


if __name__ == "__main__":
    serve(TransformersRunner())
