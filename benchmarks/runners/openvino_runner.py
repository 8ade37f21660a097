"""OpenVINO GenAI: `ContinuousBatchingPipeline` on the GGUF file."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import GeneratingRunner, Job, serve

_STEP_TOKENS = 512  # a whole prompt in one step, as the other engines do it by default
_BLOCK = 32  # tokens of a KV block on a CPU


class OpenVinoRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = -(-job.kv_tokens // _BLOCK) + job.max_batch
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.max_num_seqs = job.max_batch
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": job.threads, **job.settings}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(job.model, scheduler, "CPU", properties)
        self.vocab_size = len(self.pipeline.get_tokenizer().get_vocab())
        self.warm_up()
        # BF16 and FP16 among them mean AVX-512, which is how to see what it runs with.
        formats = "/".join(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
        shown = ", ".join(f"{name} {value}" for name, value in properties.items())
        details = f"{formats}, {shown}, max_num_batched_tokens {_STEP_TOKENS}, no prefix cache"
        return {"version": version("openvino-genai"), "details": details}

    def generate(self, prompts: list[list[int]], output_tokens: list[int]) -> list[int]:
        results = self.pipeline.generate([_tensor(ids) for ids in prompts], [_greedy(count) for count in output_tokens])
        return [len(result.m_generation_ids[0]) for result in results]

    def token_times(self, prompts: list[list[int]], output_tokens: int) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in prompts]
        handles = [
            self.pipeline.add_request(number, _tensor(ids), _greedy(output_tokens)) for number, ids in enumerate(prompts)
        ]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter()
            for own, handle in zip(times, handles, strict=True):
                while handle.can_read():
                    own += [now] * sum(len(output.generated_ids) for output in handle.read().values())
        return times


def _tensor(ids: list[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([ids], np.int64))


def _greedy(output_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = output_tokens
    config.do_sample = False
    config.ignore_eos = True
    config.apply_chat_template = False
    return config


if __name__ == "__main__":
    serve(OpenVinoRunner())
