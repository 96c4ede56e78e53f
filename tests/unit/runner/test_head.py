"""A reduced head: every logit belongs to one token, and what was read has a place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgraph.runner.head import TILE, ReducedHead


def test_the_fixed_ids_come_first_and_the_rest_is_free() -> None:
    head = ReducedHead([5, 3, 3], 100)
    assert head.ids[:2].tolist() == [3, 5]
    assert set(head.ids[2:].tolist()) == {-1}
    assert len(head) % TILE == 0 or len(head) == 100  # no larger than the vocabulary


def test_tokens_that_were_read_get_a_place_once() -> None:
    head = ReducedHead(range(20), 4000)
    head.admit(np.array([1, 19], np.int32))
    assert head.stale == set()
    head.admit(np.array([999, 1, 999, 888], np.int32))
    assert head.stale == {20 // TILE}
    head.stale.clear()
    assert {999, 888} <= set(head.ids.tolist())
    head.admit(np.array([888, 999], np.int32))
    assert head.stale == set()
    assert set(head.rows_of(1).tolist()) >= {16, 17, 18, 19, 999, 888, 0}


def test_logits_stand_at_their_tokens() -> None:
    head = ReducedHead([2, 7], 10)
    head.admit(np.array([9], np.int32))
    logits = np.arange(2 * len(head), dtype=np.float32).reshape(2, -1)
    full = head.spread(logits)
    assert full.shape == (2, 10)
    for row in range(2):
        assert full[row, [2, 7, 9]].tolist() == logits[row, :3].tolist()
        assert np.isneginf(np.delete(full[row], [2, 7, 9])).all()


@given(
    fixed=st.sets(st.integers(0, 5999), min_size=1, max_size=40),
    reads=st.lists(st.lists(st.integers(0, 5999), min_size=1, max_size=1500), max_size=6),
)
def test_no_token_ever_has_two_places_and_fixed_ones_stay(fixed: set[int], reads: list[list[int]]) -> None:
    head = ReducedHead(sorted(fixed), 6000)
    for tokens in reads:
        before = head.ids.copy()
        head.stale.clear()
        head.admit(np.array(tokens, np.int32))
        changed = np.flatnonzero(before != head.ids) // TILE
        assert set(changed.tolist()) == head.stale
        used = head.ids[head.ids >= 0].tolist()
        assert len(set(used)) == len(used)
        assert fixed <= set(used)
        assert set(tokens) <= set(used)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 48])
def test_a_small_vocabulary_is_all_there(vocab_size: int) -> None:
    head = ReducedHead(range(vocab_size), vocab_size)
    assert head.spread(np.zeros((1, len(head)), np.float32)).tolist() == [[0.0] * vocab_size]
