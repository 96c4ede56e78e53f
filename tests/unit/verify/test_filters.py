"""Filters and penalties, bit for bit against their definition: sort the whole row, and walk the whole text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from draftgraph.config import SamplingParams
from draftgraph.kernels import exp_sum as kernel
from draftgraph.verify import filters
from draftgraph.verify.distribution import SamplingContext, TargetDistribution
from draftgraph.verify.filters import keep, softmax
from support.scores import FAMILIES

Scores = npt.NDArray[np.float64]


def by_sorting(scores: Scores, sampling: SamplingParams) -> Scores:
    """The definition."""
    scores = scores.copy()
    if 0 < sampling.top_k < len(scores) or sampling.top_p < 1:
        order = np.argsort(-scores, kind="stable")
        kept = len(scores) if sampling.top_k == 0 else min(sampling.top_k, len(scores))
        if sampling.top_p < 1:
            before = np.cumsum(softmax(scores[order[:kept]]))
            kept = int(np.searchsorted(before, sampling.top_p)) + 1
        scores[order[kept:]] = -np.inf
    if sampling.min_p > 0:
        scores[scores < scores.max() + np.log(sampling.min_p)] = -np.inf
    return scores


KINDS = (
    "like a model's",
    "flat",
    "with ties",
    "all equal",
    "mostly banned",
    "one allowed",
    "next to no temperature",
    "a high temperature",
    "rising",
)
SIZES = (1, 2, 3, 8, 63, 100, 256, 257, 300, 4095, 4200, 20_001)
TOP_KS = (0, 1, 2, 5, 40, 255, 256, 1000, 10**6)
TOP_PS = (1.0, 0.1, 0.5, 0.9, 0.95, 1 - 1e-9, 1e-12)  # 0.1 and 0.5 are met exactly where all are equal
MIN_PS = (0.0, 0.02, 1.0)


def rows() -> Iterator[tuple[Scores, SamplingParams]]:
    random = np.random.default_rng(1)
    for (kind, num), repeat in itertools.product(itertools.product(KINDS, SIZES), range(12)):
        scores = FAMILIES[kind](random, num)
        if not np.isfinite(scores.max()):
            scores[random.integers(num)] = 0
        top_p = float(random.choice(TOP_PS))
        top_k = int(random.choice(TOP_KS)) if repeat % 2 else 0
        yield (
            scores - scores.max(),
            SamplingParams(temperature=1, top_k=top_k, top_p=top_p, min_p=float(random.choice(MIN_PS))),
        )


def num_differences(found: Callable[[Scores, SamplingParams], Scores] = keep) -> int:
    """Rows that a filter treats otherwise than the definition."""
    return sum(not np.array_equal(found(scores.copy(), how), by_sorting(scores, how)) for scores, how in rows())


def test_what_is_kept_is_what_sorting_the_whole_row_keeps() -> None:
    assert num_differences() == 0


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.5])
def test_the_same_in_a_large_vocabulary(temperature: float) -> None:
    random = np.random.default_rng(2)
    for top_p, top_k in itertools.product((0.5, 0.95, 0.999), (0, 50)):
        scores = random.normal(0, 2.5, 152_001)
        scores[random.integers(0, len(scores), 20)] += np.linspace(2, 12, 20)
        scores = (scores - scores.max()) / temperature
        sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
        assert np.array_equal(keep(scores.copy(), sampling), by_sorting(scores, sampling))


@pytest.mark.parametrize("error", [-1, -0.3, 0.3, 1])
def test_the_error_of_the_sum_decides_nothing(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    monkeypatch.setattr(filters, "exp_sum", lambda scores: float(np.exp(scores).sum()) * (1 + error * kernel.REL_ERROR))
    assert num_differences() == 0


@pytest.mark.parametrize("sum_of", [kernel.exp_sum, kernel.exp_sum_reference])
@pytest.mark.parametrize("num", [1, 7, 8, 9, 1000, 152_001])
def test_the_sum_is_as_close_as_it_says(sum_of: Callable[[Scores], float], num: int) -> None:
    for scale in (0, 1e-9, 1.0, 30.0, 1e4, 1e308):
        scores = -scale * np.random.default_rng(num).random(num)
        scores[num // 2] = 0
        scores[: num // 3] = -np.inf
        assert sum_of(scores) == pytest.approx(np.exp(scores).sum(), rel=0.5 * kernel.REL_ERROR)


# Penalties


def by_walking(logits: Scores, tokens: list[int], num_prompt: int, sampling: SamplingParams) -> Scores:
    """The definition, token by token; `tokens` are all before this place."""
    logits = logits.copy()
    for token in set(tokens):
        value, penalty = logits[token], sampling.repetition_penalty
        logits[token] = value / penalty if value > 0 else value * penalty
    for token, count in Counter(tokens[num_prompt:]).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return (logits - logits.max()) / sampling.temperature


@pytest.mark.parametrize("repetition", [1.0, 1.3])
@pytest.mark.parametrize("presence", [0.0, 0.4])
@pytest.mark.parametrize("frequency", [0.0, 0.3])
def test_every_row_of_a_step_is_penalised_as_its_own_text(repetition: float, presence: float, frequency: float) -> None:
    random = np.random.default_rng(0)
    sampling = SamplingParams(
        temperature=0.7, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    for _ in range(50):
        vocab, num_nodes = 23, 6
        tokens = random.integers(0, vocab, random.integers(1, 12)).tolist()
        num_prompt = int(random.integers(1, len(tokens) + 1))
        drafts = random.integers(0, vocab, num_nodes)
        logits = random.normal(0, 3, (num_nodes, vocab)).astype(np.float32)
        tree = SimpleNamespace(tokens=drafts, root=0, first_row=0)
        target = TargetDistribution(logits, tree, SamplingContext(tokens, num_prompt, sampling))  # type: ignore[arg-type]
        for depth in (0, 3, 5, 1):  # in any order: no row may leave a trace
            path = list(range(1, depth + 1))
            expected = by_walking(
                logits[depth].astype(np.float64), tokens + drafts[path].tolist(), num_prompt, sampling
            )
            assert np.array_equal(target.scores(path), expected)


# Planted faults. Each must be caught.


def highest_id_first(scores: Scores, sampling: SamplingParams) -> Scores:
    return keep(scores[::-1].copy(), sampling)[::-1]


def test_ties_by_the_highest_id_are_caught() -> None:
    assert num_differences(highest_id_first) > 0


def test_a_sum_that_is_trusted_too_far_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "exp_sum", lambda scores: float(np.exp(scores).sum()) * (1 + 0.3 * kernel.REL_ERROR))
    monkeypatch.setattr(filters, "_CERTAIN", 0.0)
    assert num_differences() > 0


def test_a_head_that_lacks_a_score_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = filters._falling

    def faulty(scores: Scores, count: int) -> Scores:
        found = falling(scores, count)
        found[1:2] = found[2:3] if len(found) > 2 else found[1:2]
        return found

    monkeypatch.setattr(filters, "_falling", faulty)
    assert num_differences() > 0
