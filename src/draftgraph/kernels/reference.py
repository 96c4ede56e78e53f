"""The operations of a decoder in NumPy float32: the specification that faster kernels are held to.

In and out: arrays. The contract of every operation: a row's result does not depend, bit for bit, on the other rows in
the call. Sums therefore run row by row; BLAS is only ever asked for one row at a time, with the shapes of that row
alone.
"""

from __future__ import annotations

import math

import numpy as np

from draftgraph.types import FloatArray, IntArray

# Weight rows that stay in the CPU's cache while all activation rows pass. The borders are fixed, so a result does not
# depend on how many rows there are.
_CHUNK = 4096


def linear(x: FloatArray, weight: FloatArray, bias: FloatArray | None = None) -> FloatArray:
    """Returns [rows, outputs] = x [rows, inputs] · weight [outputs, inputs]ᵀ + bias [outputs]."""
    out = np.empty((len(x), len(weight)), np.float32)
    for start in range(0, len(weight), _CHUNK):
        part = weight[start : start + _CHUNK]
        for row in range(len(x)):
            np.matmul(part, x[row], out=out[row, start : start + _CHUNK])
    return out if bias is None else np.asarray(out + bias)


def rms_norm(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """Returns [rows, d]: each row over its root mean square, times weight [d] (arXiv 1910.07467)."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(x / np.sqrt(mean_square + np.float32(eps)) * weight, np.float32)


def rope_table(positions: int, base: float, dim: int, factors: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Returns the cosines and sines of all rotary angles, [positions, dim / 2] each (arXiv 2104.09864)."""
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if factors is not None:
        frequencies = frequencies / factors
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(x: FloatArray, cos: FloatArray, sin: FloatArray, interleaved: bool) -> FloatArray:
    """Returns x [rows, heads, head_dim] with its leading dimensions rotated by cos and sin [rows, dim / 2].

    `interleaved` is the file's convention for which two dimensions form a pair: neighbours, or one from each half.
    """
    half = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    first = np.s_[..., 0 : 2 * half : 2] if interleaved else np.s_[..., :half]
    second = np.s_[..., 1 : 2 * half : 2] if interleaved else np.s_[..., half : 2 * half]
    out = x.copy()
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out


def swiglu(gate: FloatArray, up: FloatArray) -> FloatArray:
    """Returns silu(gate) · up, element by element (arXiv 2002.05202)."""
    with np.errstate(over="ignore"):  # exp(-gate) may be infinite; then silu is 0
        return np.asarray(gate / (1 + np.exp(-gate)) * up)


def geglu(gate: FloatArray, up: FloatArray) -> FloatArray:
    """Returns gelu(gate) · up, element by element, with GELU's tanh approximation (arXiv 1606.08415, 2002.05202)."""
    with np.errstate(over="ignore"):  # gate³ may be infinite; then gelu is gate or 0
        inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * (gate * gate * gate))
    return np.asarray(np.float32(0.5) * gate * (1 + np.tanh(inner)) * up)


def attend_row(query: FloatArray, keys: FloatArray, values: FloatArray, scale: float) -> FloatArray:
    """Returns [heads, head_dim]: one row's attention over its own keys, in position order.

    Args:
        query: [heads, head_dim]; heads / kv_heads neighbours share a key head (arXiv 2305.13245).
        keys, values: [kv_heads, n, head_dim] of the row's ancestors and itself, or the last of them.
        scale: factor of the scores.
    """
    kv_heads, _, head_dim = keys.shape
    grouped = query.reshape(kv_heads, -1, head_dim)
    scores = np.matmul(grouped, keys.transpose(0, 2, 1)) * np.float32(scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.matmul(weights, values).reshape(query.shape))


def embed(table: FloatArray, tokens: IntArray, scale: float = 1.0) -> FloatArray:
    """Returns [rows, hidden]: the rows of table [vocab, hidden] for tokens [rows], times scale."""
    return np.asarray(table[tokens] * np.float32(scale))
