"""Prompt lookup against a search of the whole text, however the text grew."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from draftgraph.draft.base import root_graph
from draftgraph.draft.ngram import NAME, NgramDrafter
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.rng import Greedy
from draftgraph.types import Context, FinishReason, MergeRule, Verdict, Window


def context(tokens: Sequence[int], request: int = 0) -> Context:
    return Context(request, tokens, Greedy(), 0.0, 100, MergeRule())


def verdict(about: Context, tokens: Sequence[int] = (), finish: FinishReason | None = None) -> Verdict:
    window = Window(np.asarray(about.tokens[-1:], np.int32), True, 0, 0, 100)
    (tree,) = select([root_graph(about)], [window])
    return Verdict(tree, tuple(tokens), (-1,) * len(tokens), (0,), finish, np.zeros((1, 0), np.int32))


def chain_of(graph: TokenGraph) -> list[int]:
    """The graph's tokens; it must be one chain."""
    assert all(len(edges) <= 1 for edges in graph.children)
    assert graph.parents == list(range(-1, len(graph) - 1))
    return graph.tokens[1:]


def naive(tokens: Sequence[int], length: int) -> tuple[int, list[int]]:
    """The longest n-gram, of at most 4 tokens, that stood here before, and what followed its latest place."""
    for n in (4, 3, 2, 1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if list(tokens[end - n : end]) == list(tokens[-n:]) and n < len(tokens):
                return n, list(tokens[end : end + length])
    return 0, []


@pytest.mark.parametrize("seed", range(20))
def test_proposals_equal_a_search_of_the_text_as_it_grows(seed: int) -> None:
    rng = random.Random(seed)
    drafter = NgramDrafter(depth=5)
    tokens: list[int] = []
    for _ in range(40):
        tokens += [rng.randrange(3) for _ in range(rng.choice([1, 1, 2, 7]))]
        budget = rng.choice([0, 2, 5, 9])
        ((graph,),) = drafter.propose([context(tokens)], [budget])
        n, expected = naive(tokens, min(budget, 5))
        assert chain_of(graph) == expected
        for edges in graph.children:
            for edge in edges.values():
                assert edge.sources == (NAME,)
                assert 0.2 * n <= edge.acceptance < 1, "a longer match is believed more"


def test_a_repetition_of_four_tokens_wins_over_a_later_one_of_fewer() -> None:
    tokens = [1, 2, 3, 4, 50, 0, 3, 4, 60, 1, 2, 3, 4]
    ((graph,),) = NgramDrafter(depth=2).propose([context(tokens)], [8])
    assert chain_of(graph) == [50, 0]


def test_of_two_equal_matches_the_latest_is_copied() -> None:
    ((graph,),) = NgramDrafter(depth=1).propose([context([1, 7, 1, 8, 1])], [8])
    assert chain_of(graph) == [8]


@pytest.mark.parametrize("tokens", [[5], [5, 6], [1, 2, 3, 4]])
def test_a_text_without_repetition_gets_a_bare_root(tokens: list[int]) -> None:
    ((graph,),) = NgramDrafter(depth=4).propose([context(tokens)], [8])
    assert graph.num_drafted == 0


def test_requests_do_not_see_each_others_texts() -> None:
    drafter = NgramDrafter(depth=2)
    first, second = drafter.propose([context([1, 2, 1], 0), context([3, 1], 1)], [4, 4])
    assert chain_of(first[0]) == [2, 1]
    assert second[0].num_drafted == 0


def test_what_is_kept_for_a_request_is_dropped_when_it_ends() -> None:
    drafter = NgramDrafter(depth=2)
    about = context([1, 2, 1])
    drafter.propose([about], [4])
    drafter.observe([about], [verdict(about, [2])])
    assert any(kept for kept in vars(drafter).values() if isinstance(kept, dict))
    drafter.observe([about], [verdict(about, [2], FinishReason.LENGTH)])
    assert not any(kept for kept in vars(drafter).values() if isinstance(kept, dict))
    ((graph,),) = drafter.propose([context([3, 1])], [4])
    assert graph.num_drafted == 0
    never_proposed = context([1], request=9)
    drafter.observe([never_proposed], [verdict(never_proposed, [2], FinishReason.CANCELLED)])
