"""Select: the best part of a token graph, unrolled into a tree that fits the budget.

In: one merged graph and one window per request. Out: one `TokenTree` per request. The target's view of a token
depends on its whole prefix, so a merged node becomes one tree node per path, and rows are counted after unrolling.
Never sees tensors or requests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from draftgraph.graph.encode import encode_tree
from draftgraph.graph.token_graph import Edge, TokenGraph
from draftgraph.types import TokenTree, Window


def select(graphs: Sequence[TokenGraph], windows: Sequence[Window]) -> list[TokenTree]:
    """Returns each request's best tree within its window. Does not modify the graphs.

    Nodes are taken in the order of their path's estimated acceptance, best first, ties in the order of insertion; a
    child never comes before its parent, so any prefix of the result is a tree and the best one of its size. Tokens
    outside the vocabulary are dropped with all that would follow them.
    """
    return [_unroll(graph, window) for graph, window in zip(graphs, windows, strict=True)]


def _unroll(graph: TokenGraph, window: Window) -> TokenTree:
    picked: list[tuple[Edge, int, float]] = []  # (edge, parent among the picked, path acceptance)
    heap: list[tuple[float, int, Edge, int, int]] = []  # (-path acceptance, order, edge, parent, depth)
    order = 0

    def push(node: int, parent: int, acceptance: float, depth: int) -> None:
        nonlocal order
        limit = 1.0
        for edge in sorted(graph.children[node].values(), key=_draw_order):
            # NOTE: a draw's fate must not depend on its token, so no ranked sibling may be picked before a drawn one.
            value = min(edge.acceptance, limit)
            limit = limit if edge.draw is None else value
            if depth <= window.max_depth and 0 <= graph.tokens[edge.child] < window.vocab_size:
                heapq.heappush(heap, (-acceptance * value, order, edge, parent, depth))
                order += 1

    push(0, -1, 1.0, 1)
    while heap and len(picked) < window.budget:
        negated, _, edge, parent, depth = heapq.heappop(heap)
        picked.append((edge, parent, -negated))
        push(edge.child, len(picked) - 1, -negated, depth + 1)
    return encode_tree(
        window,
        graph,
        tokens=[graph.tokens[edge.child] for edge, _, _ in picked],
        parents=[parent for _, parent, _ in picked],
        sources=[edge.sources for edge, _, _ in picked],
        draws=[edge.draw for edge, _, _ in picked],
        path_acceptance=[acceptance for _, _, acceptance in picked],
        graph_nodes=[edge.child for edge, _, _ in picked],
    )


def _draw_order(edge: Edge) -> float:
    """Drawn children first, in the order of their draws; the others keep theirs."""
    return math.inf if edge.draw is None else edge.draw.order
