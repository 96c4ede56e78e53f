"""Several drafters at once: each that pays proposes its own graph, and `merge` makes one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from draftgraph.draft.base import Advice, AskAll, EngineDrafter, Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict


class MixtureDrafter:
    """Asks its members in order, each for the requests that the advice names.

    Args:
        members: by source name; the cheap ones first, since later ones are shown what earlier ones proposed.
        advice: which to ask.
        clock: returns seconds.
    """

    def __init__(
        self,
        members: Mapping[str, EngineDrafter],
        advice: Advice | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.members = members
        self._advice = advice or AskAll()
        self._clock = clock

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        proposals: list[tuple[TokenGraph, ...]] = [()] * len(contexts)
        if any(budgets):
            for source, member in self.members.items():
                wanted = self._advice.wants(source, contexts)
                asked = [i for i, (budget, want) in enumerate(zip(budgets, wanted, strict=True)) if budget and want]
                if not asked:
                    continue
                start = self._clock()
                graphs = member.propose(
                    [contexts[i] for i in asked], [budgets[i] for i in asked], [proposals[i] for i in asked]
                )
                self._advice.paid(source, self._clock() - start)
                for i, some in zip(asked, graphs, strict=True):
                    proposals[i] = (*proposals[i], *some)
        return [
            graphs if graphs else (root_graph(context),) for graphs, context in zip(proposals, contexts, strict=True)
        ]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for member in self.members.values():
            member.observe(contexts, verdicts)

    def restart(self) -> None:
        for member in self.members.values():
            member.restart()
