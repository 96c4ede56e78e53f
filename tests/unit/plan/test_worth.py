"""Calibrated acceptance: what happened counts more than what was claimed."""

from __future__ import annotations

import numpy as np
import pytest

from draftgraph.plan.worth import Worth


def teach(worth: Worth, request: int, votes: dict[str, float], rate: float, count: int = 300, depth: int = 1) -> None:
    outcomes = np.random.default_rng(0).random(count) < rate
    for taken in outcomes:
        worth.learn(request, votes, depth, bool(taken))


def test_without_experience_a_claim_is_believed() -> None:
    worth = Worth()
    assert worth.of(0, {"suffix": 0.3}, 1) == 0.3
    assert worth.of(0, {"suffix": 0.3, "model": 0.6}, 2) == 0.6
    assert worth.of(0, {"model": 1.0}, 1) == 0.999
    assert worth.of(0, {"model": 0.0}, 1) == 0.001


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_experience_replaces_the_claim(rate: float) -> None:
    worth = Worth()
    teach(worth, 0, {"recycle": 0.45}, rate)
    assert worth.of(0, {"recycle": 0.45}, 1) == pytest.approx(rate, abs=0.12)
    assert worth.of(1, {"recycle": 0.45}, 1) == pytest.approx(rate, abs=0.08)  # another request knows it too
    assert worth.of(0, {"recycle": 0.9}, 1) == 0.9  # another confidence does not
    assert worth.of(0, {"ngram": 0.45}, 1) == 0.45  # nor another source
    assert worth.of(0, {"recycle": 0.45}, 4) == pytest.approx(rate, abs=0.15)  # another depth begins with it


def test_a_request_has_its_own_experience() -> None:
    worth = Worth()
    teach(worth, 0, {"suffix": 0.5}, 0.95)
    teach(worth, 1, {"suffix": 0.5}, 0.05)
    assert worth.of(0, {"suffix": 0.5}, 1) > 0.8
    assert worth.of(1, {"suffix": 0.5}, 1) < 0.2
    worth.forget(1)
    assert worth.of(1, {"suffix": 0.5}, 1) > 0.05  # what is left is what all requests taught


def test_agreement_is_learned_as_its_own() -> None:
    worth = Worth()
    both = {"model": 0.6, "suffix": 0.6}
    teach(worth, 0, both, 0.97)
    teach(worth, 0, {"model": 0.6}, 0.5)
    teach(worth, 0, {"suffix": 0.6}, 0.5)
    assert worth.of(0, both, 1) > 0.85
    assert worth.of(0, dict(reversed(both.items())), 1) == worth.of(0, both, 1)
    assert worth.of(0, {"model": 0.6}, 1) < 0.7


def test_what_is_long_past_is_forgotten() -> None:
    worth = Worth()
    teach(worth, 0, {"ngram": 0.7}, 1.0)
    teach(worth, 0, {"ngram": 0.7}, 0.0)
    assert worth.of(0, {"ngram": 0.7}, 1) < 0.06
