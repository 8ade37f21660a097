"""Packing is lossless and products are right, for every element type, shape and form of activations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized import QUANTISED, random_tensor, reference

from trivium._native import Matrix, bytes_by_bytes, dequantize, instruction_set
from trivium.models.checkpoint import TensorType

ALL = list(TensorType)
# Relative RMS error of one product: float32 accumulation; int16 and int8 activations per block of 32.
TOLERANCE = {"float32": 2e-6, "int16": 5e-5, "int8": 2e-2}
FOUR_BIT = (TensorType.Q4_0, TensorType.Q4_1, TensorType.Q4_K)
WIDE = [kind for kind in QUANTISED if kind not in FOUR_BIT]


def taken(type: TensorType, activation: str) -> str:
    """What activations become for weights of a type."""
    if type.block_size == 1:
        return "float32"
    if type in FOUR_BIT:
        return "int16" if activation == "int16" else "int8"
    return "int8" if activation == "int8" and bytes_by_bytes() else "int16"


def test_who_multiplies_bytes():
    assert bytes_by_bytes() is (instruction_set() in ("avx2_vnni", "avx512"))


def make(type: TensorType, rows: int, cols: int, mode: str = "auto", seed: int = 0) -> tuple[Matrix, np.ndarray]:
    data = random_tensor(type, rows, cols, seed)
    return Matrix(rows, cols, [(int(type), data)], mode), reference(type, data, rows, cols)


@pytest.mark.parametrize("type", ALL, ids=lambda t: t.name)
def test_dequantize_equals_the_gguf_package(type):
    data = random_tensor(type, 8, 512)
    assert np.array_equal(dequantize(int(type), data, 8 * 512), reference(type, data, 8, 512).reshape(-1))


@pytest.mark.parametrize("type", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("mode", ["auto", "float32"])
def test_packed_rows_equal_the_gguf_package(type, mode):
    matrix, expected = make(type, 37, 512, mode)
    rows = np.stack([matrix.row(i) for i in range(37)])
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("activation", ["auto", "int8", "int16"])
@pytest.mark.parametrize("rows", [16, 37])
@pytest.mark.parametrize("type", ALL, ids=lambda t: t.name)
def test_products_agree_with_float64(type, rows, activation):
    matrix, weights = make(type, rows, 768)
    x = np.random.default_rng(1).standard_normal((13, 768)).astype(np.float32)
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    error = matrix.matmul(x, activation) - expected
    relative = np.sqrt((error**2).mean() / (expected**2).mean())
    form = taken(type, activation)
    assert relative < TOLERANCE[form]
    assert form == "float32" or relative > TOLERANCE[form] / 20  # it was no better one


@pytest.mark.parametrize("type", QUANTISED, ids=lambda t: t.name)
def test_float32_mode_is_exact(type):
    matrix, weights = make(type, 20, 512, "float32")
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    assert np.abs(matrix.matmul(x, "float32") - expected).max() < 2e-6 * np.abs(expected).max() * 512**0.5


@pytest.mark.parametrize("type", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("activation", ["int8", "int16"])
def test_a_row_does_not_depend_on_the_rows_beside_it(type, activation):
    matrix, _ = make(type, 48, 512)
    x = np.random.default_rng(3).standard_normal((140, 512)).astype(np.float32)
    together = matrix.matmul(x, activation)
    for count in (1, 2, 3, 5, 9, 33):
        assert np.array_equal(matrix.matmul(x[:count], activation), together[:count])
    assert np.array_equal(matrix.matmul(x[137:], activation), together[137:])


@pytest.mark.parametrize("type", [TensorType.Q4_0, TensorType.Q4_K, TensorType.Q6_K], ids=lambda t: t.name)
def test_more_columns_than_are_unpacked_at_once(type):
    matrix, weights = make(type, 33, 8448)
    x = np.random.default_rng(4).standard_normal((70, 8448)).astype(np.float32)
    together = matrix.matmul(x, "int16")
    assert np.array_equal(matrix.matmul(x[:1], "int16"), together[:1])
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    assert np.abs(together - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 31, 33, 50, 100])
@pytest.mark.parametrize("mode", ["auto", "wint8", "wint4", "float32"])
def test_sizes_that_are_not_multiples_of_a_block(cols, mode):
    matrix, weights = make(TensorType.F32, 19, cols, mode)
    weights = np.stack([matrix.row(i) for i in range(19)]) if mode.startswith("wint") else weights
    x = np.random.default_rng(4).standard_normal((5, cols)).astype(np.float32)
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    assert np.abs(matrix.matmul(x, "int16") - expected).max() < 1e-4 * (1 + np.abs(expected).max())


@pytest.mark.parametrize(("mode", "bound"), [("wint8", 0.01), ("wint4", 0.1)])
@pytest.mark.parametrize("type", [TensorType.F32, TensorType.F16, TensorType.BF16], ids=lambda t: t.name)
def test_quantising_while_loading_keeps_the_weights_close(type, mode, bound):
    matrix, weights = make(type, 32, 256, mode)
    rows = np.stack([matrix.row(i) for i in range(32)])
    assert np.sqrt(((rows - weights) ** 2).mean() / (weights**2).mean()) < bound
    assert matrix.nbytes == 32 * 256 * (8.5 if mode == "wint8" else 5) / 8


@pytest.mark.parametrize(
    ("type", "bits"),
    [
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q4_K", 4.625),
        ("Q5_0", 8.5),
        ("Q8_0", 8.5),
        ("IQ4_NL", 8.5),
        ("Q5_1", 9),
        ("Q5_K", 8.625),
        ("Q6_K", 6.625),
        ("BF16", 16),
    ],
)
def test_packed_size(type, bits):
    matrix, _ = make(TensorType[type], 64, 512)
    assert matrix.nbytes * 8 == 64 * 512 * bits


def test_stacked_sources_are_one_matrix():
    parts = [random_tensor(TensorType.Q4_1, rows, 64, rows) for rows in (5, 20, 3)]
    matrix = Matrix(28, 64, [(int(TensorType.Q4_1), p) for p in parts], "auto")
    expected = reference(TensorType.Q4_1, np.concatenate(parts), 28, 64)
    assert np.array_equal(np.stack([matrix.row(i) for i in range(28)]), expected)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(QUANTISED), st.integers(0, 2**32), st.floats(1e-4, 1e4))
def test_extreme_codes_and_activations_do_not_saturate(type, seed, size):
    """All codes at their ends against activations at theirs: the integer sums must stay exact."""
    rng = np.random.default_rng(seed)
    data = random_tensor(type, 16, 256, seed).reshape(-1, type.block_bytes)
    keep = data.copy()
    data[:] = rng.choice(np.array([0, 255], np.uint8), data.shape)
    for offset in [208] if type == TensorType.Q6_K else [0, 2][: 2 if type.block_bytes in (20, 24, 144, 176) else 1]:
        data[:, offset : offset + 2] = keep[:, offset : offset + 2]
    weights = reference(type, data.reshape(-1), 16, 256)
    matrix = Matrix(16, 256, [(int(type), data.reshape(-1))], "auto")
    x = (rng.choice([-1.0, 1.0], (4, 256)) * size).astype(np.float32)  # exact in both integer forms
    expected = x.astype(np.float64) @ weights.astype(np.float64).T
    for activation in ("int8", "int16"):
        assert (
            np.abs(matrix.matmul(x, activation) - expected).max() <= 1e-5 * np.abs(x).max() * np.abs(weights).sum(axis=1).max()
        )


@pytest.mark.parametrize(
    ("type", "activation", "largest"),
    [
        (TensorType.Q4_0, "int8", 127),
        (TensorType.Q4_0, "int16", 32767),
        (TensorType.Q4_1, "int8", 127),
        (TensorType.Q4_1, "int16", 32767),
        (TensorType.Q8_0, "int8", 127),
        (TensorType.Q8_0, "int16", 32767),
    ],
)
def test_integer_products_are_exact(type, activation, largest):
    """Where all scales are one, a product is the integers' dot product rounded once: on every instruction set, in any tile."""
    data = random_tensor(type, 37, 32).reshape(-1, type.block_bytes)
    data[0] = 128 if type == TensorType.Q8_0 else 255
    data[:, :2] = np.ones(1, np.float16).view(np.uint8)  # the scale
    if type == TensorType.Q4_1:
        data[:, 2:4] = 0  # the minimum
    weights = reference(type, data.reshape(-1), 37, 32)
    matrix = Matrix(37, 32, [(int(type), data.reshape(-1))], "auto")
    x = np.random.default_rng(6).integers(-largest, largest, (13, 32))
    x[:, 0], x[1], x[2] = largest, largest, -largest
    expected = (x @ weights.astype(np.int64).T).astype(np.float32)
    if taken(type, activation) != activation:
        expected = matrix.matmul(x.astype(np.float32), "auto")
    for rows in range(1, 14):
        assert np.array_equal(matrix.matmul(x[:rows].astype(np.float32), activation), expected[:rows])


