"""OpenVINO GenAI: `LLMPipeline` on the GGUF file, with its continuous batching."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai
from protocol import GeneratingRunner, Job, serve

_STEP_TOKENS = 512  # a whole prompt in one step, as the other engines do it by default
_CACHE_GIGABYTES = 2


class OpenVinoRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GIGABYTES
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.max_num_seqs = job.max_batch
        scheduler.enable_prefix_caching = False
        self.pipeline = openvino_genai.LLMPipeline(
            job.model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=job.threads
        )
        self.vocab_size = len(self.pipeline.get_tokenizer().get_vocab())
        self.warm_up()
        return {
            "version": version("openvino-genai"),
            "details": f"INFERENCE_NUM_THREADS {job.threads}, max_num_batched_tokens {_STEP_TOKENS}, no prefix cache",
        }

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.do_sample = False
        config.ignore_eos = True
        config.apply_chat_template = False
        ids = np.array(prompts, np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return [len(tokens) for tokens in self.pipeline.generate(inputs, config).tokens]


if __name__ == "__main__":
    serve(OpenVinoRunner())
