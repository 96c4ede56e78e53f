"""The sum of exponentials of a row: in C++ where the extension is there, else in NumPy, with one signature."""

from __future__ import annotations

import numpy as np

from draftgraph.extension import core
from draftgraph.types import Row

REL_ERROR = 1e-9  # of either version


def exp_sum(scores: Row) -> float:
    """Returns the sum of exp(scores), scores [vocabulary], the largest of them 0, within REL_ERROR of its value."""
    return exp_sum_reference(scores) if core is None else core.exp_sum(np.ascontiguousarray(scores))


def exp_sum_reference(scores: Row) -> float:
    """Returns what `exp_sum` does."""
    return float(np.exp(scores).sum())
