"""What a pass costs, and how many drafts are the best choice for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgraph.plan.cost import CostTable, PassCost, best_count

TABLE = CostTable({1: 0.030, 4: 0.033, 8: 0.045, 16: 0.080}, cell_seconds=1e-7)


def test_measured_row_counts_cost_what_was_measured() -> None:
    cost = PassCost(TABLE)
    for rows, seconds in TABLE.seconds.items():
        assert cost.seconds(rows, 0) == pytest.approx(seconds)
    assert cost.seconds(6, 0) == pytest.approx(0.039)
    assert cost.seconds(32, 0) == pytest.approx(0.160)
    assert cost.seconds(4, 1000) == pytest.approx(0.033 + 1e-4)
    assert cost.seconds(0, 0) == 0


@given(
    seconds=st.dictionaries(st.integers(2, 64), st.floats(1e-4, 1.0), max_size=8),
    one=st.floats(1e-4, 1.0),
    seen=st.lists(st.tuples(st.integers(1, 80), st.floats(1e-5, 10.0)), max_size=20),
)
def test_more_rows_never_cost_less_by_the_table(
    seconds: dict[int, float], one: float, seen: list[tuple[int, float]]
) -> None:
    cost = PassCost(CostTable({1: one, **seconds}, 0.0))
    estimates = [cost.seconds(rows, 0) for rows in range(1, 100)]
    assert estimates == sorted(estimates)
    for rows, taken in seen:
        cost.observe(rows, rows, taken)
    assert all(0 < cost.seconds(rows, 0) < math.inf for rows in range(1, 100))


def test_passes_that_take_longer_raise_the_estimate_until_it_is_right() -> None:
    cost = PassCost(TABLE)
    for _ in range(200):
        cost.observe(1, 0, 0.060)
        cost.observe(8, 0, 0.080)
    assert cost.seconds(1, 0) == pytest.approx(0.060, rel=0.05)
    assert cost.seconds(8, 0) == pytest.approx(0.080, rel=0.05)


def test_fewer_rows_are_not_thought_to_take_longer_than_a_pass_of_more() -> None:
    """One row was slow for a while, and then no pass has fewer than sixteen."""
    cost = PassCost(TABLE)
    for _ in range(100):
        cost.observe(1, 0, 0.120)
    for _ in range(100):
        cost.observe(16, 0, 0.080)
    assert cost.seconds(16, 0) == pytest.approx(0.080, rel=0.05)
    assert cost.seconds(1, 0) <= 0.084


def test_one_wild_pass_changes_little() -> None:
    cost = PassCost(TABLE)
    cost.observe(1, 0, 30.0)
    assert cost.seconds(1, 0) < 1.2 * TABLE.seconds[1]


def test_a_table_survives_its_file() -> None:
    assert CostTable.from_json(TABLE.to_json()) == TABLE


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, {"seconds": {}}, {"seconds": {"1": 0.1}}, {"seconds": {"2": 0.1}, "cell_seconds": 0},
        {"seconds": {"1": -1}, "cell_seconds": 0}, {"seconds": {"1": "x"}, "cell_seconds": 0},
        {"seconds": {"1": float("nan")}, "cell_seconds": 0}, {"seconds": {"1": 0.1}, "cell_seconds": float("inf")},
        {"seconds": {"0": 0.1, "1": 0.1}, "cell_seconds": 0}, {"seconds": {"1": 0}, "cell_seconds": 0},
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        CostTable.from_json(data)


@given(
    gains=st.lists(st.floats(0, 1), max_size=12).map(lambda xs: sorted(xs, reverse=True)),
    steps=st.lists(st.floats(0, 0.1), min_size=12, max_size=12),
    base=st.integers(1, 4),
)
def test_the_best_count_has_the_highest_rate_of_all(gains: list[float], steps: list[float], base: int) -> None:
    seconds = [0.03 + sum(steps[:n]) for n in range(len(gains) + 1)]
    best = best_count(gains, base, seconds)
    rates = [(base + sum(gains[:n])) / seconds[n] for n in range(len(gains) + 1)]
    assert best.rate == pytest.approx(max(rates))
    assert rates[best.count] == pytest.approx(best.rate)


def test_drafts_that_cost_more_than_they_bring_are_left_out() -> None:
    assert best_count([0.9, 0.8], 1, [1.0, 2.0, 3.0]).count == 0
    assert best_count([0.9, 0.8], 1, [1.0, 1.1, 1.2]).count == 2
    assert best_count([], 3, [1.0]).rate == 3
