"""Select: of every size the best tree of the unrolling, and never one node more than it needs to look at."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftgraph.graph.budget import select
from draftgraph.graph.encode import path_to
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Drawn, MergeRule, TokenTree, Window

VOCAB = 4


def window(budget: int, *, known: Sequence[int] = (9,), max_depth: int = 100, vocab_size: int = VOCAB) -> Window:
    return Window(np.asarray(known, np.int32), True, budget, max_depth, vocab_size)


def pick(graph: TokenGraph, budget: int, **options: int) -> TokenTree:
    (tree,) = select([graph], [window(budget, **options)])  # type: ignore[arg-type]
    return tree


def random_graph(seed: int, num_adds: int, tokens: int = VOCAB) -> TokenGraph:
    rng = random.Random(seed)
    graph = TokenGraph([9], MergeRule(length=rng.choice([0, 1, 1, 2]), same_depth=rng.random() < 0.5))
    for _ in range(num_adds):
        # Halves and quarters tie often; products of them are exact.
        graph.add(rng.randrange(len(graph)), rng.randrange(tokens), "a", rng.choice([0.25, 0.5, 0.75, 1.0]))
    return graph


def unrolled(graph: TokenGraph, max_depth: int = 100, vocab_size: int = VOCAB) -> dict[tuple[int, ...], float]:
    """Every path below the root with the product of its edges' estimates."""
    found: dict[tuple[int, ...], float] = {}
    pending: list[tuple[int, tuple[int, ...], float]] = [(0, (), 1.0)]
    while pending:
        node, path, share = pending.pop()
        for token, edge in graph.children[node].items():
            if len(path) < max_depth and token < vocab_size:
                found[(*path, token)] = share * edge.acceptance
                pending.append((edge.child, (*path, token), share * edge.acceptance))
    return found


def best_sum(shares: dict[tuple[int, ...], float], size: int) -> float:
    """The largest sum over all trees of this size, by trying every set of paths."""
    best = -1.0
    for chosen in itertools.combinations(shares, size):
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            best = max(best, sum(shares[path] for path in chosen))
    return best


def tree_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The tokens of each draft's path, in row order."""
    return [
        tuple(int(tree.tokens[at]) for at in path_to(tree.parents, node)[tree.num_known :])
        for node in range(tree.num_known, len(tree.tokens))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_best_first_gives_the_largest_sum_of_path_acceptances_of_every_size(seed: int) -> None:
    graph = random_graph(seed, num_adds=9)
    shares = unrolled(graph)
    if len(shares) > 13:
        shares = unrolled(graph, max_depth=2)
    depth = max(map(len, shares))
    for size in range(min(len(shares), 7) + 1):
        tree = pick(graph, size, max_depth=depth)
        assert tree.num_drafts == size
        assert sum(tree.path_acceptance[1:]) == best_sum(shares, size)


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_is_made_of_distinct_paths_of_the_graph_with_their_own_estimates(seed: int) -> None:
    graph = random_graph(seed, num_adds=25)
    shares = unrolled(graph)
    tree = pick(graph, 60)
    found = tree_paths(tree)
    assert len(found) == len(set(found)) == min(60, len(shares))
    estimates = tree.path_acceptance[1:]
    assert list(estimates) == [shares[path] for path in found]
    assert list(estimates) == sorted(estimates, reverse=True)
    for at, node in enumerate(range(1, len(tree.tokens))):
        below = [tree.graph_nodes[step] for step in path_to(tree.parents, node)]
        assert len(set(below)) == len(below), "a path visits a merged node twice"
        assert graph.tokens[tree.graph_nodes[node]] == found[at][-1]


@pytest.mark.parametrize("seed", range(20))
def test_a_smaller_budget_gives_a_prefix_of_a_larger_ones_tree(seed: int) -> None:
    graph = random_graph(seed, num_adds=25)
    whole = pick(graph, 40)
    for budget in range(41):
        part = pick(graph, budget)
        num = 1 + part.num_drafts
        assert part.num_drafts == min(budget, whole.num_drafts)
        assert part.tokens.tolist() == whole.tokens[:num].tolist()
        assert part.parents.tolist() == whole.parents[:num].tolist()
        assert part.path_acceptance == whole.path_acceptance[:num]


@pytest.mark.parametrize("max_depth", [0, 1, 2, 3])
def test_no_draft_is_deeper_than_the_window_allows(max_depth: int) -> None:
    for seed in range(10):
        graph = random_graph(seed, num_adds=20)
        tree = pick(graph, 500, max_depth=max_depth)
        assert set(tree_paths(tree)) == set(unrolled(graph, max_depth=max_depth))


def test_tokens_outside_the_vocabulary_go_with_all_that_follows_them() -> None:
    for seed in range(10):
        graph = random_graph(seed, num_adds=20)
        assert set(tree_paths(pick(graph, 500, vocab_size=2))) == set(unrolled(graph, vocab_size=2))
    graph = TokenGraph([0], MergeRule())
    graph.add(graph.add(0, -1, "a", 0.9), 0, "a", 0.9)
    graph.add(0, 1, "a", 0.1)
    assert tree_paths(pick(graph, 5)) == [(1,)]


def test_ties_go_to_the_one_that_was_added_first() -> None:
    graph = TokenGraph([9], MergeRule())
    for token in (3, 1, 2, 0):
        graph.add(0, token, "a", 0.5)
    assert tree_paths(pick(graph, 4)) == [(3,), (1,), (2,), (0,)]


def test_a_merged_node_is_verified_once_for_each_path() -> None:
    graph = TokenGraph([9], MergeRule(length=1))
    shared = graph.add(graph.add(0, 0, "a", 0.5), 2, "a", 0.5)
    assert graph.add(graph.add(0, 1, "a", 0.5), 2, "a", 0.5) == shared
    tree = pick(graph, 10)
    assert tree_paths(tree) == [(0,), (1,), (0, 2), (1, 2)]
    assert tree.graph_nodes == (0, 1, 3, shared, shared)


def test_a_ladder_with_a_billion_paths_is_unrolled_no_further_than_the_budget() -> None:
    graph = TokenGraph([1000], MergeRule(length=1, same_depth=True))
    level = [0]
    for depth in range(30):  # 2 ** 30 paths
        level = sorted({graph.add(node, 2 * depth + side, "a", 0.9) for node in level for side in (0, 1)})
    start = time.perf_counter()
    tree = pick(graph, 10, vocab_size=1000)
    assert time.perf_counter() - start < 0.2
    assert tree.num_drafts == 10


def test_sources_draws_and_estimates_travel_with_their_nodes() -> None:
    draw = Drawn(np.array([0.5, 0.5]), 0)
    graph = TokenGraph([9], MergeRule())
    graph.add(0, 1, "model", 0.5, draw)
    graph.add(0, 1, "ngram", 0.9)
    graph.add(0, 2, "ngram", 0.25)
    (tree,) = select([graph], [window(5, known=(7, 8, 9))])
    assert tree.sources == ((), (), (), ("model", "ngram"), ("ngram",))
    assert tree.draws == (None, None, None, draw, None)
    assert tree.path_acceptance == (1.0, 1.0, 1.0, 0.5, 0.25)
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2]
    assert tree.graph is graph


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("ranked_first", [True, False])
def test_no_ranked_sibling_is_picked_before_a_drawn_one(shared: bool, ranked_first: bool) -> None:
    """Otherwise the fate of a draw depends on whether it is the token that another drafter likes."""
    prob = np.full(VOCAB, 0.25)
    graph = TokenGraph([9], MergeRule())
    draws = [(1, 0.5, Drawn(prob, 0)), (0 if shared else 2, 0.25, Drawn(prob, 1))]
    ranked = [(0, 1.0, None)]
    for token, acceptance, draw in [*ranked, *draws] if ranked_first else [*draws, *ranked]:
        graph.add(0, token, "a", acceptance, draw)
    for budget in (1, 2):
        tree = pick(graph, budget)
        assert [draw.order for draw in tree.draws if draw] == list(range(budget))
    assert pick(graph, 3).num_drafts == (2 if shared else 3)


