"""Measure what a runner's passes cost, once per machine, model and threads.

In: a runner with a free slot. Out: a `CostTable`, from the cache folder where one of exactly this setting is kept.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from draftgraph.plan.cost import CostTable
from draftgraph.runner.base import Runner
from draftgraph.types import Extension, VerifyBatch

_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 18, 24, 32)
_REPEATS = 5
_SLOW, _ROWS_OF_SLOW = 0.06, 8  # where one row takes so many seconds, passes of more rows are left to be learned
_SHORT, _LONG, _MANY = 16, 256, 16  # contexts and rows to tell what a cell costs


def cost_table(runner: Runner, file: Path | None) -> CostTable:
    """Returns the table kept in `file`, or measures one and keeps it there; None keeps nothing."""
    if file is not None:
        try:
            return CostTable.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # not there, or not whole
            pass
    table = measure(runner)
    if file is not None:
        _keep(table, file)
    return table


def measure(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CostTable:
    """Measures passes in a free slot of `runner`, which it leaves as it was. The row counts take turns, and the fastest
    of each counts: whatever else the machine does only ever makes a pass slower."""
    room = runner.context_length - 1
    slot = runner.open()
    try:
        read(runner, slot, min(_SHORT, room))
        slow = time_pass(runner, slot, 1, clock) > _SLOW
        most = min(_ROWS_OF_SLOW if slow else _ROWS[-1], max(room - _SHORT, 1))
        rows = [count for count in _ROWS if count <= most]
        seconds = _least(runner, slot, rows, clock)
        cell_seconds = 0.0
        if room >= _LONG + _MANY and not slow:
            read(runner, slot, _LONG - _SHORT)
            longer = _least(runner, slot, [_MANY], clock)[_MANY]
            cell_seconds = max(longer - seconds[_MANY], 0.0) / (_MANY * (_LONG - _SHORT))
    finally:
        runner.release(slot)
    return CostTable(seconds, cell_seconds)


def time_pass(runner: Runner, slot: int, rows: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds of one pass of `rows` rows over the slot's text, which it leaves as it was."""
    start = clock()
    runner.extend(VerifyBatch((slot,), [chain(rows, first_row=0)]))
    seconds = clock() - start
    runner.commit(slot, [])
    return seconds


def read(runner: Runner, slot: int, length: int, chunk: int = 64) -> None:
    """Commits `length` tokens to the slot, chunk by chunk."""
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        runner.extend(VerifyBatch((slot,), [chain(count, first_row=count)]))
        runner.commit(slot, range(count))


def chain(count: int, first_row: int) -> Extension:
    """Returns `count` tokens in a row; any do, and every vocabulary has the first few."""
    tokens = np.arange(count, dtype=np.int32) % 4
    return Extension(tokens, np.arange(-1, count - 1, dtype=np.int32), first_row)


def _least(runner: Runner, slot: int, rows: Sequence[int], clock: Callable[[], float]) -> dict[int, float]:
    taken: dict[int, list[float]] = {count: [] for count in rows}
    for _ in range(_REPEATS):
        for count in rows:
            taken[count].append(time_pass(runner, slot, count, clock))
    return {count: min(times) for count, times in taken.items()}


def _keep(table: CostTable, file: Path) -> None:
    """Writes the table whole or not at all; a folder that cannot be written costs the next start a second."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".partial")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(table.to_json(), out)
        os.replace(name, file)
    except OSError:
        pass