@pytest.mark.parametrize("type", WIDE, ids=lambda t: t.name)
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (7, 512), (40, 768), (3, 9216)])
def test_products_of_codes_by_int8_are_those_of_rounded_activations(type, rows, cols):
    """Unpacked for many rows or, of very long groups, for each tile: what int16 says of activations that are int8."""
    matrix, _ = make(type, 37, cols)
    x = np.random.default_rng(7).integers(-127, 128, (rows, cols)).astype(np.float32)
    x[:, ::32] = 127  # so that a scale is 1
    fine, coarse = matrix.matmul(x, "int16"), matrix.matmul(x, "int8")
    assert np.abs(fine - coarse).max() <= 3e-5 * np.abs(fine).max()


def test_not_finite_activations_stay_visible():
    matrix, _ = make(TensorType.Q4_1, 16, 64)
    x = np.ones((2, 64), np.float32)
    x[1, 40] = np.nan
    for activation in ("int8", "int16"):
        y = matrix.matmul(x, activation)
        assert np.isfinite(y[0]).all()
        assert np.isnan(y[1]).all()


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([(99, np.zeros(64, np.uint8))], "unknown tensor type 99"),
        ([(0, np.zeros(100, np.uint8))], "whole rows"),
        ([(0, np.zeros(128, np.uint8))], "hold 1 rows, expected 2"),
        ([(0, np.zeros(128, np.uint8)), (1, np.zeros(64, np.uint8))], "one element type"),
        ([], "sources"),
    ],
)
def test_wrong_sources_are_refused(sources, message):
    with pytest.raises(ValueError, match=message):
        Matrix(2, 32, sources, "auto")


def test_wrong_mode_and_partial_blocks_are_refused():
    with pytest.raises(ValueError, match="mode must be"):
        Matrix(1, 32, [(0, np.zeros(128, np.uint8))], "wint2")
    with pytest.raises(ValueError, match="whole blocks"):
        Matrix(1, 40, [(int(TensorType.Q8_0), np.zeros(34, np.uint8))], "auto")
    with pytest.raises(ValueError, match="too short"):
        dequantize(int(TensorType.Q8_0), np.zeros(33, np.uint8), 32)
