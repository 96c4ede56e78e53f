"""The extension's choice of contenders changes no draw: with it and without it, the same ids and the same numbers.

Without the extension the formula looks at every id, and test_rng.py says that it is right. Skipped where there is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from draftgraph import rng
from draftgraph.rng import SeededNoise
from support.scores import FAMILIES

pytestmark = pytest.mark.skipif(rng.core is None, reason="the extension is not there")

Scores = npt.NDArray[np.float64]
NATIVE = rng.core
SIZES = (1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 129, 1000, 4133)


def shifted(scores: Scores) -> Scores:
    """Below the largest, as a request's scores are."""
    return scores - scores.max() if np.isfinite(scores.max()) else scores


def rows(repeats: int) -> Iterator[tuple[Scores, int, int]]:
    """(scores, seed, position)"""
    random = np.random.default_rng(7)
    for family, num in itertools.product(FAMILIES.values(), SIZES):
        for _ in range(repeats):
            scores = family(random, num)
            yield from ((each, *map(int, random.integers(0, 2**62, 2))) for each in (scores, shifted(scores)))


def draws(scores: Scores, seed: int, position: int) -> tuple[object, ...]:
    """All that is drawn from a row, at several margins."""
    noise = SeededNoise(seed)
    weights = np.exp(np.clip(scores, -700, 0))
    found = [noise.contenders(scores, position, margin) for margin in (0.0, 0.3, 10.0, 1e6, math.inf)]
    return (
        noise.pick(scores, position),
        noise.choose(weights, position),
        [(ids.tolist(), perturbed.tolist()) for ids, perturbed in found],
    )


def num_differences(monkeypatch: pytest.MonkeyPatch, native: object, repeats: int) -> int:
    """Rows from which other things are drawn with `native` than by the formula alone."""
    differences = 0
    for row in rows(repeats):
        monkeypatch.setattr(rng, "core", None)
        expected = draws(*row)
        monkeypatch.setattr(rng, "core", native)
        differences += draws(*row) != expected
    return differences


def test_the_same_draws_with_and_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_differences(monkeypatch, NATIVE, repeats=6) == 0


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 40.0])
def test_the_same_draws_from_a_large_vocabulary(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    random = np.random.default_rng(3)
    for seed in range(15):
        scores = shifted(random.normal(0, scale, 152_001))
        picks = [SeededNoise(seed).pick(scores, 5)]
        monkeypatch.setattr(rng, "core", None)
        picks.append(SeededNoise(seed).pick(scores, 5))
        monkeypatch.setattr(rng, "core", NATIVE)
        assert picks[0] == picks[1]


def test_few_ids_of_a_large_vocabulary_contend() -> None:
    """Otherwise it would be right, and no use."""
    random = np.random.default_rng(5)
    for scale in (0.1, 1.0, 4.0):
        scores, room = shifted(random.normal(0, scale, 152_000)), np.empty(152_000, np.int32)
        assert NATIVE.contenders(scores, 11, 0.0, room) < 50
        assert NATIVE.contenders(np.full(152_000, -np.inf), 11, 0.0, room) == 0


def test_unfit_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        NATIVE.contenders(np.zeros(5), 1, 0.0, np.empty(4, np.int32))
    with pytest.raises(TypeError):
        NATIVE.contenders(np.zeros(5, np.float32), 1, 0.0, np.empty(5, np.int32))


# Planted faults. Each must be caught.


class Faulty:
    """The extension with a fault: `change` rewrites (key, margin), `order` what is found."""

    def __init__(
        self,
        change: Callable[[int, float], tuple[int, float]] = lambda key, margin: (key, margin),
        order: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]] = lambda ids: ids,
    ) -> None:
        self._change = change
        self._order = order

    def contenders(self, scores: Scores, key: int, margin: float, room: npt.NDArray[np.int32]) -> int:
        count = NATIVE.contenders(scores, *self._change(key, margin), room)
        room[:count] = self._order(room[:count].copy())
        return count


@pytest.mark.parametrize(
    "fault",
    [
        Faulty(lambda key, margin: (key, margin / 2)),
        Faulty(lambda key, margin: (key, margin - 1e-3)),
        Faulty(lambda key, margin: (key ^ 1, margin)),  # another lane, position or seed
        Faulty(order=lambda ids: ids[::-1]),  # ties go to the highest id
    ],
    ids=["half the margin", "a margin a little too small", "another lane", "tie order"],
)
def test_faults_are_caught(monkeypatch: pytest.MonkeyPatch, fault: Faulty) -> None:
    assert num_differences(monkeypatch, fault, repeats=1) > 0
