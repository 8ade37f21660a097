"""What every family shares: the two kinds of checkpoint and how the common fields of a `DecoderSpec` are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.checkpoint import TensorSource, TensorType
from trivium.models.families.weights import GgufWeights, HuggingFaceWeights, Weights
from trivium.models.fields import Fields
from trivium.models.rope import RopeParameters
from trivium.models.spec import DecoderSpec, LayerSpec, MoeSpec

__all__ = ["Decoder", "Family", "GgufCheckpoint", "HuggingFaceCheckpoint"]

# Bounds of sizes: far above today's models, low enough that no product of two overflows or allocates the machine away
# before the tensors' shapes have been compared with them.
MAX_VOCAB = 1 << 22
MAX_HIDDEN = 1 << 17
MAX_INTERMEDIATE = 1 << 20
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_EXPERTS = 1024  # of a layer
MAX_ALL_EXPERTS = 1 << 17  # each is three matrices, however small: a hostile file shall not name millions
MAX_WINDOW = 1 << 27


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a family makes of a checkpoint."""

    spec: DecoderSpec
    weights: Weights


@dataclass(frozen=True, slots=True)
class HuggingFaceCheckpoint:
    """A folder's config.json and tensors. `max_model_len` is the context the user asked for, None: the model's own."""

    config: Fields
    source: TensorSource
    max_model_len: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.config.integer("hidden_size", 1, MAX_HIDDEN)

    @property
    def intermediate_size(self) -> int:
        return self.config.integer("intermediate_size", 1, MAX_INTERMEDIATE)

    @property
    def num_layers(self) -> int:
        return self.config.integer("num_hidden_layers", 1, MAX_LAYERS)

    def heads(self, default_head_dim: int | None = None) -> tuple[int, int, int]:
        """Heads, key-value heads and head size; without a default the head size is hidden_size / heads."""
        num_heads = self.config.integer("num_attention_heads", 1, MAX_HEADS)
        num_kv_heads = self.config.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
        if self.config.get("head_dim") is None and default_head_dim is None:
            default_head_dim = _divide(self.hidden_size, num_heads, self.config.name("hidden_size"), "attention heads")
        head_dim = self.config.integer("head_dim", 2, MAX_HEAD_DIM, default_head_dim)
        _divide(num_heads, num_kv_heads, self.config.name("num_attention_heads"), "key-value heads")
        return num_heads, num_kv_heads, head_dim

    def qkv_sizes(self, default_head_dim: int | None = None) -> tuple[int, int, int]:
        """Outputs of the query, key and value projections."""
        num_heads, num_kv_heads, head_dim = self.heads(default_head_dim)
        return num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim

    def window(self, default: int | None = None) -> int | None:
        """`sliding_window`; a null in the file means none, a missing key the family's default."""
        if "sliding_window" in self.config.values and self.config.get("sliding_window") is None:
            return None
        if self.config.get("sliding_window", default) is None:
            return None
        return self.config.integer("sliding_window", 1, MAX_WINDOW, default)

    def layer_windows(self) -> list[int | None]:
        """Qwen's windows: `use_sliding_window`, then `layer_types`, else every layer from `max_window_layers` on."""
        window = self.window() if self.config.boolean("use_sliding_window", False) else None
        first = self.config.integer("max_window_layers", 0, 1 << 31, 28)
        types = self.config.get("layer_types")
        if types is None:
            return [window if layer >= first else None for layer in range(self.num_layers)]
        name = self.config.name("layer_types")
        if not isinstance(types, list) or len(types) != self.num_layers:
            raise ModelLoadError(f"{name} must list {self.num_layers} layers, got {types!r:.80}")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise UnsupportedModelError(f"{name} must be full_attention or sliding_attention, got {kind!r:.80}")
        if "sliding_attention" in types and window is None:
            raise ModelLoadError(f"{name} has sliding_attention, but sliding_window or use_sliding_window is not set")
        return [window if kind == "sliding_attention" else None for kind in types]

    def decoder(
        self,
        architecture: str,
        *,
        layers: list[LayerSpec] | None = None,
        weights: Weights | None = None,
        default_head_dim: int | None = None,
        default_theta: float = 10_000.0,
        default_eps: float = 1e-6,
        default_tied: bool = False,
        interleaved: bool = False,
        **features: Any,
    ) -> Decoder:
        """The common fields, `features` of `DecoderSpec` on top; raises `ModelLoadError` naming the wrong field."""
        _require_silu(self.config)
        num_heads, num_kv_heads, head_dim = self.heads(default_head_dim)
        rope = RopeParameters.from_hf(self.config, head_dim, default_theta)
        spec = DecoderSpec(
            architecture=architecture,
            vocab_size=self.config.integer("vocab_size", 1, MAX_VOCAB),
            hidden_size=self.hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=self.intermediate_size,
            norm_eps=self.config.number("rms_norm_eps", 0.0, 1.0, default_eps),
            rope=rope.spec(interleaved=interleaved, max_model_len=self.max_model_len),
            max_position=rope.max_context(self.max_model_len),
            layers=tuple(layers or [LayerSpec()] * self.num_layers),
            attention_scale=head_dim**-0.5,
            tied_output=self.config.boolean("tie_word_embeddings", default_tied),
            extra={"rope": rope.rope_type},
            **features,
        )
        return Decoder(spec, weights or HuggingFaceWeights(self.source))


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A GGUF file's metadata and tensors. What a file has is told by its tensors: biases, experts, an output of its own."""

    metadata: Fields
    source: TensorSource
    max_model_len: int | None = None

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """`{architecture}.{key}`; an array with a value per layer must repeat one value."""
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name)
        if isinstance(value, np.ndarray):
            values = set(value.tolist())
            if len(values) != 1:
                raise UnsupportedModelError(f"{self.metadata.name(name)} differs by layer, which is not supported")
            return Fields({name: values.pop()}, self.metadata.label).integer(name, low, high)
        return self.metadata.integer(name, low, high, default)

    def _name(self, key: str) -> str:
        return self.metadata.name(f"{self.architecture}.{key}")

    @property
    def num_layers(self) -> int:
        return self.integer("block_count", 1, MAX_LAYERS)

    @property
    def hidden_size(self) -> int:
        return self.integer("embedding_length", 1, MAX_HIDDEN)

    @property
    def intermediate_size(self) -> int:
        return self.integer("feed_forward_length", 1, MAX_INTERMEDIATE)

    def heads(self) -> tuple[int, int, int]:
        """Heads, key-value heads and head size."""
        num_heads = self.integer("attention.head_count", 1, MAX_HEADS)
        num_kv_heads = self.integer("attention.head_count_kv", 1, MAX_HEADS, num_heads)
        _divide(num_heads, num_kv_heads, self._name("attention.head_count"), "key-value heads")
        default = None
        if self.metadata.get(f"{self.architecture}.attention.key_length") is None:
            default = _divide(self.hidden_size, num_heads, self._name("embedding_length"), "attention heads")
        head_dim = self.integer("attention.key_length", 2, MAX_HEAD_DIM, default)
        value_dim = self.integer("attention.value_length", 2, MAX_HEAD_DIM, head_dim)
        if value_dim != head_dim:
            raise UnsupportedModelError(
                f"{self._name('attention.value_length')} must equal key_length {head_dim}, got {value_dim}"
            )
        return num_heads, num_kv_heads, head_dim

    def has(self, tensor: str) -> bool:
        """Whether the first layer has a tensor, by its GGUF name without the block."""
        return f"blk.0.{tensor}" in self.source

    def moe_layers(self) -> list[LayerSpec]:
        """A layer with a router has experts."""
        return [LayerSpec(moe=f"blk.{layer}.ffn_gate_inp.weight" in self.source) for layer in range(self.num_layers)]

    def moe(self, *, normalize: bool, norm_min: float = 0.0, shared_size: int = 0) -> MoeSpec:
        """`{architecture}.expert_*`; a missing expert size is the feed-forward size shared by the experts used."""
        used = self.integer("expert_used_count", 1, MAX_EXPERTS)
        default_size = max(self.intermediate_size // used, 1)
        prefix = f"{self.architecture}."
        gating = self.integer("expert_gating_func", 0, 1 << 31, _SOFTMAX)
        if gating not in (0, _SOFTMAX):
            raise UnsupportedModelError(f"{self._name('expert_gating_func')} must be {_SOFTMAX} (softmax), got {gating}")
        moe = MoeSpec(
            num_experts=self.integer("expert_count", 1, MAX_EXPERTS),
            experts_per_token=used,
            expert_size=self.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE, default_size),
            normalize=self.metadata.boolean(prefix + "expert_weights_norm", normalize),
            norm_min=norm_min,
            scale=self.metadata.number(prefix + "expert_weights_scale", 0.0, 1e6, 1.0) or 1.0,
            shared_size=shared_size,
        )
        return checked_moe(moe, self.num_layers, self.metadata.label)

    def decoder(self, *, layers: list[LayerSpec] | None = None, interleaved: bool = False, **features: Any) -> Decoder:
        """The common fields, `features` of `DecoderSpec` on top; raises `ModelLoadError` naming the wrong field."""
        num_heads, num_kv_heads, head_dim = self.heads()
        rope = RopeParameters.from_gguf(self.metadata, self.architecture, head_dim)
        spec = DecoderSpec(
            architecture=self.architecture,
            vocab_size=self._vocab_size(),
            hidden_size=self.hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=self.intermediate_size,
            norm_eps=self.metadata.number(f"{self.architecture}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
            rope=rope.spec(
                interleaved=interleaved, max_model_len=self.max_model_len, freq_factors=self._rope_factors(head_dim)
            ),
            max_position=rope.max_context(self.max_model_len),
            layers=tuple(layers or [LayerSpec()] * self.num_layers),
            attention_scale=head_dim**-0.5,
            tied_output="output.weight" not in self.source,
            qkv_bias=self.has("attn_q.bias"),
            output_bias=self.has("attn_output.bias"),
            mlp_bias=self.has("ffn_down.bias"),
            extra={"rope": rope.rope_type},
            **features,
        )
        return Decoder(spec, GgufWeights(self.source))

    def _vocab_size(self) -> int:
        """The rows of the embedding; `vocab_size` is often missing from the metadata."""
        shape = self.source.tensor("token_embd.weight").shape
        if len(shape) != 2 or not 1 <= shape[0] <= MAX_VOCAB:
            raise ModelLoadError(f"tensor 'token_embd.weight' must have 1..{MAX_VOCAB} rows, got shape {list(shape)}")
        return shape[0]

    def _rope_factors(self, head_dim: int) -> NDArray[np.float32] | None:
        if "rope_freqs.weight" not in self.source:
            return None
        tensor = self.source.tensor("rope_freqs.weight")
        if tensor.type is not TensorType.F32 or tensor.data.nbytes > 4 * head_dim:
            raise ModelLoadError(
                f"tensor 'rope_freqs.weight' must be F32 with at most {head_dim} elements, "
                f"got {tensor.type.name} {list(tensor.shape)}"
            )
        return tensor.data.view(np.float32).reshape(-1)


_SOFTMAX = 1  # expert_gating_func of GGUF; 0 is unset


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the names it goes by and how its checkpoints become a `Decoder`.

    `hf_names` are values of config.json's `architectures` or `model_type`, `gguf_names` of `general.architecture`.
    """

    name: str
    hf_names: tuple[str, ...]
    from_hf: Callable[[HuggingFaceCheckpoint], Decoder]
    gguf_names: tuple[str, ...] = ()
    from_gguf: Callable[[GgufCheckpoint], Decoder] | None = None


def checked_moe(moe: MoeSpec, num_layers: int, label: str) -> MoeSpec:
    """The same, or `ModelLoadError` if a token is to use more experts than there are, or all layers have too many."""
    if moe.experts_per_token > moe.num_experts:
        raise ModelLoadError(f"{label}: {moe.experts_per_token} experts per token, but only {moe.num_experts} experts")
    if (total := num_layers * moe.num_experts) > MAX_ALL_EXPERTS:
        raise ModelLoadError(f"{label}: all layers may have {MAX_ALL_EXPERTS} experts together, got {total}")
    return moe


def _divide(size: int, count: int, name: str, what: str) -> int:
    if size % count:
        raise ModelLoadError(f"{name} must be a multiple of the number of {what}, {count}, got {size}")
    return size // count


def _require_silu(config: Fields) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{config.name('hidden_act')} must be silu, got {activation!r:.80}")
