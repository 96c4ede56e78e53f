"""The reference operations: right to float32's precision, and each row the same bits in any company."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from draftgraph.kernels import reference as kernels

Array = npt.NDArray[np.float32]
EXACT = np.float64
ROWS = range(1, 33)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, scale, shape).astype(np.float32)


def assert_rows_do_not_see_each_other(operation: Callable[[Array], Array], x: Array) -> None:
    """Computes each row alone, in every number of rows, in another order and beside extreme rows: bit for bit alike."""
    alone = np.concatenate([operation(x[row : row + 1]) for row in range(len(x))])
    for num in ROWS:
        assert operation(x[:num]).tobytes() == alone[:num].tobytes()
        assert operation(x[len(x) - num :]).tobytes() == alone[len(x) - num :].tobytes()
    order = np.random.default_rng(1).permutation(len(x))
    assert operation(x[order]).tobytes() == alone[order].tobytes()
    wild = x.copy()
    wild[1::2] *= np.float32(1e4)
    assert operation(wild)[::2].tobytes() == alone[::2].tobytes()


# Sizes around the vector widths and the border of a chunk.
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 1), (3, 5), (17, 33), (64, 96), (129, 31), (8, 4095), (8, 4097), (5, 8193)]
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_right_and_row_invariant(inputs: int, outputs: int, has_bias: bool) -> None:
    x, weight = normal(32, inputs), normal(outputs, inputs, seed=1)
    bias = normal(outputs, seed=2) if has_bias else None
    exact = x.astype(EXACT) @ weight.astype(EXACT).T + (0 if bias is None else bias.astype(EXACT))
    scale = np.abs(x.astype(EXACT)) @ np.abs(weight.astype(EXACT)).T + 1
    found = kernels.linear(x, weight, bias)
    assert found.dtype == np.float32
    assert (np.abs(found - exact) <= 4e-7 * np.sqrt(inputs) * scale).all()
    assert_rows_do_not_see_each_other(lambda rows: kernels.linear(rows, weight, bias), x)


@pytest.mark.parametrize("size", [1, 2, 7, 16, 33, 128, 129, 576, 1000])
def test_rms_norm_is_right_and_row_invariant(size: int) -> None:
    x, weight = normal(32, size, scale=3), normal(size, seed=1)
    exact = x / np.sqrt((x.astype(EXACT) ** 2).mean(-1, keepdims=True) + 1e-5) * weight
    found = kernels.rms_norm(x, weight, 1e-5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=2e-6)
    assert_rows_do_not_see_each_other(lambda rows: kernels.rms_norm(rows, weight, 1e-5), x)


def test_rms_norm_of_heads_and_of_zeros() -> None:
    x, weight = normal(32, 4, 16), normal(16, seed=1)
    found = kernels.rms_norm(x, weight, 1e-6)
    assert np.array_equal(found, kernels.rms_norm(x.reshape(128, 16), weight, 1e-6).reshape(x.shape))
    assert_rows_do_not_see_each_other(lambda rows: kernels.rms_norm(rows, weight, 1e-6), x)
    assert not kernels.rms_norm(np.zeros((2, 16), np.float32), weight, 1e-6).any()


@pytest.mark.parametrize("dim", [2, 8, 64])
@pytest.mark.parametrize("base", [10_000.0, 1e6])
def test_the_rope_table_holds_the_angles_of_every_position(dim: int, base: float) -> None:
    factors = np.abs(normal(dim // 2)) + 1
    for chosen in (None, factors):
        cos, sin = kernels.rope_table(500, base, dim, chosen)
        assert cos.shape == sin.shape == (500, dim // 2)
        assert cos.dtype == sin.dtype == np.float32
        for position in (0, 1, 17, 499):
            for pair in range(dim // 2):
                angle = position * base ** (-2 * pair / dim) / (1 if chosen is None else EXACT(chosen[pair]))
                assert cos[position, pair] == pytest.approx(np.cos(angle), abs=1e-6)
                assert sin[position, pair] == pytest.approx(np.sin(angle), abs=1e-6)
    longer, _ = kernels.rope_table(900, base, dim, None)
    shorter, _ = kernels.rope_table(500, base, dim, None)
    assert np.array_equal(longer[:500], shorter), "a longer context moved the angles"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "dim"), [(8, 8), (16, 8), (64, 64)])
def test_rope_turns_pairs_by_their_angle(interleaved: bool, head_dim: int, dim: int) -> None:
    x, half = normal(32, 3, head_dim), dim // 2
    cos, sin = (part[np.arange(32) * 7] for part in kernels.rope_table(300, 10_000.0, dim, None))
    turn = (cos.astype(EXACT) + 1j * sin.astype(EXACT))[:, None, :]
    first, second = (x[..., 0:dim:2], x[..., 1:dim:2]) if interleaved else (x[..., :half], x[..., half:dim])
    turned = (first.astype(EXACT) + 1j * second.astype(EXACT)) * turn
    exact = x.astype(EXACT)
    if interleaved:
        exact[..., 0:dim:2], exact[..., 1:dim:2] = turned.real, turned.imag
    else:
        exact[..., :half], exact[..., half:dim] = turned.real, turned.imag
    before = x.copy()
    found = kernels.rope(x, cos, sin, interleaved)
    np.testing.assert_allclose(found, exact, atol=1e-6)
    assert np.array_equal(found[..., dim:], x[..., dim:])
    assert np.array_equal(x, before), "the input was modified"
    alone = np.concatenate([kernels.rope(x[n : n + 1], cos[n : n + 1], sin[n : n + 1], interleaved) for n in range(32)])
    for num in ROWS:
        assert kernels.rope(x[:num], cos[:num], sin[:num], interleaved).tobytes() == alone[:num].tobytes()


@pytest.mark.parametrize("size", [1, 7, 16, 33, 129, 1536])
def test_swiglu_is_right_and_row_invariant(size: int) -> None:
    gate, up = normal(32, size, scale=4), normal(32, size, seed=1)
    exact = gate.astype(EXACT) / (1 + np.exp(-gate.astype(EXACT))) * up
    np.testing.assert_allclose(kernels.swiglu(gate, up), exact, rtol=1e-6, atol=1e-12)
    both = np.stack([gate, up], axis=1)
    assert_rows_do_not_see_each_other(lambda rows: kernels.swiglu(rows[:, 0], rows[:, 1]), both)


def test_swiglu_of_extreme_gates_is_the_limit_without_a_warning() -> None:
    gate = np.array([[-1e38, -200, -100, 0, 100, 1e38]], np.float32)
    assert kernels.swiglu(gate, np.ones_like(gate)).tolist()[0] == pytest.approx(
        [0, 0, 0, 0, 100, 1e38], rel=1e-6, abs=1e-30
    )


@pytest.mark.parametrize("size", [1, 7, 16, 33, 129, 1536])
def test_geglu_is_right_and_row_invariant(size: int) -> None:
    gate, up = normal(32, size, scale=2), normal(32, size, seed=1)
    inner = np.sqrt(8 / np.pi) * (gate.astype(EXACT) + 0.044715 * gate.astype(EXACT) ** 3)
    exact = gate / (1 + np.exp(-inner)) * up
    np.testing.assert_allclose(kernels.geglu(gate, up), exact, rtol=2e-6, atol=1e-6)
    both = np.stack([gate, up], axis=1)
    assert_rows_do_not_see_each_other(lambda rows: kernels.geglu(rows[:, 0], rows[:, 1]), both)


def test_geglu_is_close_to_gelu_itself_and_takes_its_limits_without_a_warning() -> None:
    gate = np.linspace(-6, 6, 97, dtype=np.float32)[None]
    exact = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in gate[0].tolist()]
    np.testing.assert_allclose(kernels.geglu(gate, np.ones_like(gate))[0], exact, atol=5e-4)
    extreme = np.array([[-1e38, -200, 0, 100, 1e38]], np.float32)
    assert kernels.geglu(extreme, np.ones_like(extreme)).tolist()[0] == pytest.approx(
        [0, 0, 0, 100, 1e38], rel=1e-6, abs=1e-30
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (9, 3), (8, 1)])
@pytest.mark.parametrize("num_keys", [1, 2, 17, 100])
def test_attention_is_right_for_grouped_heads(heads: int, kv_heads: int, num_keys: int) -> None:
    head_dim = 16
    query = normal(heads, head_dim)
    keys, values = normal(kv_heads, num_keys, head_dim, seed=1), normal(kv_heads, num_keys, head_dim, seed=2)
    scale = 1 / np.sqrt(head_dim) if kv_heads > 1 else 0.3
    found = kernels.attend_row(query, keys, values, scale)
    assert found.dtype == np.float32
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = keys[group].astype(EXACT) @ query[head].astype(EXACT) * scale
        shares = np.exp(scores - scores.max())
        exact = shares @ values[group].astype(EXACT) / shares.sum()
        np.testing.assert_allclose(found[head], exact, atol=3e-6)
    assert found.tobytes() == kernels.attend_row(query.copy(), keys.copy(), values.copy(), scale).tobytes()


def test_attention_survives_scores_that_would_overflow() -> None:
    query, keys, values = normal(2, 8, scale=1e3), normal(1, 5, 8, seed=1, scale=1e3), normal(1, 5, 8, seed=2)
    found = kernels.attend_row(query, keys, values, 0.5)
    best = np.argmax(query @ keys[0].T, axis=1)
    np.testing.assert_allclose(found, values[0][best], rtol=1e-6)


def test_embedding_gives_the_rows_of_the_tokens() -> None:
    table = normal(10, 4)
    tokens = np.array([3, 3, 0, 9], np.int32)
    found = kernels.embed(table, tokens)
    assert np.array_equal(found, np.stack([table[token] for token in tokens]))
    assert np.array_equal(kernels.embed(table, tokens, 2.5), found * np.float32(2.5))
    found[0] = 7
    assert not (table == 7).any(), "the table was handed out instead of a copy"
