"""The quantised product: what the file means, exactly, and the same bits in any company."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from draftgraph.runner.native import TYPES
from support.tiny import random_blocks

native = pytest.importorskip("draftgraph._native", reason="the extension is not built")

LEVELS = native.kernel_levels()
QUANTISED = [name for name in TYPES if name.startswith("Q")]
OUTPUTS, INPUTS = 52, 512  # the last tile has 4 outputs


def make_weights(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a random matrix of this type, [outputs, bytes], and its values, float64."""
    rng = np.random.default_rng(seed)
    if kind.startswith("Q"):
        blocks = random_blocks(kind, (OUTPUTS, INPUTS), seed=seed, scale=0.01)
    else:
        values = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
        blocks = {
            "F32": lambda: values.view(np.uint8),
            "F16": lambda: values.astype(np.float16).view(np.uint8),
            "BF16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }[kind]()
    blocks = np.ascontiguousarray(blocks).reshape(OUTPUTS, -1)
    weights = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]) if kind != "F32" else values
    return blocks, np.asarray(weights, np.float64).reshape(OUTPUTS, INPUTS)


def multiply(kind: str, blocks: np.ndarray, x: np.ndarray, *, threads: int = 1, level: str = "") -> np.ndarray:
    tensor = native.Tensor(TYPES[kind], OUTPUTS, INPUTS, blocks.reshape(-1))
    out = np.empty((len(x), OUTPUTS), np.float32)
    native.Linear(tensor, threads, level).multiply(x, out)
    return out


def activations(rows: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, INPUTS)).astype(np.float32)


def quantised(x: np.ndarray, block: int) -> np.ndarray:
    """What the activations become: per block the nearest of 255 levels, float64."""
    parts = x.reshape(len(x), -1, block)
    most = np.abs(parts).max(-1, keepdims=True)
    steps = np.rint(parts * (np.float32(127) / most))
    return (steps.astype(np.float64) * (most / np.float32(127))).reshape(x.shape)


def block_of(kind: str) -> int:
    return 1 if not kind.startswith("Q") else 256 if kind.endswith("_K") else 32


@pytest.mark.parametrize("kind", TYPES)
def test_a_product_is_the_dequantised_weight_times_the_quantised_activation(kind: str) -> None:
    blocks, weights = make_weights(kind)
    x = activations(5)
    seen = x.astype(np.float64) if block_of(kind) == 1 else quantised(x, block_of(kind))
    expected = seen @ weights.T
    size = np.abs(seen) @ np.abs(weights.T)  # rounding is relative to the terms, not to their sum
    assert (np.abs(multiply(kind, blocks, x) - expected) / size).max() < 2e-6


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_has_the_same_bits_alone_and_among_32(kind: str, level: str) -> None:
    blocks, _ = make_weights(kind)
    x = activations(32)
    alone = np.concatenate([multiply(kind, blocks, x[i : i + 1], level=level) for i in range(32)])
    for rows in range(1, 33):
        assert (multiply(kind, blocks, x[:rows], level=level) == alone[:rows]).all()
        assert (multiply(kind, blocks, x[32 - rows :], level=level) == alone[32 - rows :]).all()


@pytest.mark.parametrize("kind", TYPES)
def test_every_level_and_any_number_of_threads_give_the_same_bits(kind: str) -> None:
    blocks, _ = make_weights(kind, seed=3)
    x = activations(9, seed=4) * np.float32(3)
    expected = multiply(kind, blocks, x)
    for level in LEVELS:
        for threads in range(1, 5):
            assert (multiply(kind, blocks, x, threads=threads, level=level) == expected).all()


def test_levels_are_listed_fastest_first() -> None:
    order = ["avx512vnni", "avxvnni-evex", "avxvnni", "avx2", "portable"]
    assert [level for level in order if level in LEVELS] == LEVELS
    assert "avxvnni" not in LEVELS or "avx_vnni" in native.cpu_features()


@pytest.mark.parametrize("kind", QUANTISED)
def test_extreme_activations_do_not_overflow(kind: str) -> None:
    blocks, weights = make_weights(kind, seed=5)
    x = np.ones((2, INPUTS), np.float32) * np.array([[1e30], [-1e-30]], np.float32)
    expected = quantised(x, block_of(kind)) @ weights.T
    for level in LEVELS:
        assert np.allclose(multiply(kind, blocks, x, level=level), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_no_sum_overflows_where_all_weights_and_activations_are_the_largest(kind: str, level: str, sign: int) -> None:
    blocks = random_blocks(kind, (OUTPUTS, INPUTS), seed=6, scale=0.01, fill=0x7F if kind == "Q8_0" else 0xFF)
    weights = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    x = np.full((9, INPUTS), sign, np.float32)
    seen = quantised(x, block_of(kind))
    error = np.abs(multiply(kind, blocks, x, level=level) - seen @ weights.T) / (np.abs(seen) @ np.abs(weights.T))
    assert error.max() < 2e-6


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_zeros_give_zeros(level: str) -> None:
    for kind in TYPES:
        blocks, _ = make_weights(kind)
        assert (multiply(kind, blocks, np.zeros((2, INPUTS), np.float32), level=level) == 0).all()


@pytest.mark.parametrize("size", [(0, 512), (16, 0), (-1, 512), (52, 513), (2**40, 2**40), (53, 512), (52, 256)])
def test_a_shape_that_does_not_fit_the_bytes_is_refused(size: tuple[int, int]) -> None:
    blocks, _ = make_weights("Q4_K")
    with pytest.raises(native.BadMatrixError):
        native.Linear(native.Tensor(TYPES["Q4_K"], *size, blocks.reshape(-1)), 1, "")


def test_an_unknown_type_and_an_unknown_level_are_refused() -> None:
    blocks, _ = make_weights("Q4_K")
    with pytest.raises(native.BadMatrixError, match="type 99"):
        native.Tensor(99, OUTPUTS, INPUTS, blocks.reshape(-1))
    with pytest.raises(native.BadLevelError, match="can run"):
        native.Linear(native.Tensor(TYPES["Q4_K"], OUTPUTS, INPUTS, blocks.reshape(-1)), 1, "mmx")
