"""Rows of scores of every kind that a filter or a draw must get right, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]

# (random numbers, how many) -> scores
FAMILIES: dict[str, Callable[[np.random.Generator, int], Scores]] = {
    "like a model's": lambda random, n: random.normal(0, 3, n),
    "flat": lambda random, n: random.normal(0, 0.1, n),
    "with ties": lambda random, n: random.integers(-3, 3, n).astype(np.float64),
    "all equal": lambda random, n: np.zeros(n),
    "mostly banned": lambda random, n: np.where(random.random(n) < 0.97, -np.inf, random.normal(0, 2, n)),
    "one allowed": lambda random, n: np.where(np.arange(n) == random.integers(n), 0.0, -np.inf),
    "none allowed": lambda random, n: np.full(n, -np.inf),
    "next to no temperature": lambda random, n: random.normal(0, 1e300, n),
    "so large that noise is rounded away": lambda random, n: 1e17 + 64 * random.integers(0, 3, n),
    "so large that noise is rounded": lambda random, n: 1e16 - 2.0 * random.integers(0, 3, n),
    "a high temperature": lambda random, n: random.normal(0, 1e-9, n),
    "rising": lambda random, n: np.linspace(-30, 0, n),
    "falling": lambda random, n: np.linspace(0, -30, n),
}
