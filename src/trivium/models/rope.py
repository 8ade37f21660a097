"""Rotary position embedding: from a checkpoint's parameters to the frequencies of a `RopeSpec`.

Formulas: RoPE (arXiv 2104.09864), position interpolation ("linear", arXiv 2306.15595), dynamic NTK and llama3 as in
transformers' `modeling_rope_utils`, YaRN (arXiv 2309.00071). Frequencies are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ModelLoadError, UnsupportedModelError
from trivium.models.fields import Fields
from trivium.models.spec import RopeSpec

__all__ = ["ROPE_TYPES", "RopeParameters"]

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
MAX_POSITION = 1 << 27  # tokens; four orders of magnitude above today's models, small enough for int32 arithmetic

_MAX_THETA = 1e15
_MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """The rotary parameters of a checkpoint, validated, whatever file they came from.

    `max_position` is the context (tokens) that the checkpoint states, `original_max_position` the one it was trained
    with before scaling. `factor` is the scaling of "linear", "dynamic", "yarn" and "llama3"; the fields after it
    belong to YaRN (`attention_factor` None: 0.1 ln(factor) + 1; `attention_multiplier` scales it further), then llama3.
    """

    rope_type: str
    theta: float
    rotary_dim: int
    max_position: int
    original_max_position: int
    factor: float = 1.0
    attention_factor: float | None = None
    attention_multiplier: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    sections: tuple[int, int, int] | None = None

    @classmethod
    def from_hf(cls, config: Fields, head_dim: int, default_theta: float = 10_000.0) -> RopeParameters:
        """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before) of a config.json.

        Raises `UnsupportedModelError` for a rope type that is not in `ROPE_TYPES` and `ModelLoadError` for a value
        that is missing, of the wrong type or out of range.
        """
        scaling = _scaling_fields(config)
        rope_type = _hf_rope_type(scaling)
        max_position = config.integer("max_position_embeddings", 1, MAX_POSITION)
        theta = config.number("rope_theta", 1.0, _MAX_THETA, default_theta)
        partial = config.number("partial_rotary_factor", 0.0, 1.0, 1.0)
        partial = scaling.number("partial_rotary_factor", 0.0, 1.0, partial)
        # A few configs state the trained context beside the scaling; transformers lets that one win.
        original = scaling.integer("original_max_position_embeddings", 1, MAX_POSITION, max_position)
        original = config.integer("original_max_position_embeddings", 1, MAX_POSITION, original)
        parameters = cls(
            rope_type=rope_type,
            theta=scaling.number("rope_theta", 1.0, _MAX_THETA, theta),
            rotary_dim=_rotary_dim(int(head_dim * partial), head_dim, scaling.label),
            max_position=max_position,
            original_max_position=original,
            factor=_hf_factor(scaling, rope_type, max_position / original),
            sections=_sections(scaling.get("mrope_section"), int(head_dim * partial), scaling.name("mrope_section")),
            **_hf_yarn(scaling) if rope_type == "yarn" else {},
            **_hf_llama3(scaling) if rope_type == "llama3" else {},
        )
        return parameters.checked(scaling.label)

    @classmethod
    def from_gguf(cls, metadata: Fields, architecture: str, head_dim: int) -> RopeParameters:
        """Read `{architecture}.rope.*` and `{architecture}.context_length`; errors as in `from_hf`.

        A scaling factor without a type means linear, and `rope.scaling.attn_factor` multiplies what else scales the
        attention, as in llama.cpp; `yarn_attn_factor` is what converters copy from transformers' `attention_factor`.
        """
        rope = f"{architecture}.rope."
        scaling = rope + "scaling."
        max_position = metadata.integer(f"{architecture}.context_length", 1, MAX_POSITION)
        legacy = metadata.number(rope + "scale_linear", 0.0, _MAX_FACTOR, 0.0)
        factor = metadata.number(scaling + "factor", 0.0, _MAX_FACTOR, legacy)
        rope_type = _gguf_rope_type(metadata, scaling + "type", factor)
        extrapolation = metadata.number(scaling + "yarn_ext_factor", -1.0, _MAX_FACTOR, 1.0)
        if rope_type == "yarn" and extrapolation not in (-1.0, 1.0):
            raise UnsupportedModelError(f"{metadata.name(scaling + 'yarn_ext_factor')} must be 1, got {extrapolation}")
        rotary_dim = metadata.integer(rope + "dimension_count", 2, head_dim, head_dim)
        parameters = cls(
            rope_type=rope_type,
            theta=metadata.number(rope + "freq_base", 1.0, _MAX_THETA, 10_000.0),
            rotary_dim=_rotary_dim(rotary_dim, head_dim, metadata.name(rope + "dimension_count")),
            max_position=max_position,
            original_max_position=metadata.integer(scaling + "original_context_length", 1, MAX_POSITION, max_position),
            factor=1.0 if rope_type == "default" else factor,
            attention_factor=metadata.optional_number(scaling + "yarn_attn_factor", 1e-6, _MAX_FACTOR),
            attention_multiplier=metadata.number(scaling + "attn_factor", 1e-6, _MAX_FACTOR, 1.0),
            beta_fast=metadata.number(scaling + "yarn_beta_fast", 1e-3, _MAX_FACTOR, 32.0),
            beta_slow=metadata.number(scaling + "yarn_beta_slow", 1e-3, _MAX_FACTOR, 1.0),
            sections=_sections(
                metadata.get(rope + "dimension_sections"), rotary_dim, metadata.name(rope + "dimension_sections")
            ),
        )
        return parameters.checked(metadata.name(scaling + "factor"))

    def checked(self, label: str) -> RopeParameters:
        """Itself, or `ModelLoadError` for values that contradict each other; `label` says where they came from."""
        if self.rope_type in ("linear", "dynamic", "yarn", "llama3") and not self.factor >= 1.0:
            raise ModelLoadError(f"{label}: the factor of {self.rope_type!r} rope must be a number >= 1, got {self.factor!r}")
        if self.rope_type == "llama3" and not self.high_freq_factor > self.low_freq_factor:
            raise ModelLoadError(
                f"{label}: high_freq_factor must be more than low_freq_factor, "
                f"got {self.high_freq_factor} and {self.low_freq_factor}"
            )
        if self.rope_type == "yarn" and not self.beta_fast >= self.beta_slow:
            raise ModelLoadError(f"{label}: beta_fast must be at least beta_slow, got {self.beta_fast} and {self.beta_slow}")
        if self.rope_type == "yarn" and not self.theta > 1.0:
            raise ModelLoadError(f"{label}: the base of 'yarn' rope must be more than 1, got {self.theta}")
        if self.rope_type == "dynamic" and not self.rotary_dim > 2:
            raise ModelLoadError(f"{label}: 'dynamic' rope needs more than 2 rotated elements, got {self.rotary_dim}")
        return self

    def max_context(self, max_model_len: int | None = None) -> int:
        """The most tokens (prompt and output) the model may be asked for.

        What the checkpoint states; with YaRN at least `original_max_position` × `factor`, because configs are often
        edited by adding the scaling alone; with dynamic NTK whatever `max_model_len` asks for.
        """
        if self.rope_type == "yarn":
            return min(max(self.max_position, int(self.original_max_position * self.factor)), MAX_POSITION)
        if self.rope_type == "dynamic" and max_model_len is not None:
            return min(max(self.max_position, max_model_len), MAX_POSITION)
        return self.max_position

    def spec(
        self, *, interleaved: bool, max_model_len: int | None = None, freq_factors: NDArray[np.float32] | None = None
    ) -> RopeSpec:
        """Fold all scaling into frequencies.

        Dynamic NTK is fixed when the model is loaded: transformers recomputes the base from the longest sequence seen
        so far, which would make a token's result depend on its neighbours. Here a `max_model_len` of at most
        `max_position` leaves the frequencies as they are, and a longer one takes the base that transformers uses for
        a forward of exactly `max_model_len` tokens.

        `freq_factors` [rotary_dim / 2] divide the frequencies: GGUF's `rope_freqs.weight`, which holds the llama3
        scaling.
        """
        inv_freq = self._inverse_frequencies(max_model_len)
        if freq_factors is not None:
            inv_freq = inv_freq / self._checked_factors(freq_factors)
        return RopeSpec(inv_freq.astype(np.float32), interleaved, self._attention_factor(), self.sections)

    def _inverse_frequencies(self, max_model_len: int | None) -> NDArray[np.float64]:
        if self.rope_type == "linear":
            return self._base_frequencies(self.theta) / self.factor
        if self.rope_type == "dynamic":
            return self._base_frequencies(self._dynamic_theta(max_model_len))
        if self.rope_type == "yarn":
            return self._yarn_frequencies()
        if self.rope_type == "llama3":
            return self._llama3_frequencies()
        return self._base_frequencies(self.theta)

    def _base_frequencies(self, theta: float) -> NDArray[np.float64]:
        exponents = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        return np.asarray(theta**-exponents, np.float64)

    def _dynamic_theta(self, max_model_len: int | None) -> float:
        length = max(max_model_len or 0, self.max_position)
        growth = self.factor * length / self.max_position - (self.factor - 1.0)
        return float(self.theta * growth ** (self.rotary_dim / (self.rotary_dim - 2)))

    def _yarn_frequencies(self) -> NDArray[np.float64]:
        """Blend of unscaled (fast pairs) and scaled (slow pairs) frequencies; section 3.2 of the YaRN paper."""
        low, high = self._yarn_dimension(self.beta_fast), self._yarn_dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        pairs = np.arange(self.rotary_dim // 2, dtype=np.float64)
        scaled = np.clip((pairs - low) / (high - low if high != low else 0.001), 0.0, 1.0)
        frequencies = self._base_frequencies(self.theta)
        return np.asarray(frequencies * (1.0 - scaled) + frequencies / self.factor * scaled, np.float64)

    def _yarn_dimension(self, rotations: float) -> float:
        """The pair that turns `rotations` times over the original context."""
        turns = self.original_max_position / (rotations * 2.0 * math.pi)
        return self.rotary_dim * math.log(turns) / (2.0 * math.log(self.theta))

    def _llama3_frequencies(self) -> NDArray[np.float64]:
        """Long wavelengths divided by the factor, short ones kept, a linear blend between."""
        frequencies = self._base_frequencies(self.theta)
        turns = self.original_max_position * frequencies / (2.0 * math.pi)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return np.asarray(frequencies * kept + frequencies / self.factor * (1.0 - kept), np.float64)

    def _attention_factor(self) -> float:
        if self.rope_type != "yarn":
            return self.attention_multiplier
        factor = _yarn_magnitude(self.factor) if self.attention_factor is None else self.attention_factor
        return factor * self.attention_multiplier

    def _checked_factors(self, factors: NDArray[np.float32]) -> NDArray[np.float64]:
        if factors.shape != (self.rotary_dim // 2,):
            raise ModelLoadError(f"rope_freqs.weight must have shape [{self.rotary_dim // 2}], got {list(factors.shape)}")
        if not np.all(np.isfinite(factors) & (factors > 0)):
            raise ModelLoadError("rope_freqs.weight must hold finite numbers above 0")
        return factors.astype(np.float64)


def _yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _scaling_fields(config: Fields) -> Fields:
    """`rope_parameters`, else `rope_scaling`, else nothing."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise ModelLoadError(f"{config.name(key)} must be an object, got {value!r:.80}")
        if value and all(isinstance(nested, Mapping) for nested in value.values()):
            raise UnsupportedModelError(f"{config.name(key)} differs by layer type, which is not supported")
        return Fields(value, config.name(key))
    return Fields({}, config.name("rope_parameters"))


