"""Quantising at load: a folder's matrices become GGUF blocks, rounded to nearest.

In: a safetensors folder. Out: the same folder, whose matrices have another type. Norms and biases stay as they are.
What is computed is then the model of these blocks, on either runner; it is not a GGUF file's mixture of types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draftgraph.models.safetensors import SafetensorsFolder
from draftgraph.types import FloatArray

Bytes = npt.NDArray[np.uint8]


class QuantizedFolder(SafetensorsFolder):
    """A folder whose matrices are quantised when they are asked for.

    Args:
        kind: "q8_0" or "q4_k"; a matrix whose rows are no multiple of 256 long becomes Q8_0 in both cases, and one
            whose rows are no multiple of 32 long stays as it is.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path)
        self._kind = kind.upper()

    def type_name(self, name: str) -> str:
        shape = self.shape(name)
        if len(shape) != 2 or shape[1] % 32:
            return super().type_name(name)
        return "Q8_0" if shape[1] % 256 else self._kind

    def blocks(self, name: str) -> Bytes:
        kind = self.type_name(name)
        return QUANTISERS[kind](super().load(name)) if kind in QUANTISERS else super().blocks(name)

    def load(self, name: str) -> FloatArray:
        kind = self.type_name(name)
        if kind not in QUANTISERS:
            return super().load(name)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return np.ascontiguousarray(dequantize(self.blocks(name), GGMLQuantizationType[kind]), np.float32)


def quantize_q8_0(values: FloatArray) -> Bytes:
    """Returns [rows, bytes of a row]: per 32 values one half-precision scale and 32 signed bytes."""
    parts = values.reshape(len(values), -1, 32)
    scale = (np.abs(parts).max(-1, keepdims=True) / 127).astype(np.float16)
    steps = np.rint(np.divide(parts, scale, out=np.zeros_like(parts), where=scale > 0, dtype=np.float32))
    codes = np.clip(steps, -127, 127).astype(np.int8)
    blocks = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=-1)
    return blocks.reshape(len(values), -1)


def quantize_q4_k(values: FloatArray) -> Bytes:
    """Returns [rows, bytes of a row]: per 256 values two half-precision scales, 8 scales and minima, 256 nibbles.

    A value is d · scale · code - dmin · minimum, with scale and minimum of its 32 neighbours.
    """
    parts = values.reshape(-1, 8, 32)
    least = np.minimum(parts.min(-1), 0)
    step = (np.maximum(parts.max(-1), 0) - least) / 15
    d = (step.max(-1, keepdims=True) / 63).astype(np.float16)
    dmin = (-least.min(-1, keepdims=True) / 63).astype(np.float16)
    scales, minima = _sixths(step, d), _sixths(-least, dmin)
    size = (d * scales).astype(np.float32)[..., None]
    shifted = parts + (dmin * minima).astype(np.float32)[..., None]
    codes = np.rint(np.divide(shifted, size, out=np.zeros_like(parts), where=size > 0))
    nibbles = np.clip(codes, 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    packed = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(len(parts), 128)
    heads = [d.view(np.uint8), dmin.view(np.uint8), _pack_sixths(scales.astype(np.uint8), minima.astype(np.uint8))]
    return np.concatenate([*heads, packed], axis=-1).reshape(len(values), -1)


def _sixths(values: FloatArray, unit: npt.NDArray[np.float16]) -> FloatArray:
    """Returns values over unit as whole numbers from 0 to 63."""
    scaled = np.divide(values, unit, out=np.zeros_like(values), where=unit > 0, dtype=np.float32)
    return np.clip(np.rint(scaled), 0, 63)


def _pack_sixths(scales: Bytes, minima: Bytes) -> Bytes:
    """Returns [blocks, 12]: 8 scales and 8 minima of 6 bits, the upper bits of the last four with the first four."""
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    third = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=-1)


QUANTISERS: Mapping[str, Callable[[FloatArray], Bytes]] = {"Q8_0": quantize_q8_0, "Q4_K": quantize_q4_k}
