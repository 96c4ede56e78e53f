"""Prompt lookup: what followed the last tokens when they stood here before (arXiv 2304.04487, "LLMA").

In: a request's own tokens. Out: one chain, copied from the latest place where the longest matching n-gram occurred.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draft.base import Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

NAME = "ngram"
_LONGEST = 4
# Estimated acceptance of a copied token by the length of the n-gram that matched.
_ACCEPTANCE = (0.0, 0.3, 0.55, 0.7, 0.8)


class _Index:
    """Where each n-gram of one request was last followed by something: the position after it."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns (n, position) of what followed the longest n-gram that ends `tokens`; (0, 0) if nothing did."""
        for end in range(max(1, self._num_indexed), len(tokens)):
            for n in range(1, min(_LONGEST, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._num_indexed = len(tokens)
        for n in range(min(_LONGEST, len(tokens)), 0, -1):
            position = self._after.get(tuple(tokens[len(tokens) - n :]))
            if position is not None:
                return n, position
        return 0, 0


class NgramDrafter:
    """Proposes one chain per request. Keeps an index per request, dropped when the request ends.

    Args:
        depth: longest chain to propose.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._indices: dict[int, _Index] = {}

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._chain(context, budget),) for context, budget in zip(contexts, budgets, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            if verdict.finish is not None:
                self._indices.pop(context.request, None)

    def restart(self) -> None:
        self._indices.clear()

    def _chain(self, context: Context, budget: int) -> TokenGraph:
        graph = root_graph(context)
        if budget == 0:
            return graph
        n, start = self._indices.setdefault(context.request, _Index()).find(context.tokens)
        node = 0
        for token in context.tokens[start : start + min(self._depth, budget)] if n else ():
            node = graph.add(node, token, NAME, _ACCEPTANCE[n])
        return graph
