"""Forced drafts: what a request's grammar leaves no choice about.

In: a request's constraint. Out: one chain of the tokens that follow in any case, such as the rest of a JSON key that
has begun. A request without a constraint gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draft.base import Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

NAME = "grammar"
_ACCEPTANCE = 0.98  # where the tokenizer's own spelling of the forced text is the only one allowed, it is 1


class GrammarDrafter:
    """Proposes one chain per request. Remembers nothing.

    Args:
        depth: longest chain to propose.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._chain(context, budget),) for context, budget in zip(contexts, budgets, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        pass

    def restart(self) -> None:
        pass

    def _chain(self, context: Context, budget: int) -> TokenGraph:
        graph = root_graph(context)
        node = 0
        if context.constraint is not None and budget > 0:
            for token in context.constraint.forced()[: min(self._depth, budget)]:
                node = graph.add(node, token, NAME, _ACCEPTANCE)
        return graph
