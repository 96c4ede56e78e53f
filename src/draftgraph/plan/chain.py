"""The plain chain of classical speculative decoding, as something to compare with.

In: graphs. Out: trees without branches, within the budget. Never sees tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import Edge, TokenGraph
from draftgraph.plan.planner import FixedPlanner
from draftgraph.types import Context, TokenTree, Window


class ChainPlanner(FixedPlanner):
    """As many drafts as the budget allows, each the likeliest one after the last."""

    def select(
        self, contexts: Sequence[Context], graphs: Sequence[TokenGraph], windows: Sequence[Window]
    ) -> list[TokenTree]:
        likeliest = {
            id(max(edges.values(), key=lambda edge: edge.acceptance))
            for graph in graphs
            for edges in graph.children
            if edges
        }

        def value(index: int, edge: Edge, depth: int) -> float:
            return edge.acceptance if id(edge) in likeliest else 0.0

        counts = self.budgets(contexts, windows)
        return select(graphs, [replace(w, budget=n) for w, n in zip(windows, counts, strict=True)], value)
