"""The profile: what a target pass costs, by its number of rows, and how fast a prompt is read.

In: a runner. Out: medians in milliseconds and ratios to one row, with the memory's own speed beside them. The row
counts take turns, so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgraph.bench import memory_speed
from draftgraph.runner.paged import PagedRunner
from draftgraph.types import Extension, VerifyBatch

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Profile:
    """What passes cost.

    Args:
        context: committed tokens below the measured rows.
        pass_ms: rows -> median milliseconds.
        ceiling_ms: the weights' bytes over the memory's speed: no pass can be faster.
        prompt_tokens_per_second: reading a prompt of 512 tokens, or of the context if that is shorter.
    """

    context: int
    pass_ms: dict[int, float]
    ceiling_ms: float
    prompt_tokens_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the published form, with the ratios to one row."""
        one = self.pass_ms[1]
        return {
            "context": self.context,
            "pass_ms": {str(rows): round(ms, 3) for rows, ms in self.pass_ms.items()},
            "ratio": {str(rows): round(ms / one, 3) for rows, ms in self.pass_ms.items()},
            "ceiling_ms": round(self.ceiling_ms, 3),
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 1),
        }


def profile(runner: PagedRunner, rows: Sequence[int], context: int, repeats: int) -> Profile:
    """Measures passes of `rows` rows (1 is added) in a free slot of `runner`, which it leaves as it was."""
    counts = sorted({1, *rows})
    slot = runner.open()
    try:
        _read(runner, slot, context)
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        for repeat in range(repeats + 1):
            for count in counts:
                start = time.perf_counter()
                runner.extend(VerifyBatch((slot,), [_chain(count, first_row=0)]))
                if repeat:  # the first round warms up
                    seconds[count].append(time.perf_counter() - start)
                runner.commit(slot, [])
    finally:
        runner.release(slot)
    return Profile(
        context=context,
        pass_ms={count: 1e3 * statistics.median(values) for count, values in seconds.items()},
        ceiling_ms=1e3 * runner.weight_bytes / memory_speed(),
        prompt_tokens_per_second=_prompt_speed(runner),
    )


def _prompt_speed(runner: PagedRunner) -> float:
    length = min(512, runner.context_length)
    slot = runner.open()
    try:
        start = time.perf_counter()
        _read(runner, slot, length)
        return length / (time.perf_counter() - start)
    finally:
        runner.release(slot)


def _read(runner: PagedRunner, slot: int, length: int) -> None:
    """Commits `length` tokens to the slot, chunk by chunk."""
    for start in range(0, length, _CHUNK):
        count = min(_CHUNK, length - start)
        runner.extend(VerifyBatch((slot,), [_chain(count, first_row=count)]))
        runner.commit(slot, range(count))


def _chain(count: int, first_row: int) -> Extension:
    tokens = np.arange(count, dtype=np.int32) % 64 + 32  # any tokens do; every vocabulary has these
    return Extension(tokens, np.arange(-1, count - 1, dtype=np.int32), first_row)