def test_each_request_gets_its_own_window_and_the_graphs_are_only_read() -> None:
    graphs = [random_graph(seed, num_adds=15) for seed in range(3)]
    before = [[dict(edges) for edges in graph.children] for graph in graphs]
    trees = select(graphs, [window(0), window(3), window(7)])
    assert [tree.num_drafts for tree in trees] == [0, 3, 7]
    assert trees[0].tokens.tolist() == [9]
    assert [[dict(edges) for edges in graph.children] for graph in graphs] == before
    with pytest.raises(ValueError, match="shorter"):
        select(graphs, [window(1)])


# What the request can never write


def test_a_path_that_is_not_permitted_costs_no_row_and_takes_all_that_would_follow_along() -> None:
    for seed in range(40):
        graph = random_graph(seed, 12)
        asked: list[tuple[int, ...]] = []

        def permits(path: Sequence[int], asked: list[tuple[int, ...]] = asked) -> bool:
            asked.append(tuple(path))
            return sum(path) % 3 != 1

        about = replace(window(6, max_depth=4), permits=permits)
        (tree,) = select([graph], [about])
        paths = {tuple(tree.tokens[path_to(tree.parents, node)][1:].tolist()) for node in range(1, len(tree.tokens))}
        wanted = {
            path: share
            for path, share in unrolled(graph, 4).items()
            if all(sum(path[:n]) % 3 != 1 for n in range(1, len(path) + 1))
        }
        assert paths <= wanted.keys()
        assert len(paths) == min(6, len(wanted))
        assert sum(wanted[path] for path in paths) == best_sum(wanted, len(paths))
        assert len(asked) == len(set(asked)), "a path was asked about twice"


def test_a_drawn_child_is_verified_whatever_it_is() -> None:
    """Its fate must not depend on its token."""
    graph = TokenGraph([9], MergeRule(0))
    draft_prob = np.full(VOCAB, 1 / VOCAB)
    for order, token in enumerate((2, 1)):
        graph.add(0, token, "model", 0.5, Drawn(draft_prob, order))
    graph.add(0, 3, "ngram", 0.5)
    (tree,) = select([graph], [replace(window(5), permits=lambda path: path == (1,))])
    assert tree.tokens.tolist() == [9, 2, 1]
