"""Token recycling: the target's own likeliest successors of each token, seen so far, walked as a graph.

In: verdicts, which carry the target's top-k ids after every node it verified, accepted or not (arXiv 2408.08696).
Out: a graph grown best first through the table "token -> its latest k successors".
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from draftgraph.draft.base import Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

NAME = "recycle"
# Estimated acceptance of the i-th successor. Best-first order through these numbers gives a tree close to the static
# one of the paper: narrow and deep along first successors, wide at the root.
_ACCEPTANCE = (0.45, 0.14, 0.07, 0.05, 0.03, 0.02, 0.02, 0.01)

_Table = dict[int, tuple[int, ...]]


class RecycleDrafter:
    """Proposes a graph per request. Keeps a successor table per request, or one for all.

    Args:
        depth: longest path to propose.
        keep_requests: whether all requests share one table that outlives them.
    """

    def __init__(self, depth: int, keep_requests: bool = False) -> None:
        self._depth = depth
        self._shared: _Table | None = {} if keep_requests else None
        self._tables: dict[int, _Table] = {}

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._walk(context, budget),) for context, budget in zip(contexts, budgets, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            table = self._table(context.request)
            tokens = verdict.tree.tokens[verdict.tree.first_row :].tolist()
            table.update(zip(tokens, map(tuple, verdict.successors.tolist()), strict=True))
            if verdict.finish is not None:
                self._tables.pop(context.request, None)

    def restart(self) -> None:
        self._tables.clear()

    def _table(self, request: int) -> _Table:
        return self._tables.setdefault(request, {}) if self._shared is None else self._shared

    def _walk(self, context: Context, budget: int) -> TokenGraph:
        graph = root_graph(context)
        table = self._table(context.request) if budget else {}
        heap: list[tuple[float, int, int, int, float]] = []  # (-belief, order, parent, token, acceptance)
        order = 0

        def push(node: int, belief: float) -> None:
            nonlocal order
            if graph.depths[node] < self._depth:
                for token, acceptance in zip(table.get(graph.tokens[node], ()), _ACCEPTANCE, strict=False):
                    heapq.heappush(heap, (-belief * acceptance, order, node, token, acceptance))
                    order += 1

        push(0, 1.0)
        while heap and graph.num_drafted < budget:
            negated, _, parent, token, acceptance = heapq.heappop(heap)
            known = len(graph)
            node = graph.add(parent, token, NAME, acceptance)
            if node == known:  # a merged node's successors are in the graph already
                push(node, -negated)
        return graph