def _hf_rope_type(scaling: Fields) -> str:
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type == "mrope":  # Qwen2-VL's name for sections alone
        return "default"
    if rope_type not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{scaling.label} has rope type {rope_type!r:.80}, which is not supported; supported are {', '.join(ROPE_TYPES)}"
        )
    return str(rope_type)


def _gguf_rope_type(metadata: Fields, key: str, factor: float) -> str:
    rope_type = metadata.get(key, "linear" if factor > 0.0 else "none")
    if rope_type == "linear" and factor == 0.0:  # llama.cpp takes a missing factor for 1
        return "default"
    if rope_type not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{metadata.name(key)} is {rope_type!r:.80}, which is not supported; supported are none, linear, yarn"
        )
    return "default" if rope_type == "none" else str(rope_type)


def _hf_factor(scaling: Fields, rope_type: str, implied: float) -> float:
    if rope_type == "default":
        return 1.0
    if rope_type == "yarn" and scaling.get("factor") is None:
        return implied
    return scaling.number("factor", 1.0, _MAX_FACTOR)


def _hf_yarn(scaling: Fields) -> dict[str, Any]:
    attention = scaling.optional_number("attention_factor", 1e-6, _MAX_FACTOR)
    mscale = scaling.number("mscale", 0.0, _MAX_FACTOR, 0.0)
    mscale_all = scaling.number("mscale_all_dim", 0.0, _MAX_FACTOR, 0.0)
    if attention is None and mscale and mscale_all:
        factor = scaling.number("factor", 1.0, _MAX_FACTOR)
        attention = _yarn_magnitude(factor, mscale) / _yarn_magnitude(factor, mscale_all)
    return {
        "attention_factor": attention,
        "beta_fast": scaling.number("beta_fast", 1e-3, _MAX_FACTOR, 32.0),
        "beta_slow": scaling.number("beta_slow", 1e-3, _MAX_FACTOR, 1.0),
        "truncate": scaling.boolean("truncate", True),
    }


def _hf_llama3(scaling: Fields) -> dict[str, Any]:
    return {
        "low_freq_factor": scaling.number("low_freq_factor", 1e-3, _MAX_FACTOR),
        "high_freq_factor": scaling.number("high_freq_factor", 1e-3, _MAX_FACTOR),
    }


def _rotary_dim(rotary_dim: int, head_dim: int, label: str) -> int:
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ModelLoadError(f"{label}: the rotated elements of a head must be an even number 2..{head_dim}, got {rotary_dim}")
    return rotary_dim


def _sections(value: object, rotary_dim: int, label: str) -> tuple[int, int, int] | None:
    """Three sizes that sum to rotary_dim / 2; GGUF writes a fourth, which is 0."""
    if value is None:
        return None
    sizes = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(sizes, list) and len(sizes) == 4 and sizes[3] == 0:
        sizes = sizes[:3]
    if (
        not isinstance(sizes, list)
        or len(sizes) != 3
        or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
        or sum(sizes) != rotary_dim // 2
    ):
        raise ModelLoadError(f"{label} must be three sizes that sum to {rotary_dim // 2}, got {value!r:.80}")
    return sizes[0], sizes[1], sizes[2]
