"""Select: the best part of a token graph, unrolled into a tree that fits the budget.

In: one merged graph and one window per request, and what a guess is worth. Out: one `TokenTree` per request. The
target's view of a token depends on its whole prefix, so a merged node becomes one tree node per path, and rows are
counted after unrolling. Never sees tensors or requests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from draftgraph.graph.encode import bare_tree, encode_tree
from draftgraph.graph.token_graph import Edge, TokenGraph
from draftgraph.types import TokenTree, Window

# (index of the request, edge, depth of its child) -> probability that the child is accepted, given that its parent was.
Value = Callable[[int, Edge, int], float]
# Path acceptances of a batch's best nodes, best first -> how many of them to verify.
Keep = Callable[[Sequence[float]], int]


def proposed_value(index: int, edge: Edge, depth: int) -> float:
    """The estimate of whoever proposed the edge."""
    return edge.acceptance


def select(
    graphs: Sequence[TokenGraph], windows: Sequence[Window], value: Value = proposed_value, keep: Keep = len
) -> list[TokenTree]:
    """Returns each request's best tree within its window. Does not modify the graphs.

    Nodes are taken in the order of their path's acceptance, best first over all requests, ties in the order of
    insertion; a child never comes before its parent, so any prefix of the order is a tree for each request and the best
    choice of its size. Tokens outside the vocabulary are dropped with all that would follow them, and so is what the
    request can never write.
    """
    pairs = list(zip(graphs, windows, strict=True))
    unrollings = {
        i: _Unrolling(i, graph, window, value) for i, (graph, window) in enumerate(pairs) if graph.num_drafted
    }
    queue = [(-best, i) for i, unrolling in unrollings.items() if (best := unrolling.best) > 0]
    heapq.heapify(queue)
    order: list[int] = []
    gains: list[float] = []
    while queue:
        negated, index = heapq.heappop(queue)
        unrollings[index].take()
        order.append(index)
        gains.append(-negated)
        if (best := unrollings[index].best) > 0:
            heapq.heappush(queue, (-best, index))
    kept = order[: keep(gains)] if order else []
    return [
        unrollings[i].tree(kept.count(i)) if i in unrollings else bare_tree(window, graph)
        for i, (graph, window) in enumerate(pairs)
    ]


class _Unrolling:
    """One request's nodes, best first."""

    def __init__(self, index: int, graph: TokenGraph, window: Window, value: Value) -> None:
        self._index = index
        self._graph = graph
        self._window = window
        self._value = value
        self._picked: list[tuple[Edge, int, float]] = []  # (edge, parent among the picked, path acceptance)
        self._paths: list[tuple[int, ...]] = []  # the tokens from below the root to each of the picked
        self._heap: list[tuple[float, int, Edge, int, int]] = []  # (-path acceptance, order, edge, parent, depth)
        self._order = 0
        self._push(0, -1, 1.0, 1)
        self._drop_forbidden()

    @property
    def best(self) -> float:
        """Path acceptance of the node that comes next; 0 if there is none or no room for it."""
        return -self._heap[0][0] if self._heap and len(self._picked) < self._window.budget else 0.0

    def take(self) -> None:
        """Picks that node; its children may follow."""
        negated, _, edge, parent, depth = heapq.heappop(self._heap)
        self._paths.append(self._path(edge, parent))
        self._picked.append((edge, parent, -negated))
        self._push(edge.child, len(self._picked) - 1, -negated, depth + 1)
        self._drop_forbidden()

    def _path(self, edge: Edge, parent: int) -> tuple[int, ...]:
        return (*(self._paths[parent] if parent >= 0 else ()), self._graph.tokens[edge.child])

    def _drop_forbidden(self) -> None:
        """Drops what the request can never write from the front of the queue."""
        permits = self._window.permits
        while permits is not None and self._heap:
            _, _, edge, parent, _ = self._heap[0]
            # NOTE: a draw's fate must not depend on its token, so a drawn child is verified whatever it is.
            if edge.draw is not None or permits(self._path(edge, parent)):
                return
            heapq.heappop(self._heap)

    def tree(self, count: int) -> TokenTree:
        """Returns the tree of the first `count` nodes picked."""
        picked = self._picked[:count]
        return encode_tree(
            self._window,
            self._graph,
            tokens=[self._graph.tokens[edge.child] for edge, _, _ in picked],
            parents=[parent for _, parent, _ in picked],
            sources=[edge.sources for edge, _, _ in picked],
            draws=[edge.draw for edge, _, _ in picked],
            path_acceptance=[acceptance for _, _, acceptance in picked],
            graph_nodes=[edge.child for edge, _, _ in picked],
        )

    def _push(self, node: int, parent: int, acceptance: float, depth: int) -> None:
        window, tokens = self._window, self._graph.tokens
        limit = 1.0
        for edge in sorted(self._graph.children[node].values(), key=_draw_order):
            # NOTE: a draw's fate must not depend on its token, so no ranked sibling may be picked before a drawn one.
            value = min(self._value(self._index, edge, depth), limit)
            limit = limit if edge.draw is None else value
            if depth <= window.max_depth and 0 <= tokens[edge.child] < window.vocab_size:
                heapq.heappush(self._heap, (-acceptance * value, self._order, edge, parent, depth))
                self._order += 1


def _draw_order(edge: Edge) -> float:
    """Drawn children first, in the order of their draws; the others keep theirs."""
    return math.inf if edge.draw is None else edge.draw.order
