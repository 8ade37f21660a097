"""Trivium through its library door, as a script would use it."""

from __future__ import annotations

import time

from protocol import GeneratingRunner, Job, serve

from trivium import LLM, SamplingParams, __version__

_BLOCK = 64  # tokens of a KV block


class TriviumRunner(GeneratingRunner):
    def load(self, job: Job) -> dict[str, str]:
        # Greedy text of random prompts loops, which guesses from the prompt would turn into speed that no user sees.
        settings = {"prompt_lookup": False, "enable_prefix_caching": False, **job.settings}
        blocks = -(-job.kv_tokens // _BLOCK) + job.max_batch
        self.llm = LLM(job.model, num_threads=job.threads, max_num_seqs=job.max_batch, num_kv_blocks=blocks, **settings)
        self.vocab_size = self.llm.engine.model_info.vocab_size
        self.warm_up()
        from trivium import _native

        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        return {"version": __version__, "details": f"{_native.instruction_set()}, {_native.num_threads()} threads, {shown}"}

    def generate(self, prompts: list[list[int]], output_tokens: list[int]) -> list[int]:
        outputs = self.llm.generate(prompts, [_greedy(count) for count in output_tokens], use_tqdm=False)
        return [len(output.outputs.token_ids) for output in outputs]

    def token_times(self, prompts: list[list[int]], output_tokens: int) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in prompts]
        for step in self.llm.generate(prompts, _greedy(output_tokens), use_tqdm=False, stream=True):
            now = time.perf_counter()
            for own, piece in zip(times, step, strict=True):
                if piece is not None:
                    own += [now] * len(piece.outputs.token_ids)
        return times


def _greedy(output_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)


if __name__ == "__main__":
    serve(TriviumRunner())
