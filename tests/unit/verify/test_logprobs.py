"""Log-probabilities of one row: exact values, ties, extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax

from draftgraph.verify.logprobs import token_logprobs


def test_the_values_are_those_of_log_softmax() -> None:
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(0, 5, 500).astype(np.float32)
        before = logits.copy()
        expected = log_softmax(logits.astype(np.float64))
        found = token_logprobs(logits, 17, 20)
        assert found.token == 17
        assert found.logprob == pytest.approx(expected[17], abs=1e-12)
        assert [token for token, _ in found.top] == np.argsort(-expected, kind="stable")[:20].tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx([expected[token] for token, _ in found.top])
        assert (logits == before).all()


def test_probabilities_that_are_known_come_out() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    found = token_logprobs(logits, 3, 4)
    assert found.logprob == pytest.approx(math.log(0.125), abs=1e-6)
    assert [(token, round(math.exp(logprob), 6)) for token, logprob in found.top] == [
        (0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125),
    ]  # fmt: skip


def test_no_alternatives_and_more_than_there_are() -> None:
    logits = np.array([1, 2, 3], np.float32)
    assert token_logprobs(logits, 0, 0).top == ()
    assert [token for token, _ in token_logprobs(logits, 0, 20).top] == [2, 1, 0]


def test_on_a_tie_the_lower_id_comes_first() -> None:
    found = token_logprobs(np.array([0, 7, 7, 0, 7], np.float32), 0, 4)
    assert [token for token, _ in found.top] == [1, 2, 4, 0]


def test_huge_logits_neither_overflow_nor_vanish() -> None:
    for scale in (1e4, 1e30, -1e30):
        found = token_logprobs(np.array([scale, scale], np.float32), 1, 2)
        assert found.logprob == pytest.approx(-math.log(2))
    assert token_logprobs(np.array([0, 3e4], np.float32), 0, 1).logprob == pytest.approx(-3e4)
