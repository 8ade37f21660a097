"""Trivium through its library door, as a script would use it."""

from __future__ import annotations

from protocol import GeneratingRunner, Job, serve

from trivium import LLM, SamplingParams, __version__


class TriviumRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        self.llm = LLM(job.model, num_threads=job.threads, max_num_seqs=job.max_batch, enable_prefix_caching=False)
        self.vocab_size = self.llm.engine.model_info.vocab_size
        self.warm_up()
        from trivium import _native

        return {"version": __version__, "details": f"{_native.instruction_set()}, {_native.num_threads()} threads"}

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[int]:
        sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        return [len(output.outputs.token_ids) for output in outputs]


if __name__ == "__main__":
    serve(TriviumRunner())
