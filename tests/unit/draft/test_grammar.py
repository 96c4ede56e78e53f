"""Forced drafts: one chain of what the constraint says, within budget and depth, and nothing without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftgraph.draft.grammar import NAME, GrammarDrafter
from draftgraph.rng import Greedy
from draftgraph.types import Constraint, Context, Mask, MergeRule


class Forced:
    """A constraint that forces these tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def allowed(self, path: Sequence[int]) -> Mask | None:
        return np.ones(10, np.bool_)

    def permits(self, path: Sequence[int]) -> bool:
        return True

    def forced(self) -> tuple[int, ...]:
        return self._tokens


def about(constraint: Constraint | None) -> Context:
    return Context(0, [1, 2, 3], Greedy(), 0.0, 100, MergeRule(), constraint)


@pytest.mark.parametrize(
    ("constraint", "depth", "budget", "expected"),
    [
        (Forced(7, 8, 7, 9), 8, 8, [7, 8, 7, 9]),
        (Forced(7, 8, 7, 9), 2, 8, [7, 8]),
        (Forced(7, 8, 7, 9), 8, 3, [7, 8, 7]),
        (Forced(7, 8, 7, 9), 8, 0, []),
        (Forced(), 8, 8, []),
        (None, 8, 8, []),
    ],
)
def test_the_chain_is_what_is_forced(
    constraint: Constraint | None, depth: int, budget: int, expected: list[int]
) -> None:
    ((graph,),) = GrammarDrafter(depth).propose([about(constraint)], [budget])
    assert graph.tokens[1:] == expected
    assert graph.parents == list(range(-1, len(expected)))
    assert all(edge.sources == (NAME,) for edges in graph.children for edge in edges.values())


def test_each_request_gets_its_own() -> None:
    graphs = GrammarDrafter(8).propose([about(Forced(5)), about(None), about(Forced(6, 7))], [4, 4, 4])
    assert [graph.tokens[1:] for (graph,) in graphs] == [[5], [], [6, 7]]
