"""vLLM on the CPU. It has no kernels for GGUF there, so the weights are expanded to bfloat16, in a folder of its own."""

from __future__ import annotations

import os
import tempfile

# Before vLLM is imported. In one process, so that stopping the runner stops the engine.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")

import torch
import transformers
import vllm
from protocol import GeneratingRunner, Job, serve

_CONTEXT = 8192


class VllmRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        torch.set_num_threads(job.threads)
        self.folder = tempfile.TemporaryDirectory()
        _expand(job.model, self.folder.name)
        settings = {"enforce_eager": True, **job.settings}
        self.llm = vllm.LLM(
            self.folder.name,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=_CONTEXT,
            max_num_seqs=job.max_batch,
            enable_prefix_caching=False,
            **settings,
        )
        self.vocab_size = self.llm.llm_engine.model_config.get_vocab_size()
        self.warm_up()
        return {"version": vllm.__version__, "details": f"torch {torch.__version__}, bfloat16, {settings}"}

    def generate(self, prompts: list[list[int]], output_tokens: list[int]) -> list[int]:
        sampling = [
            vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False) for count in output_tokens
        ]
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        return [len(output.outputs[0].token_ids) for output in self.llm.generate(inputs, sampling, use_tqdm=False)]


def _expand(model: str, folder: str) -> None:
    """Write the model of a GGUF file as one of transformers."""
    source, file = os.path.split(os.path.abspath(model))
    expanded = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.bfloat16)
    # They are plain weights now, but transformers still calls them GGUF and would not save those.
    expanded.hf_quantizer = None
    if hasattr(expanded.config, "quantization_config"):
        del expanded.config.quantization_config
    expanded.save_pretrained(folder)


if __name__ == "__main__":
    serve(VllmRunner())
