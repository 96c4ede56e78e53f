"""Token recycling: every verified node teaches the table, and the graph is a best-first walk through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from draftgraph.draft.base import root_graph
from draftgraph.draft.recycle import NAME, RecycleDrafter
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.rng import Greedy
from draftgraph.types import Context, FinishReason, MergeRule, Verdict, Window


def context(tokens: Sequence[int], request: int = 0, rule: MergeRule | None = None) -> Context:
    return Context(request, tokens, Greedy(), 0.0, 100, rule or MergeRule())


def verdict(
    about: Context,
    drafts: Sequence[tuple[int, int]],
    successors: Mapping[int, Sequence[int]],
    finish: FinishReason | None = None,
    *,
    complete: bool = True,
) -> Verdict:
    """Says which successors the target gave to the root (the text's last token) and to the drafts, none accepted."""
    graph = root_graph(about)
    nodes = [0]
    for parent, token in drafts:
        nodes.append(graph.add(nodes[parent], token, "test", 0.9))
    known = np.asarray(about.tokens, np.int32)
    (tree,) = select([graph], [Window(known, complete, 100 if complete else 0, 100, 100)])
    rows = [list(successors[token]) for token in tree.tokens[tree.first_row :].tolist()]
    emitted = (99,) if complete else ()
    taught = np.array(rows, np.int32) if rows else np.zeros((0, 2), np.int32)
    return Verdict(tree, emitted, (-1,) * len(emitted), tuple(range(tree.num_known)), finish, taught)


def propose(drafter: RecycleDrafter, tokens: Sequence[int], request: int = 0, budget: int = 30) -> TokenGraph:
    ((graph,),) = drafter.propose([context(tokens, request)], [budget])
    graph.check()
    return graph


def children(graph: TokenGraph, node: int = 0) -> list[int]:
    edges = graph.children[node]
    assert [edge.acceptance for edge in edges.values()] == sorted((e.acceptance for e in edges.values()), reverse=True)
    return list(edges)


def teach(drafter: RecycleDrafter, request: int = 0, finish: FinishReason | None = None) -> None:
    about = context([1, 2], request)
    table = {2: [3, 4], 3: [5, 6], 4: [7, 8], 5: [2, 9]}
    drafter.observe([about], [verdict(about, [(0, 3), (0, 4), (1, 5)], table, finish)])


def test_every_verified_node_teaches_its_successors_accepted_or_not() -> None:
    drafter = RecycleDrafter(depth=1)
    teach(drafter)
    for token, expected in {2: [3, 4], 3: [5, 6], 4: [7, 8], 5: [2, 9]}.items():
        assert children(propose(drafter, [0, token])) == expected
    assert propose(drafter, [0, 1]).num_drafted == 0, "the target gave no row for a token before the root"


def test_the_graph_follows_the_table_as_deep_as_it_may() -> None:
    drafter = RecycleDrafter(depth=3)
    teach(drafter)
    graph = propose(drafter, [0, 2])
    assert max(graph.depths) == 3
    three = graph.children[0][3].child
    assert children(graph, three) == [5, 6]
    five = graph.children[three][5].child
    assert children(graph, five) == [2, 9]
    assert all(edge.sources == (NAME,) for edges in graph.children for edge in edges.values())


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5])
def test_a_budget_cuts_the_walk_best_first(budget: int) -> None:
    drafter = RecycleDrafter(depth=3)
    teach(drafter)
    whole, part = propose(drafter, [0, 2]), propose(drafter, [0, 2], budget=budget)
    assert part.num_drafted == budget
    assert part.tokens == whole.tokens[: budget + 1]
    assert part.parents == whole.parents[: budget + 1]


def test_a_later_verdict_replaces_what_a_token_was_followed_by() -> None:
    drafter = RecycleDrafter(depth=1)
    teach(drafter)
    about = context([1, 2])
    drafter.observe([about], [verdict(about, [], {2: [8, 3]})])
    assert children(propose(drafter, [2])) == [8, 3]


def test_a_prompt_that_is_still_being_read_teaches_nothing() -> None:
    drafter = RecycleDrafter(depth=1)
    about = context([1, 2])
    drafter.observe([about], [verdict(about, [], {}, complete=False)])
    assert propose(drafter, [2]).num_drafted == 0


def test_a_loop_in_the_table_ends_at_the_depth() -> None:
    drafter = RecycleDrafter(depth=4)
    about = context([1])
    drafter.observe([about], [verdict(about, [], {1: [1, 1]})])
    graph = propose(drafter, [1])
    assert graph.tokens == [1] * 5


def test_requests_learn_apart_and_forget_when_they_end() -> None:
    drafter = RecycleDrafter(depth=1)
    teach(drafter, request=0)
    assert propose(drafter, [2], request=1).num_drafted == 0
    teach(drafter, request=1)
    teach(drafter, request=0, finish=FinishReason.STOP)
    assert children(propose(drafter, [2], request=1)) == [3, 4]
    assert propose(drafter, [2], request=0).num_drafted == 0
    for request in (0, 1):
        teach(drafter, request, FinishReason.CANCELLED)
    assert not any(kept for kept in vars(drafter).values() if isinstance(kept, dict))


def test_a_shared_table_outlives_its_requests() -> None:
    drafter = RecycleDrafter(depth=1, keep_requests=True)
    teach(drafter, request=0, finish=FinishReason.LENGTH)
    assert children(propose(drafter, [2], request=5)) == [3, 4]
