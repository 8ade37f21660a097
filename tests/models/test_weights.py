from __future__ import annotations

import numpy as np
import pytest
from shaped_source import Source

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.families.weights import ErnieWeights, GgufWeights, HuggingFaceWeights, Weight, is_transposed


def read(weight: Weight) -> np.ndarray:
    return weight.read().view(np.float32).reshape(weight.shape)


SIZES = (64, 32, 32)  # q, k, v
PADDLE: dict[str, tuple[int, ...]] = {
    "ernie.embed_tokens.weight": (100, 48),
    "ernie.norm.weight": (48,),
    "lm_head.weight": (48, 100),
    "ernie.layers.0.self_attn.qkv_proj.weight": (48, 128),
    "ernie.layers.0.self_attn.qkv_proj.bias": (128,),
    "ernie.layers.0.self_attn.o_proj.weight": (64, 48),
    "ernie.layers.0.mlp.up_gate_proj.weight": (48, 192),
    "ernie.layers.0.mlp.down_proj.weight": (96, 48),
    "ernie.layers.1.mlp.gate.weight": (48, 8),
    "ernie.layers.1.mlp.moe_statics.e_score_correction_bias": (1, 8),
    "ernie.layers.1.mlp.shared_experts.up_gate_proj.weight": (48, 40),
    "ernie.layers.1.mlp.experts.3.up_gate_proj.weight": (48, 40),
    "ernie.layers.1.mlp.experts.3.down_proj.weight": (20, 48),
}


class TestErnieLayouts:
    def weights(self) -> ErnieWeights:
        return ErnieWeights(Source(PADDLE), SIZES, transposed=True)

    def test_the_layout_is_told_by_shapes(self) -> None:
        assert is_transposed(Source(PADDLE), SIZES, 48, 96)
        torch = {"model.layers.0.self_attn.k_proj.weight": (32, 48)}
        assert not is_transposed(Source(torch), SIZES, 48, 96)

    def test_square_matrices_leave_it_to_the_others(self) -> None:
        shapes = {"self_attn.q_proj": (64, 64), "self_attn.o_proj": (64, 64), "mlp.down_proj": (96, 64)}
        source = Source({f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()})
        assert is_transposed(source, SIZES, 64, 96)

    def test_nothing_but_square_matrices_leaves_it_to_the_prefix(self) -> None:
        for prefix in ("ernie", "model"):
            source = Source({f"{prefix}.embed_tokens.weight": (9, 64), f"{prefix}.layers.0.mlp.down_proj.weight": (64, 64)})
            assert is_transposed(source, SIZES, 64, 64) == (prefix == "ernie")

    def test_q_k_v_are_cut_from_one_tensor(self) -> None:
        fused = np.arange(48 * 128, dtype=np.float32).reshape(48, 128).T
        for name, start, stop in (("q", 0, 64), ("k", 64, 96), ("v", 96, 128)):
            weight = self.weights().find(name, 0)
            assert weight is not None
            assert weight.shape == (stop - start, 48)
            assert weight.nbytes == 4 * 48 * (stop - start)
            np.testing.assert_array_equal(read(weight), fused[start:stop])
            bias = self.weights().find(f"{name}_bias", 0)
            assert bias is not None
            np.testing.assert_array_equal(read(bias), np.arange(start, stop))

    def test_the_gate_is_the_first_half(self) -> None:
        fused = np.arange(48 * 40, dtype=np.float32).reshape(48, 40).T
        for part, rows in (("gate", fused[:20]), ("up", fused[20:])):
            for weight in (self.weights().find(f"shared.{part}", 1), self.weights().find(f"expert.{part}", 1, 3)):
                assert weight is not None
                np.testing.assert_array_equal(read(weight), rows)

    @pytest.mark.parametrize(
        ("name", "layer", "expert", "shape"),
        [
            ("embedding", None, None, (100, 48)),
            ("output", None, None, (100, 48)),
            ("final_norm", None, None, (48,)),
            ("attention_output", 0, None, (48, 64)),
            ("down", 0, None, (48, 96)),
            ("router", 1, None, (8, 48)),
            ("router_bias", 1, None, (1, 8)),
            ("expert.down", 1, 3, (48, 20)),
        ],
    )
    def test_orientation(self, name: str, layer: int | None, expert: int | None, shape: tuple[int, ...]) -> None:
        weight = self.weights().find(name, layer, expert)
        assert weight is not None
        assert weight.shape == shape

    def test_a_fused_tensor_of_another_size_is_not_cut(self) -> None:
        weight = ErnieWeights(Source(PADDLE), (64, 32, 16), transposed=True).find("q", 0)
        assert weight is not None
        assert weight.shape == (128, 48)

    def test_what_is_missing(self) -> None:
        assert self.weights().find("down", 5) is None
        assert self.weights().tensor_name("down", 5) == "ernie.layers.5.mlp.down_proj.weight"

    def test_blocks_cannot_be_transposed(self) -> None:
        quantized = Tensor("w", TensorType.Q8_0, (32, 32), np.zeros(32 * 34, np.uint8))
        with pytest.raises(UnsupportedModelError, match="'w' of type Q8_0"):
            Weight.whole(quantized, transposed=True).read()


class TestStackedExperts:
    def test_transformers_5_in_memory_form(self) -> None:
        stacked = np.arange(3 * 8 * 4, dtype=np.float32).reshape(3, 8, 4)
        prefix = "model.layers.2.mlp.experts."
        weights = HuggingFaceWeights(Source({prefix + "gate_up_proj": (3, 8, 4), prefix + "down_proj": (3, 4, 4)}))
        gate, up, down = (weights.find(f"expert.{part}", 2, 1) for part in ("gate", "up", "down"))
        assert gate is not None
        assert up is not None
        assert down is not None
        np.testing.assert_array_equal(read(gate), stacked[1, :4])
        np.testing.assert_array_equal(read(up), stacked[1, 4:])
        assert down.shape == (4, 4)

    @pytest.mark.parametrize("shape", [(2, 8, 4), (8, 4)])
    def test_too_few_experts(self, shape: tuple[int, ...]) -> None:
        name = "blk.0.ffn_gate_exps.weight"
        with pytest.raises(ModelLoadError, match=name.replace(".", r"\.")):
            GgufWeights(Source({name: shape})).find("expert.gate", 0, 2)

    def test_gguf(self) -> None:
        weight = GgufWeights(Source({"blk.0.ffn_down_exps.weight": (3, 8, 4)})).find("expert.down", 0, 2)
        assert weight is not None
        np.testing.assert_array_equal(read(weight), np.arange(64, 96, dtype=np.float32).reshape(8, 4))


def test_a_scalar_tensor_is_no_weight() -> None:
    with pytest.raises(ModelLoadError, match=r"norm\.weight.*scalar"):
        HuggingFaceWeights(Source({"model.norm.weight": ()})).find("final_norm")
