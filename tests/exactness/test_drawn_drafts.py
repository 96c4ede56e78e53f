"""The residual rule with a draft model's own draws, through the whole engine: every outcome is enumerated.

A draw may be kept or dropped for any reason but its own value. Here a draft model draws, other drafters propose beside
it, graphs merge, and a budget cuts: the text must still have exactly the target's distribution.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ranking import Candidate
from draftgraph.engine.request import State
from draftgraph.types import Drawn
from draftgraph.verify.accept import residual
from support.enumeration import Branches, BranchingNoise
from support.rigs import ScriptDrafter, TableRunner, chain, make_engine, mixture

Floats = dict[tuple[int, ...], np.ndarray]  # text -> probabilities of the next token
PROMPT = 0


def table(vocab: int, length: int, seed: int) -> Floats:
    """Probabilities with small denominators after each text shorter than `length`; some are zero."""
    rng = random.Random(seed)
    rows = {}
    for depth in range(length):
        for text in itertools.product(range(vocab), repeat=depth):
            weights = [rng.choice([0, 1, 2, 3, 5]) for _ in range(vocab)]
            weights[rng.randrange(vocab)] += 1
            rows[text] = np.array(weights) / sum(weights)
    return rows


def logits_of(rows: Floats) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Logits whose softmax is the table's row; a probability of 0 is a logit far below the others."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        probs = rows.get(text[1:], next(iter(rows.values())))
        return np.where(probs > 0, np.log(np.maximum(probs, 1e-9)), -1000.0)

    return logits


class Outcomes(BranchingNoise):
    """Takes every branch that has a probability worth the name."""

    def pick(self, scores: np.ndarray, position: int) -> int:
        weights = np.exp(scores - scores.max())
        return self.choose(weights / weights.sum(), position)

    def choose(self, probs: np.ndarray, position: int) -> int:
        return self._branches.choose([float(prob) if prob > 1e-12 else 0.0 for prob in probs])  # type: ignore[misc]

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        heads = min(float(probability), 1.0)
        return self._branches.choose([heads, 1 - heads if heads < 1 - 1e-6 else 0.0]) == 0  # type: ignore[list-item]


def ranking(branches: Branches) -> Callable[..., list[Candidate]]:
    """`drawn` with enumerated draws: without replacement, estimated by the order of the draw alone."""

    def draw(*arguments: Any) -> list[Candidate]:
        *_, logits, width = arguments
        probs = np.exp(logits.astype(np.float64))
        probs /= probs.sum()
        rest, candidates = np.where(probs > 1e-6, probs, 0.0), []
        for order in range(min(width, int((rest > 0).sum()))):
            token = branches.choose([float(weight) for weight in rest / rest.sum()])  # type: ignore[misc]
            rest[token] = 0
            candidates.append(Candidate(token, float(np.sort(probs)[-1 - order]), Drawn(probs, order)))
        return candidates

    return draw


def write_all(
    target: Floats, draft: Floats, length: int, budget: int, width: int, merge: int, others: list[Drafter]
) -> float:
    """Returns the total variation between the engine's texts of `length` tokens, all enumerated, and the target's."""
    vocab = len(target[()])
    found: dict[tuple[int, ...], float] = defaultdict(float)
    script: list[int] | None = []
    while script is not None:
        branches = Branches(script)
        model = ModelDrafter(TableRunner(logits_of(draft), vocab), width, 8, ranking(branches))
        drafter = mixture(*others, model) if others else model
        engine = make_engine(TableRunner(logits_of(target), vocab), drafter, rule=residual, merge_length=merge)
        request = engine.submit((PROMPT,), SamplingParams(max_tokens=length, temperature=1.0), budget)
        request.noise = Outcomes(branches)
        while request.state is not State.FINISHED:
            engine.step()
        found[tuple(request.output)] += float(branches.probability)
        script = branches.next_script()
    assert sum(found.values()) == pytest.approx(1, abs=1e-6), "the enumeration lost some probability"
    wanted = {
        text: float(np.prod([target[text[:i]][token] for i, token in enumerate(text)]))
        for text in itertools.product(range(vocab), repeat=length)
    }
    return sum(abs(found[text] - probability) for text, probability in wanted.items()) / 2


def worst(seeds: Sequence[int], vocab: int, length: int, others: Sequence[Drafter] = (), **options: int) -> float:
    return max(
        write_all(table(vocab, length, seed), table(vocab, length, seed + 1000), length, others=list(others), **options)
        for seed in seeds
    )


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_a_draft_model_s_draws_are_exact_at_any_budget(budget: int) -> None:
    assert worst(range(6), 2, 4, budget=budget, width=2, merge=0) < 1e-6
    assert worst(range(4), 3, 3, budget=budget, width=1, merge=0) < 1e-6


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("budget", [2, 3, 4])
def test_merging_does_not_bias_which_draws_a_budget_keeps(budget: int, merge: int) -> None:
    """Whether two draws merge is decided by their values, and a merged node's estimates by who computed it."""
    assert worst((1, 2, 3), 2, 5, budget=budget, width=2, merge=merge) < 1e-6


@pytest.mark.parametrize("budget", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2])
def test_a_ranked_draft_beside_a_draw_does_not_bias_which_of_them_a_budget_keeps(width: int, budget: int) -> None:
    """A ranked child that the draw happens to equal is one row, otherwise it is two: the draw must not pay for that."""
    copied = ScriptDrafter(lambda context: chain([0, 1]))
    assert worst(range(5), 2, 4, [copied], budget=budget, width=width, merge=0) < 1e-6
    assert worst(range(3), 3, 3, [copied], budget=budget, width=width, merge=1) < 1e-6


def test_equal_estimates_do_not_drop_an_earlier_draw_before_a_later_one() -> None:
    """The ranked child stands first among its siblings; drawn second, it must not be kept without the first draw."""
    flat = {text: np.full(len(row), 1 / len(row)) for text, row in table(3, 3, 0).items()}
    copied = ScriptDrafter(lambda context: chain([0, 1]))
    assert write_all(table(3, 3, 1), flat, 3, 1, 2, 0, [copied]) < 1e-6
