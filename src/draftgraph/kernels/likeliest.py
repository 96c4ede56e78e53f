"""The largest values of each row: in C++ where the extension is there, else in NumPy, with one signature."""

from __future__ import annotations

import numpy as np

from draftgraph.extension import core
from draftgraph.types import FloatArray, IntArray


def likeliest(rows: FloatArray, count: int) -> IntArray:
    """Returns [n, k]: the ids of the k = min(count, vocabulary) largest values of rows [n, vocabulary], largest first.

    The lower id comes first on a tie. What is no number counts as infinite.
    """
    k = min(count, rows.shape[1])
    if core is None:
        return likeliest_reference(rows, k)
    ids = np.empty((len(rows), k), np.int32)
    core.likeliest(np.ascontiguousarray(rows), ids)
    return ids


def likeliest_reference(rows: FloatArray, k: int) -> IntArray:
    """Returns what `likeliest` does, by sorting the values that reach the k-th largest."""
    ids = np.empty((len(rows), k), np.int32)
    for row, values in enumerate(np.where(np.isnan(rows), np.inf, rows)):
        candidates = np.flatnonzero(values >= np.partition(values, -k)[-k])
        ids[row] = candidates[np.argsort(-values[candidates], kind="stable")][:k]
    return ids
