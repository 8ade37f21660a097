from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shaped_source import Source

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.families import FAMILIES, Decoder, decoder_from_gguf, decoder_from_hf
from trivium.models.fields import Fields

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ERNIE_EXPERTS = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2}


def hf(architecture: str = "LlamaForCausalLM", source: Source | None = None, **config: Any) -> Decoder:
    values = {**HF, "architectures": [architecture], **config}
    return decoder_from_hf(Fields(values, "config.json"), source or Source({}))


def gguf(architecture: str = "llama", tensors: tuple[str, ...] = (), **metadata: Any) -> Decoder:
    values: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": 64,
        f"{architecture}.block_count": 3,
        f"{architecture}.feed_forward_length": 96,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in metadata.items():
        values[f"{architecture}.{key.replace('__', '.')}"] = value
    source = Source({"token_embd.weight": (100, 64), **dict.fromkeys(tensors, (1,))})
    return decoder_from_gguf(Fields(values, "model.gguf"), source)


class TestNames:
    @pytest.mark.parametrize("name", [name for family in FAMILIES for name in family.hf_names if "CausalLM" in name])
    def test_every_class_name_is_found(self, name: str) -> None:
        assert hf(name, **{**EXPERTS, **ERNIE_EXPERTS}).spec.num_layers == 4

    @pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
    def test_model_type_decides_without_architectures(self, family: Any) -> None:
        values = {**HF, "architectures": None, "model_type": family.hf_names[-1], **EXPERTS, **ERNIE_EXPERTS}
        spec = decoder_from_hf(Fields(values, "config.json"), Source({})).spec
        assert spec.architecture == family.name

    def test_no_name_belongs_to_two_families(self) -> None:
        for kind in ("hf_names", "gguf_names"):
            names = [name for family in FAMILIES for name in getattr(family, kind)]
            assert len(names) == len(set(names))

    def test_an_unknown_class_is_named_with_the_supported_ones(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"'Gemma3ForCausalLM'.*LlamaForCausalLM.*Qwen3MoeForCausalLM"):
            hf("Gemma3ForCausalLM")

    def test_the_class_stands_above_the_model_type(self) -> None:
        with pytest.raises(UnsupportedModelError, match="LlamaForSequenceClassification"):
            hf("LlamaForSequenceClassification", model_type="llama")

    def test_a_config_without_either(self) -> None:
        with pytest.raises(ModelLoadError, match="model_type"):
            decoder_from_hf(Fields({"architectures": []}, "config.json"), Source({}))

    @pytest.mark.parametrize("architecture", ["mistral3", "gemma3", "phi3"])
    def test_an_unknown_gguf_architecture_is_named(self, architecture: str) -> None:
        with pytest.raises(UnsupportedModelError, match=rf"'{architecture}'.*llama, qwen2, qwen3, qwen3moe"):
            gguf(architecture)

    @pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "bitsandbytes"])
    def test_a_quantized_folder_is_refused_with_advice(self, method: str) -> None:
        with pytest.raises(UnsupportedModelError, match=rf"{method}.*wint8.*GGUF"):
            hf(quantization_config={"quant_method": method, "bits": 4})

    def test_a_gguf_mixtral_is_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match="Mixtral"):
            gguf(expert_count=8)


class TestLlama:
    def test_common_fields(self) -> None:
        spec = hf().spec
        assert (spec.architecture, spec.vocab_size, spec.hidden_size, spec.intermediate_size) == ("llama", 100, 64, 96)
        assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.num_layers) == (4, 2, 16, 4)
        assert (spec.norm_eps, spec.max_position, spec.attention_scale) == (1e-5, 128, 0.25)
        assert not any((spec.tied_output, spec.qk_norm, spec.qkv_bias, spec.output_bias, spec.mlp_bias))
        assert spec.moe is None
        assert all(layer.window is None and not layer.moe for layer in spec.layers)

    def test_biases(self) -> None:
        spec = hf(attention_bias=True, mlp_bias=True).spec
        assert spec.qkv_bias
        assert spec.output_bias
        assert spec.mlp_bias

    def test_head_size_of_its_own(self) -> None:
        spec = hf(head_dim=24).spec
        assert spec.head_dim == 24
        assert spec.rope.rotary_dim == 24
        assert spec.attention_scale == 24**-0.5

    def test_old_configs_have_no_key_value_heads(self) -> None:
        assert hf(num_key_value_heads=None).spec.num_kv_heads == 4

    def test_tied_output(self) -> None:
        assert hf(tie_word_embeddings=True).spec.tied_output
        assert gguf().spec.tied_output
        assert not gguf(tensors=("output.weight",)).spec.tied_output

    def test_pairs_are_neighbours_in_gguf_files_only(self) -> None:
        assert gguf().spec.rope.interleaved
        assert not hf().spec.rope.interleaved

    def test_gguf_biases_are_told_by_the_tensors(self) -> None:
        spec = gguf(tensors=("blk.0.attn_q.bias", "blk.0.attn_output.bias")).spec
        assert spec.qkv_bias
        assert spec.output_bias
        assert not spec.mlp_bias

    def test_gguf_head_size(self) -> None:
        assert gguf().spec.head_dim == 16
        assert gguf(attention__key_length=32, attention__value_length=32).spec.head_dim == 32

    def test_gguf_values_per_layer_must_be_one_value(self) -> None:
        assert gguf(attention__head_count_kv=np.array([2, 2, 2])).spec.num_kv_heads == 2
        with pytest.raises(UnsupportedModelError, match=r"head_count_kv.*differs by layer"):
            gguf(attention__head_count_kv=np.array([2, 0, 2]))

    def test_gguf_keys_and_values_must_have_one_size(self) -> None:
        with pytest.raises(UnsupportedModelError, match="value_length"):
            gguf(attention__key_length=32, attention__value_length=64)


