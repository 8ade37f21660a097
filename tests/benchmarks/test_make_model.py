"""The files that `benchmarks/make_model.py` writes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from benchmark_parts import benchmark
from gguf import GGMLQuantizationType as Kind

from trivium import LLM, SamplingParams

make_model = benchmark("make_model")

TINY = make_model.Shape(hidden=256, layers=2, heads=4, kv_heads=2, head_dim=64, inner=512, vocab=49200, context=256)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K])
def test_random_blocks_are_weights_of_a_usual_size(kind: Kind) -> None:
    blocks = make_model.random_blocks(kind, 64, 1024, np.random.default_rng(1))
    values = gguf.quants.dequantize(blocks, kind)
    assert values.shape == (64, 1024)
    assert abs(values.mean()) < 5e-4
    assert values.std() == pytest.approx(make_model.WEIGHT, rel=0.02)


def test_a_format_without_random_blocks_is_named() -> None:
    with pytest.raises(ValueError, match="Q5_K"):
        make_model.random_blocks(Kind.Q5_K, 1, 256, np.random.default_rng(1))


def test_the_mix_is_that_of_llama_cpp() -> None:
    kinds = [make_model.k_mix("ffn_down", layer, 28) for layer in range(28)]
    assert [layer for layer in range(28) if kinds[layer] is Kind.Q6_K] == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert make_model.k_mix("attn_q", 0, 28) is Kind.Q4_K
    assert make_model.k_mix("token_embd", 0, 28) is Kind.Q6_K


@pytest.mark.parametrize("name", make_model.RECIPES)
def test_a_random_model_answers(name: str, smollm2: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    make_model.write_random(path, name, TINY, smollm2)
    with LLM(str(path), num_kv_blocks=4) as llm:
        (output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True), use_tqdm=False)
        assert len(output.outputs.token_ids) == 4
        assert llm.engine.model_info.vocab_size == TINY.vocab


def test_a_tokenizer_that_is_too_large_is_refused(smollm2: str, tmp_path: Path) -> None:
    shape = make_model.Shape(vocab=1000)
    with pytest.raises(SystemExit, match="49152 tokens, more than 1000"):
        make_model.write_random(tmp_path / "m.gguf", "q8_0", shape, smollm2)


def test_requantized_matrices_are_near_the_old_ones(tmp_path: Path) -> None:
    numbers = np.random.default_rng(2)
    matrix, norm = numbers.normal(size=(8, 64)).astype(np.float32), numbers.normal(size=64).astype(np.float32)
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("m.weight", gguf.quants.quantize(matrix, Kind.Q4_1), raw_dtype=Kind.Q4_1)
    writer.add_tensor("n.weight", norm)
    make_model.finish(writer)
    make_model.requantize(target, "q8_0", str(source))
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(target)
    assert new.fields["llama.context_length"].contents() == 77
    assert new.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert [tensor.tensor_type for tensor in new.tensors] == [Kind.Q8_0, Kind.F32]
    before = gguf.quants.dequantize(old.tensors[0].data, Kind.Q4_1)
    np.testing.assert_allclose(gguf.quants.dequantize(new.tensors[0].data, Kind.Q8_0), before, atol=0.02)
    np.testing.assert_array_equal(new.tensors[1].data, norm)
