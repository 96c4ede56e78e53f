"""How fast this machine reads memory and multiplies: the two ceilings that measured passes are held against.

In: a number of threads, and the instruction set that multiplies. Out: bytes and multiply-adds per second. Knows no
model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from draftgraph.extension import core

_SIDE, _ROWS = 1024, 32
_ROUNDS = 500_000  # some milliseconds of work in registers
_TRIES = 8


def memory_speed(threads: int) -> float:
    """Returns bytes per second that `threads` threads together read from memory: the best of several passes over
    256 MB.
    """
    blocks = np.array_split(np.ones(1 << 25, np.float64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return sum(block.nbytes for block in blocks) / _shortest(lambda: list(pool.map(np.max, blocks)), _TRIES)


def multiply_speed(isa: str, threads: int) -> float:
    """Returns multiply-adds per second where nothing but the processor limits them: the best of several runs.

    Args:
        isa: a kernel level, for its multiply-adds of bytes in registers; or "numpy", for NumPy's float32 product of
            matrices that stay in the cache, whatever `threads` says.
    """
    if isa == "numpy":
        x, weights = np.ones((_ROWS, _SIDE), np.float32), np.ones((_SIDE, _SIDE), np.float32)
        return x.size * _SIDE / _shortest(lambda: np.matmul(x, weights), 25 * _TRIES)
    with ThreadPoolExecutor(threads) as pool:
        work = [_ROUNDS] * threads
        seconds = _shortest(lambda: list(pool.map(lambda rounds: core.multiply_adds(isa, rounds), work)), _TRIES)
    return threads * _ROUNDS * 1024 / seconds


def _shortest(work: Callable[[], object], tries: int) -> float:
    """Returns the seconds of the fastest of `tries` runs."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
