"""What a drafter is: it proposes, and is told what happened. And what it may ask: whether drafting pays.

A drafter guesses; whatever it does, the text stays the same. It never sees a cache that is not its own, nor the
target's logits: only known tokens, the request's noise and past verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

Proposals = Sequence[tuple[TokenGraph, ...]]  # for each request, one graph per source


class Drafter(Protocol):
    """Proposes continuations for many requests at once."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        """Returns for each request one graph per source, rooted at the request's last known token.

        Args:
            budgets: how many drafts can be verified for each request; 0 asks for a bare root.
            earlier: what the drafters asked before this one have proposed, per request; to be read only.
        """

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        """Learns from what the target decided. `contexts` are those given to `propose`, before the verdicts.

        A verdict with `finish` set ends its request: whatever is kept for it is dropped.
        """


class EngineDrafter(Drafter, Protocol):
    """A drafter as the engine asks it. Those of users need not be more than a `Drafter`: see `OwnDrafter`."""

    def restart(self) -> None:
        """Drops whatever is kept for requests, half done or not: a step failed, and did not happen. They go on."""


class Advice(Protocol):
    """Which sources to ask."""

    def wants(self, source: str, contexts: Sequence[Context]) -> Sequence[bool]:
        """Whether `source` should draft for each request in this step."""

    def paid(self, source: str, seconds: float) -> None:
        """Told what asking `source` took."""


class Growth(Protocol):
    """How far a draft model grows its graphs in one step."""

    @property
    def most_guesses(self) -> int:
        """No more than this are ever returned by `guesses`."""

    def guesses(self, context: Context, earlier: Sequence[TokenGraph]) -> Sequence[tuple[int, ...]]:
        """Returns paths of earlier proposals, as tokens below the root, to compute in the first pass of a graph: where
        the model agrees with them, the next levels need no pass of their own."""

    def start(self, contexts: Sequence[Context], behind: Sequence[int], earlier: Proposals) -> Sequence[bool]:
        """Begins a step. Whether each request is worth a graph.

        Args:
            behind: how many known tokens must be read first.
            earlier: see `Drafter.propose`.
        """

    def worth(self, context: Context, depth: int, estimate: float) -> float:
        """Returns the probability that the target takes a candidate at `depth`, given that it took the parent."""

    def next_level(self, beliefs: Sequence[Sequence[float]], leaves: Sequence[Sequence[float]]) -> Sequence[int]:
        """Returns how many of each request's leaves to compute in one more pass; all 0 ends the growth.

        Args:
            beliefs: per request the path acceptances of all nodes so far.
            leaves: those of the nodes that could be computed next, best first.
        """


class AskAll:
    """Every source, every time."""

    def wants(self, source: str, contexts: Sequence[Context]) -> Sequence[bool]:
        return [True] * len(contexts)

    def paid(self, source: str, seconds: float) -> None:
        pass


class GrowToBudget:
    """To the drafter's depth and the request's budget, by the model's own estimates."""

    most_guesses = 0

    def guesses(self, context: Context, earlier: Sequence[TokenGraph]) -> Sequence[tuple[int, ...]]:
        return ()

    def start(self, contexts: Sequence[Context], behind: Sequence[int], earlier: Proposals) -> Sequence[bool]:
        return [True] * len(contexts)

    def worth(self, context: Context, depth: int, estimate: float) -> float:
        return estimate

    def next_level(self, beliefs: Sequence[Sequence[float]], leaves: Sequence[Sequence[float]]) -> Sequence[int]:
        return [len(some) for some in leaves]


def root_graph(context: Context) -> TokenGraph:
    """Returns a graph that is only the request's root."""
    return TokenGraph(context.tokens, context.merge_rule)


class NoDrafter:
    """Proposes nothing: plain decoding."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(root_graph(context),) for context in contexts]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        pass

    def restart(self) -> None:
        pass
