"""The sign test against known values, scipy and a count of all outcomes."""

from __future__ import annotations

import itertools

import pytest
from scipy.stats import binomtest

from draftgraph.bench.significance import sign_test


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (3, 3, 1.0), (5, 0, 0.0625), (0, 5, 0.0625), (8, 1, 0.0390625), (1, 8, 0.0390625)],
)
def test_known_values(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == p


def test_it_counts_the_outcomes_that_are_at_least_as_uneven() -> None:
    for throws in range(1, 9):
        outcomes = [sum(sides) for sides in itertools.product((0, 1), repeat=throws)]
        for wins in range(throws + 1):
            uneven = sum(abs(2 * heads - throws) >= abs(2 * wins - throws) for heads in outcomes)
            assert sign_test(wins, throws - wins) == uneven / len(outcomes)


@pytest.mark.parametrize(("wins", "losses"), [(13, 7), (60, 41), (900, 1100)])
def test_it_agrees_with_scipy(wins: int, losses: int) -> None:
    assert sign_test(wins, losses) == pytest.approx(binomtest(wins, wins + losses).pvalue, rel=1e-9)
