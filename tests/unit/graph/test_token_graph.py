"""The token graph: never a cycle, never two siblings alike, and merging exactly when it should be.

The truth is `NaiveGraph`, which keeps every node's whole text and searches for everything.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.graph.token_graph import TokenGraph, merge
from draftgraph.types import Drawn, MergeRule

DRAW = Drawn(np.array([0.5, 0.5]), 0)
bounded = settings(max_examples=150, deadline=None, derandomize=True, database=None)

rules = st.builds(MergeRule, length=st.integers(0, 4), same_depth=st.booleans())
contexts = st.lists(st.integers(0, 2), min_size=1, max_size=5)
# Each addition: which of the nodes so far, taken modulo their number, and the token.
additions = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2)), max_size=30)
few_additions = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2)), max_size=10)


class NaiveGraph:
    """Nodes with their whole first text; a node is mergeable when a search over all nodes finds it."""

    def __init__(self, context: Sequence[int], rule: MergeRule) -> None:
        self.rule = rule
        self.start = len(context)
        self.texts = [tuple(context)]
        self.children: list[dict[int, int]] = [{}]
        self.num_merged = 0

    def reaches(self, node: int, goal: int) -> bool:
        return node == goal or any(self.reaches(child, goal) for child in self.children[node].values())

    def mergeable(self, parent: int, text: tuple[int, ...]) -> list[int]:
        m = self.rule.length
        if m == 0:
            return []
        return [
            node
            for node in range(1, len(self.texts))
            if self.texts[node][-m:] == text[-m:]
            and not self.reaches(node, parent)
            and (len(self.texts[node]) == len(text) or not self.rule.same_depth)
        ]

    def add(self, parent: int, token: int) -> int:
        if token not in self.children[parent]:
            text = (*self.texts[parent], token)
            found = self.mergeable(parent, text)
            self.num_merged += bool(found)
            if not found:
                self.texts.append(text)
                self.children.append({})
            self.children[parent][token] = found[0] if found else len(self.texts) - 1
        return self.children[parent][token]


def grow(graph: TokenGraph, adds: Sequence[tuple[int, int]], source: str = "one") -> TokenGraph:
    for parent, token in adds:
        graph.add(parent % len(graph), token, source, 0.5)
    graph.check()
    return graph


def paths(graph: TokenGraph) -> set[tuple[int, ...]]:
    """The tokens of every path that starts at the root."""
    graph.check()  # a cycle has paths without end
    found = set()
    pending: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while pending:
        node, text = pending.pop()
        found.add(text)
        pending.extend((edge.child, (*text, token)) for token, edge in graph.children[node].items())
    return found


def sources_along(graph: TokenGraph, path: Sequence[int]) -> tuple[str, ...]:
    node, sources = 0, ()
    for token in path:
        edge = graph.children[node][token]
        node, sources = edge.child, edge.sources
    return sources


def picture(graph: TokenGraph) -> object:
    edges = [
        [(token, edge.child, edge.acceptance, edge.sources) for token, edge in found.items()]
        for found in graph.children
    ]
    return (list(graph.tokens), list(graph.depths), list(graph.parents), edges, graph.num_merged)


@bounded
@given(contexts, rules, additions)
def test_random_additions_agree_with_a_naive_graph_at_every_step(
    context: list[int], rule: MergeRule, adds: list[tuple[int, int]]
) -> None:
    graph, naive = TokenGraph(context, rule), NaiveGraph(context, rule)
    for parent, token in adds:
        node = parent % len(graph)
        assert graph.add(node, token, "one", 0.5) == naive.add(node, token)
        assert len(graph) == len(naive.texts)
        assert graph.num_merged == naive.num_merged
    graph.check()
    assert [{t: e.child for t, e in edges.items()} for edges in graph.children] == naive.children
    for a, b in itertools.product(range(len(graph)), repeat=2):
        assert graph.is_ancestor(a, of=b) == naive.reaches(a, b)


@bounded
@given(contexts, rules, few_additions)
def test_every_path_to_a_node_ends_in_the_same_tokens_and_depth(
    context: list[int], rule: MergeRule, adds: list[tuple[int, int]]
) -> None:
    graph = grow(TokenGraph(context, rule), adds)
    ends: dict[int, set[tuple[int, ...]]] = {}
    for path in paths(graph):
        node = 0
        for token in path:
            node = graph.children[node][token].child
        text = (*context, *path)
        ends.setdefault(node, set()).add(text[-rule.length :] if rule.length else ())
        assert not rule.same_depth or graph.depths[node] == len(path)
    assert all(len(tails) == 1 for tails in ends.values())


def test_a_shared_end_is_merged_and_its_later_children_continue_both_hypotheses() -> None:
    graph = TokenGraph([9], MergeRule(length=2))
    left = graph.add(graph.add(graph.add(0, 1, "a", 0.5), 5, "a", 0.5), 6, "a", 0.5)
    right = graph.add(graph.add(graph.add(0, 2, "a", 0.5), 5, "a", 0.5), 6, "a", 0.5)
    assert left == right
    assert graph.num_merged == 1
    graph.add(left, 7, "a", 0.5)
    assert {(1, 5, 6, 7), (2, 5, 6, 7)} <= paths(graph)


def test_an_ancestor_is_never_merged_into() -> None:
    graph = TokenGraph([9], MergeRule(length=1))
    node = 0
    for token in [1, 2, 1, 2, 1, 2]:
        node = graph.add(node, token, "a", 0.5)
    assert graph.num_drafted == 6
    assert graph.num_merged == 0
    graph.check()


def test_a_merge_passes_its_ancestors_on_to_all_descendants() -> None:
    graph = TokenGraph([9], MergeRule(length=1))
    shared = graph.add(graph.add(0, 1, "a", 0.5), 5, "a", 0.5)
    deep = graph.add(graph.add(shared, 6, "a", 0.5), 7, "a", 0.5)
    other = graph.add(0, 2, "a", 0.5)
    assert graph.add(other, 5, "a", 0.5) == shared
    assert graph.is_ancestor(other, of=deep)
    again = graph.add(deep, 2, "a", 0.5)  # node `other` carries that token, but leads here: a cycle otherwise
    assert again not in (other, shared)
    graph.check()


def test_nodes_at_other_depths_are_merged_only_where_the_rule_allows_it() -> None:
    for same_depth in (False, True):
        graph = TokenGraph([9], MergeRule(length=1, same_depth=same_depth))
        graph.add(0, 5, "a", 0.5)
        graph.add(graph.add(0, 1, "a", 0.5), 5, "a", 0.5)
        assert graph.num_merged == (not same_depth)


def test_the_text_before_the_root_counts_where_the_path_is_short() -> None:
    graph = TokenGraph([4, 5], MergeRule(length=3))
    at_root = graph.add(0, 6, "a", 0.5)  # ends in 4 5 6
    node = 0
    for token in (1, 4, 5):
        node = graph.add(node, token, "a", 0.5)
    assert graph.add(node, 6, "a", 0.5) == at_root
    other = TokenGraph([3, 5], MergeRule(length=3))
    at_root = other.add(0, 6, "a", 0.5)  # ends in 3 5 6
    node = 0
    for token in (1, 4, 5):
        node = other.add(node, token, "a", 0.5)
    assert other.add(node, 6, "a", 0.5) != at_root


@bounded
@given(contexts, rules, few_additions, few_additions, few_additions)
def test_a_union_keeps_every_hypothesis_of_all_graphs(
    context: list[int],
    rule: MergeRule,
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    third: list[tuple[int, int]],
) -> None:
    parts = [
        grow(TokenGraph(context, rule), adds, name)
        for adds, name in ((first, "one"), (second, "two"), (third, "three"))
    ]
    before = [paths(part) for part in parts]
    others = [picture(part) for part in parts[1:]]
    (union,) = merge([parts])
    assert union is parts[0]
    union.check()
    assert [picture(part) for part in parts[1:]] == others, "the absorbed graphs were modified"
    for name, hypotheses in zip(("one", "two", "three"), before, strict=True):
        assert hypotheses <= paths(union)
        assert all(name in sources_along(union, path) for path in hypotheses if path)
    for edges in union.children:
        for edge in edges.values():
            assert len(set(edge.sources)) == len(edge.sources) > 0


@bounded
@given(contexts, rules, few_additions)
def test_a_graph_absorbed_into_itself_or_a_bare_root_gains_nothing(
    context: list[int], rule: MergeRule, adds: list[tuple[int, int]]
) -> None:
    graph, twin, bare = (
        grow(TokenGraph(context, rule), adds),
        grow(TokenGraph(context, rule), adds),
        TokenGraph(context, rule),
    )
    before = picture(graph)
    graph.absorb(twin)
    graph.absorb(TokenGraph(context, rule))
    assert picture(graph) == before
    bare.absorb(graph)
    assert paths(bare) >= paths(graph)
    bare.check()


def test_two_drafters_that_agree_share_nodes_and_list_both_names() -> None:
    one, two = TokenGraph([9], MergeRule()), TokenGraph([9], MergeRule())
    for graph, source in ((one, "one"), (two, "two")):
        graph.add(graph.add(0, 1, source, 0.5), 2, source, 0.5)
    two.add(0, 1, "two", 0.5)
    one.absorb(two)
    assert one.num_drafted == 2
    assert one.num_merged == 0
    assert sources_along(one, [1, 2]) == ("one", "two")


@pytest.mark.parametrize(("earlier", "later", "kept"), [(0.2, 0.6, 0.6), (0.6, 0.2, 0.6), (0.3, 0.3, 0.3)])
def test_of_two_ranked_estimates_the_higher_is_kept(earlier: float, later: float, kept: float) -> None:
    graph = TokenGraph([9], MergeRule())
    graph.add(0, 1, "one", earlier)
    graph.add(0, 1, "two", later)
    assert graph.children[0][1].acceptance == kept


@pytest.mark.parametrize("ranked", [0.1, 0.9])
@pytest.mark.parametrize("drawn_first", [True, False])
def test_a_drawn_edge_keeps_its_estimate_whatever_else_is_said(ranked: float, drawn_first: bool) -> None:
    graph = TokenGraph([9], MergeRule())
    steps = [("model", 0.4, DRAW), ("ngram", ranked, None)]
    for source, acceptance, draw in steps if drawn_first else reversed(steps):
        graph.add(0, 1, source, acceptance, draw)
    (edge,) = graph.children[0].values()
    assert edge.acceptance == 0.4
    assert edge.draw is DRAW
    assert set(edge.sources) == {"model", "ngram"}
    receiver = TokenGraph([9], MergeRule())
    receiver.add(0, 1, "suffix", 0.95)
    receiver.absorb(graph)
    assert receiver.children[0][1].acceptance == 0.4
    assert receiver.children[0][1].draw is DRAW


def test_a_ladder_of_merges_is_absorbed_in_time_proportional_to_its_edges() -> None:
    rule = MergeRule(length=1, same_depth=True)
    ladder = TokenGraph([1000], rule)
    level = [0]
    for depth in range(60):  # 2 ** 60 paths
        level = sorted({ladder.add(node, 2 * depth + side, "a", 0.5) for node in level for side in (0, 1)})
    assert ladder.num_drafted == 120
    union = TokenGraph([1000], rule)
    start = time.perf_counter()
    union.absorb(ladder)
    union.check()
    assert time.perf_counter() - start < 1
    assert union.num_drafted == 120


@pytest.mark.parametrize("fault", ["cycle", "orphan", "wrong token", "stale ancestors", "wrong depth", "lost parent"])
def test_check_notices_a_broken_graph(fault: str) -> None:
    graph = TokenGraph([9], MergeRule())
    one = graph.add(0, 1, "a", 0.5)
    two = graph.add(one, 2, "a", 0.5)
    three = graph.add(0, 3, "a", 0.5)
    graph.check()
    edge = graph.children[one][2]
    if fault == "cycle":
        graph.children[two][1] = graph.children[0][1]
    elif fault == "orphan":
        del graph.children[0][1]
    elif fault == "wrong token":
        graph.children[one][7] = graph.children[one].pop(2)
    elif fault == "stale ancestors":
        graph.children[three][2] = edge
    elif fault == "wrong depth":
        graph.depths[two] = 3
    else:
        graph.parents[two] = three
    with pytest.raises((AssertionError, KeyError)):
        graph.check()
