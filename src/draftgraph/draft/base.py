"""What a drafter is: it proposes, and is told what happened.

A drafter guesses; whatever it does, the text stays the same. It never sees a cache that is not its own, nor the
target's logits: only known tokens, the request's noise and past verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict


class Drafter(Protocol):
    """Proposes continuations for many requests at once."""

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> list[tuple[TokenGraph, ...]]:
        """Returns for each request one graph per source, rooted at the request's last known token.

        Args:
            budgets: how many drafts can be verified for each request; 0 asks for a bare root.
        """

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        """Learns from what the target decided. `contexts` are those given to `propose`, before the verdicts.

        A verdict with `finish` set ends its request: whatever is kept for it is dropped.
        """


def root_graph(context: Context) -> TokenGraph:
    """Returns a graph that is only the request's root."""
    return TokenGraph(context.tokens, context.merge_rule)


class NoDrafter:
    """Proposes nothing: plain decoding."""

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> list[tuple[TokenGraph, ...]]:
        return [(root_graph(context),) for context in contexts]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        pass
