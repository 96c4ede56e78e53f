"""How fast this machine reads memory and multiplies: the two ceilings that measured passes are held against.

In: a number of threads, and the instruction set that multiplies. Out: bytes and multiply-adds per second. Knows no
model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

try:
    from draftgraph import _native
except ImportError:  # installed without a compiler
    _native = None  # type: ignore[assignment]

_SIDE, _ROWS = 1024, 32  # a product whose weights, 0.6 MB of them, stay in the cache
_Q4_K, _Q4_K_BYTES = 12, _SIDE * _SIDE // 256 * 144
_TRIES = 200


def memory_speed(threads: int) -> float:
    """Returns bytes per second that `threads` threads together read from memory: the best of several passes over
    256 MB.
    """
    blocks = np.array_split(np.ones(1 << 25, np.float64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return sum(block.nbytes for block in blocks) / _shortest(lambda: list(pool.map(np.max, blocks)), tries=8)


def multiply_speed(isa: str, threads: int) -> float:
    """Returns multiply-adds per second where memory does not limit them: the best of many products in the cache.

    Args:
        isa: a kernel level, for its own product of 4-bit weights (Q4_K), the fastest that it has; or "numpy", for
            NumPy's float32 product, whatever `threads` says.
    """
    x, out = np.ones((_ROWS, _SIDE), np.float32), np.empty((_ROWS, _SIDE), np.float32)
    if isa == "numpy":
        weights = np.ones((_SIDE, _SIDE), np.float32)
        seconds = _shortest(lambda: np.matmul(x, weights, out=out), _TRIES)
    else:
        tensor = _native.Tensor(_Q4_K, _SIDE, _SIDE, np.zeros(_Q4_K_BYTES, np.uint8))
        product = _native.Linear(tensor, threads, isa)
        seconds = _shortest(lambda: product.multiply(x, out), _TRIES)
    return x.size * _SIDE / seconds


def _shortest(work: Callable[[], object], tries: int) -> float:
    """Returns the seconds of the fastest of `tries` runs."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