class TestMistral:
    def test_every_layer_has_the_window(self) -> None:
        assert [layer.window for layer in hf("MistralForCausalLM", sliding_window=16).spec.layers] == [16] * 4

    def test_null_means_none_and_missing_the_default(self) -> None:
        assert hf("MistralForCausalLM", sliding_window=None).spec.layers[0].window is None
        assert hf("MistralForCausalLM").spec.layers[0].window == 4096


class TestQwen:
    @pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
    def test_windows(self, name: str) -> None:
        window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}
        assert [layer.window for layer in hf(name, **window).spec.layers] == [None, None, None, 16]
        assert [layer.window for layer in hf(name, **{**window, "use_sliding_window": False}).spec.layers] == [None] * 4
        types = ["sliding_attention", "full_attention"] * 2
        assert [layer.window for layer in hf(name, **window, layer_types=types).spec.layers] == [16, None, 16, None]

    @pytest.mark.parametrize(
        ("types", "named"),
        [
            (["full_attention"], "must list 4 layers"),
            (["linear_attention"] * 4, "linear_attention"),
            ("full", "must list"),
            (["sliding_attention"] * 4, "not set"),
        ],
    )
    def test_wrong_layer_types(self, types: object, named: str) -> None:
        with pytest.raises(ModelLoadError, match=rf"layer_types.*{named}"):
            hf("Qwen2ForCausalLM", layer_types=types)

    def test_qwen2_has_biases_on_q_k_v_only(self) -> None:
        spec = hf("Qwen2ForCausalLM").spec
        assert spec.qkv_bias
        assert not spec.output_bias

    def test_qwen3_normalises_heads(self) -> None:
        spec = hf("Qwen3ForCausalLM", head_dim=32).spec
        assert spec.qk_norm
        assert not spec.qkv_bias
        assert spec.head_dim == 32
        assert hf("Qwen3ForCausalLM").spec.head_dim == 128

    @pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
    def test_gguf_pairs_are_halves(self, architecture: str) -> None:
        spec = gguf(architecture).spec
        assert not spec.rope.interleaved
        assert spec.qk_norm == (architecture == "qwen3")


class TestQwen3Moe:
    def test_routing(self) -> None:
        moe = hf("Qwen3MoeForCausalLM", **EXPERTS, norm_topk_prob=True).spec.moe
        assert moe is not None
        assert (moe.num_experts, moe.experts_per_token, moe.expert_size, moe.shared_size) == (8, 2, 32, 0)
        assert (moe.scoring, moe.normalize, moe.scale) == ("softmax", True, 1.0)

    def test_weights_are_not_normalised_unless_asked_for(self) -> None:
        moe = hf("Qwen3MoeForCausalLM", **EXPERTS).spec.moe
        assert moe is not None
        assert not moe.normalize

    def test_the_name_that_transformers_5_writes(self) -> None:
        config = {**EXPERTS, "num_experts": None, "num_local_experts": 5}
        moe = hf("Qwen3MoeForCausalLM", **config).spec.moe
        assert moe is not None
        assert moe.num_experts == 5

    def test_which_layers_have_experts(self) -> None:
        layers = hf("Qwen3MoeForCausalLM", **EXPERTS, mlp_only_layers=[3], decoder_sparse_step=2).spec.layers
        assert [layer.moe for layer in layers] == [False, True, False, False]
        assert all(layer.moe for layer in hf("Qwen3MoeForCausalLM", **EXPERTS).spec.layers)

    def test_gguf(self) -> None:
        spec = gguf(
            "qwen3moe", ("blk.1.ffn_gate_inp.weight",), expert_count=8, expert_used_count=2, expert_feed_forward_length=24
        ).spec
        assert [layer.moe for layer in spec.layers] == [False, True, False]
        assert spec.moe is not None
        assert (spec.moe.num_experts, spec.moe.experts_per_token, spec.moe.expert_size) == (8, 2, 24)
        assert spec.moe.normalize
        assert spec.qk_norm

    def test_gguf_without_an_expert_size(self) -> None:
        moe = gguf("qwen3moe", expert_count=8, expert_used_count=2).spec.moe
        assert moe is not None
        assert moe.expert_size == 48

    def test_gguf_with_another_scoring(self) -> None:
        with pytest.raises(UnsupportedModelError, match="expert_gating_func"):
            gguf("qwen3moe", expert_count=8, expert_used_count=2, expert_gating_func=2)

    def test_more_experts_used_than_there_are(self) -> None:
        with pytest.raises(ModelLoadError, match="9 experts per token"):
            hf("Qwen3MoeForCausalLM", **{**EXPERTS, "num_experts_per_tok": 9})

    def test_too_many_experts_together(self) -> None:
        with pytest.raises(ModelLoadError, match="131072 experts together, got 204800"):
            hf("Qwen3MoeForCausalLM", **{**EXPERTS, "num_experts": 1024, "num_hidden_layers": 200})
        with pytest.raises(ModelLoadError, match="131072 experts together, got 204800"):
            gguf("qwen3moe", expert_count=1024, expert_used_count=2, block_count=200)


