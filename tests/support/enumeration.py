"""Exact arithmetic for acceptance: every random choice of a run is enumerated, in fractions.

The rules under test are the shipped ones; only the noise is replaced, by one that branches, and the target by a table.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Drawn, IntArray, MergeRule, TokenTree, Window
from draftgraph.verify.accept import Rule

Table = dict[tuple[int, ...], np.ndarray]  # tokens since the start -> probabilities of the next, Fractions
ROOT = 0  # the token before the text


class Branches:
    """One run's choices: replays a prefix of decisions, then takes the first branch of each new one."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)
        self.weights: list[list[Fraction]] = []
        self.probability = Fraction(1)

    def choose(self, weights: Sequence[Fraction]) -> int:
        at = len(self.weights)
        self.weights.append(list(weights))
        if at == len(self.script):
            self.script.append(next(i for i, weight in enumerate(weights) if weight > 0))
        self.probability *= weights[self.script[at]]
        return self.script[at]

    def next_script(self) -> list[int] | None:
        """The decisions of the next run in depth-first order, or None after the last."""
        for at in range(len(self.script) - 1, -1, -1):
            for branch in range(self.script[at] + 1, len(self.weights[at])):
                if self.weights[at][branch] > 0:
                    return [*self.script[:at], branch]
        return None


def outcomes(run: Callable[[Branches], Any]) -> dict[Any, Fraction]:
    """The exact distribution of what `run` returns."""
    result: dict[Any, Fraction] = defaultdict(Fraction)
    script: list[int] | None = []
    while script is not None:
        branches = Branches(script)
        value = run(branches)
        result[value] += branches.probability
        script = branches.next_script()
    assert sum(result.values()) == 1, "the enumeration lost some probability"
    return dict(result)


class BranchingNoise:
    """Noise that takes every branch; scores are probabilities here."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def contenders(self, scores: np.ndarray, position: int, margin: float) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("acceptance asks for draws, not for noise")

    def pick(self, scores: np.ndarray, position: int) -> int:
        return self._branches.choose(list(scores))

    def choose(self, probs: np.ndarray, position: int) -> int:
        return self._branches.choose(list(probs))

    def coin(self, probability: Fraction, position: int, attempt: int) -> bool:
        probability = min(probability, Fraction(1))
        return self._branches.choose([probability, 1 - probability]) == 0


class TableTarget:
    """A target whose next-token probabilities after each text are known."""

    def __init__(self, table: Table, text: tuple[int, ...], tree: TokenTree) -> None:
        self._table = table
        self._text = text
        self._tree = tree

    @property
    def position(self) -> int:
        return len(self._text) + 1

    def scores(self, path: Sequence[int]) -> np.ndarray:
        return self.probs(path)

    def probs(self, path: Sequence[int]) -> np.ndarray:
        return self._table[(*self._text, *self._tree.tokens[list(path)].tolist())]

    def logprobs(self, tokens: Sequence[int], nodes: Sequence[int]) -> None:
        return None

    def successors(self) -> IntArray:
        return np.zeros((len(self._tree.tokens) - self._tree.first_row, 1), np.int32)


def random_table(vocab: int, length: int, seed: int) -> Table:
    """Probabilities with small denominators after each text shorter than `length`; some are zero."""
    rng = random.Random(seed)
    table = {}
    for depth in range(length):
        for text in itertools.product(range(vocab), repeat=depth):
            weights = [rng.choice([0, 1, 2, 3, 5]) for _ in range(vocab)]
            weights[rng.randrange(vocab)] += 1
            table[text] = np.array([Fraction(weight, sum(weights)) for weight in weights], dtype=object)
    return table


def text_distribution(table: Table, length: int) -> dict[tuple[int, ...], Fraction]:
    """The target's own distribution of texts of this length."""
    result = {(): Fraction(1)}
    for _ in range(length):
        result = {
            (*text, token): probability * table[text][token]
            for text, probability in result.items()
            for token in range(len(table[()]))
            if table[text][token] > 0
        }
    return result


# Grows a graph: (graph, draft table, text so far, deepest level, the run's choices)
Grow = Callable[[TokenGraph, Table, tuple[int, ...], int, Branches], None]
MakeTarget = Callable[[Table, tuple[int, ...], TokenTree], TableTarget]


def decode(
    branches: Branches,
    rule: Rule,
    grow: Grow,
    target: Table,
    draft: Table,
    length: int,
    *,
    budget: int = 100,
    merge: MergeRule | None = None,
    make_target: MakeTarget = TableTarget,
) -> tuple[int, ...]:
    """Writes `length` tokens by draft, select and accept, step by step, as the engine does."""
    text: tuple[int, ...] = ()
    while len(text) < length:
        depth = length - len(text) - 1
        graph = TokenGraph((ROOT, *text), merge or MergeRule(length=0))
        grow(graph, draft, text, depth, branches)
        graph.check()
        window = Window(np.zeros(1, np.int32), True, budget, depth, len(target[()]))
        (tree,) = select([graph], [window])
        walk = rule(tree, make_target(target, text, tree), BranchingNoise(branches))
        text += tuple(token for token, _ in walk)
    return text


def draw_children(
    graph: TokenGraph, node: int, probs: np.ndarray, count: int, branches: Branches, estimate: float | None = None
) -> list[int]:
    """Adds `count` draws without replacement from `probs` below `node`. Returns the children that are new.

    The estimates fall with the order of the draw and do not depend on its value.
    """
    fresh, rest = [], probs.copy()
    for order in range(min(count, sum(prob > 0 for prob in probs))):
        token = branches.choose([prob / rest.sum() for prob in rest])
        rest[token] = 0
        known = len(graph)
        child = graph.add(node, token, "drawn", estimate or 0.9 / (order + 1), Drawn(probs, order))
        if child == known:
            fresh.append(child)
    return fresh


def graph_text(graph: TokenGraph, node: int) -> tuple[int, ...]:
    """The tokens from below the root to `node` along first parents: what a draft model conditions on."""
    text: list[int] = []
    while node > 0:
        text.append(graph.tokens[node])
        node = graph.parents[node]
    return tuple(reversed(text))
