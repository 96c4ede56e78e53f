"""The largest values of a row, by both versions, against sorting the whole row."""

from __future__ import annotations

import numpy as np
import pytest

from draftgraph.kernels.likeliest import likeliest, likeliest_reference


def rows(seed: int, count: int, vocabulary: int, distinct: int) -> np.ndarray:
    """Rows with many ties where `distinct` is small."""
    rng = np.random.default_rng(seed)
    return rng.integers(-distinct, distinct, (count, vocabulary)).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [1, 5, 8, 16, 17, 300, 1003])
@pytest.mark.parametrize("distinct", [1, 3, 10**6])
def test_both_versions_give_what_a_stable_sort_gives(vocabulary: int, distinct: int) -> None:
    values = rows(vocabulary, 7, vocabulary, distinct)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :8]
    assert (likeliest(values, 8) == expected).all()
    assert (likeliest_reference(values, min(8, vocabulary)) == expected).all()


@pytest.mark.parametrize("place", [0, 20, 41])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_comes_first(place: int, bad: float) -> None:
    values = np.arange(42, 0, -1, dtype=np.float32)[np.newaxis]
    values[0, place] = bad
    assert likeliest(values, 3)[0, 0] == place
    assert likeliest_reference(values, 3)[0, 0] == place


def test_no_ids_are_wanted() -> None:
    assert likeliest(np.ones((3, 20), np.float32), 0).shape == (3, 0)


def test_no_rows_give_no_ids() -> None:
    assert likeliest(np.empty((0, 20), np.float32), 8).shape == (0, 8)


def test_banned_tokens_come_last() -> None:
    values = np.full((1, 40), -np.inf, np.float32)
    values[0, [30, 3]] = 1, 2
    assert likeliest(values, 4).tolist() == [[3, 30, 0, 1]]
    assert likeliest_reference(values, 4).tolist() == [[3, 30, 0, 1]]