class TestErnie:
    def test_defaults(self) -> None:
        spec = hf("Ernie4_5ForCausalLM", rms_norm_eps=None).spec
        assert spec.rope.interleaved
        assert spec.tied_output
        assert spec.head_dim == 128
        assert spec.norm_eps == 1e-5
        assert spec.rope.inv_freq[1] == pytest.approx(500_000 ** (-1 / 64))
        assert not spec.qkv_bias

    def test_one_switch_for_all_biases(self) -> None:
        spec = hf("Ernie4_5ForCausalLM", use_bias=True).spec
        assert spec.qkv_bias
        assert spec.output_bias
        assert spec.mlp_bias

    def test_experts(self) -> None:
        spec = hf("Ernie4_5_MoeForCausalLM", **ERNIE_EXPERTS, moe_norm_min=1e-9).spec
        assert spec.moe is not None
        assert (spec.moe.num_experts, spec.moe.experts_per_token, spec.moe.expert_size) == (8, 2, 32)
        assert (spec.moe.shared_size, spec.moe.normalize, spec.moe.norm_min) == (64, True, 1e-9)
        assert [layer.moe for layer in spec.layers] == [False, True, True, True]
        assert spec.head_dim == 16

    def test_which_layers_have_experts(self) -> None:
        config = {"moe_layer_start_index": 0, "moe_layer_end_index": 2, "moe_layer_interval": 2, **ERNIE_EXPERTS}
        assert [layer.moe for layer in hf("Ernie4_5_MoeForCausalLM", **config).spec.layers] == [False, True, False, False]

    @pytest.mark.parametrize("config", [{"moe_gate_act": "sigmoid"}, {"use_bias": True}])
    def test_forms_that_are_not_supported(self, config: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedModelError, match=next(iter(config))):
            hf("Ernie4_5_MoeForCausalLM", **ERNIE_EXPERTS, **config)

    def test_gguf(self) -> None:
        spec = gguf(
            "ernie4_5-moe",
            ("blk.2.ffn_gate_inp.weight",),
            expert_count=8,
            expert_used_count=2,
            expert_feed_forward_length=24,
            expert_shared_count=2,
            expert_shared_feed_forward_length=48000,
        ).spec
        assert spec.rope.interleaved
        assert spec.moe is not None
        assert (spec.moe.shared_size, spec.moe.normalize) == (48, True)
        assert [layer.moe for layer in spec.layers] == [False, False, True]
        assert gguf("ernie4_5").spec.rope.interleaved


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 1 << 62, 64.5, float("nan"), "64", True, [64]])
def test_hostile_sizes_are_named(field: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=field):
        hf(**{field: value})


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"])
def test_sizes_must_be_there(field: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"config\.json: {field} must be .*, got nothing"):
        hf(**{field: None})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple"),
        ({"hidden_size": 66}, "hidden_size must be a multiple"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, got 'gelu'"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
    ],
)
def test_wrong_values_are_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        hf(**config)


@pytest.mark.parametrize(
    ("architecture", "config", "named"),
    [
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window"),
        ("Qwen3MoeForCausalLM", {**EXPERTS, "mlp_only_layers": "all"}, "mlp_only_layers"),
        ("Qwen3MoeForCausalLM", {**EXPERTS, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("Qwen3MoeForCausalLM", {**EXPERTS, "num_experts": 1 << 30}, "num_experts"),
        ("Qwen3MoeForCausalLM", {}, "num_experts"),
        ("Ernie4_5_MoeForCausalLM", {**ERNIE_EXPERTS, "moe_num_experts": [64, 64]}, "moe_num_experts"),
        ("Ernie4_5_MoeForCausalLM", {**ERNIE_EXPERTS, "moe_layer_interval": 0}, "moe_layer_interval"),
    ],
)
def test_wrong_values_of_families_are_named(architecture: str, config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        hf(architecture, **config)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"block_count": 1 << 31}, r"llama\.block_count"),
        ({"embedding_length": 0}, r"llama\.embedding_length"),
        ({"attention__head_count": 3}, r"llama\.attention\.head_count must be a multiple"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "epsilon"),
        ({"attention__key_length": 1 << 20}, "key_length"),
        ({"context_length": "128"}, "context_length"),
        ({"block_count": [[1], [2]]}, "block_count"),
        ({"block_count": np.array([0.5])}, "block_count"),
        ({"block_count": np.array([], np.int32)}, "block_count"),
    ],
)
def test_hostile_metadata_is_named(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        gguf(**metadata)
