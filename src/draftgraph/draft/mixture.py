"""Several drafters at once: each proposes its own graph, and `merge` makes one of them."""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draft.base import Drafter
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict


class MixtureDrafter:
    """Asks every member, in order."""

    def __init__(self, members: Sequence[Drafter]) -> None:
        self._members = members

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> list[tuple[TokenGraph, ...]]:
        proposals = [member.propose(contexts, budgets) for member in self._members]
        return [tuple(graph for graphs in parts for graph in graphs) for parts in zip(*proposals, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for member in self._members:
            member.observe(contexts, verdicts)
