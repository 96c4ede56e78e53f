"""A drafter that is not ours, among ours: what it returns is looked at, and it is put aside when it fails.

In: a user's drafter and the name under which its drafts are counted. Out: sound graphs, or bare roots. A guess can
never change a text, but a drafter that raises, or returns no graphs, would end the step of every request in the batch.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from draftgraph.draft.base import Advice, Drafter, Proposals, root_graph
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.errors import DrafterError
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

NAME = "own"
_ALLOWED = "for each request a tuple of one or more TokenGraphs, each rooted at the request's last token"
_log = logging.getLogger(__name__)


def among_ours(
    drafter: Drafter, advice: Advice | None = None, clock: Callable[[], float] = time.perf_counter
) -> MixtureDrafter:
    """Returns what the engine asks instead of a user's drafter; arguments as for `MixtureDrafter`."""
    name = str(getattr(drafter, "name", NAME))
    return MixtureDrafter({name: OwnDrafter(drafter, name)}, advice, clock)


class OwnDrafter:
    """Asks `drafter` until it fails, and then no more. Warns of that once; the log has the traceback.

    Args:
        name: the one source of its drafts, whatever names its graphs have.
    """

    def __init__(self, drafter: Drafter, name: str) -> None:
        self._drafter: Drafter | None = drafter
        self._name = name

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        if self._drafter is not None:
            try:
                return self._checked(self._drafter.propose(contexts, budgets, earlier), contexts)
            except Exception as error:
                self._put_aside("propose", error)
        return [(root_graph(context),) for context in contexts]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        if self._drafter is not None:
            try:
                self._drafter.observe(contexts, verdicts)
            except Exception as error:
                self._put_aside("observe", error)

    def restart(self) -> None:
        restart = getattr(self._drafter, "restart", None)  # theirs need not have it
        if restart is not None:
            try:
                restart()
            except Exception as error:
                self._put_aside("restart", error)

    def _put_aside(self, method: str, error: Exception) -> None:
        kind = type(self._drafter).__name__
        self._drafter = None
        refused = error if isinstance(error, DrafterError) else self._refusal(f"{method} raised {error!r:.200}")
        _log.warning("drafter %r (%s) is put aside", self._name, kind, exc_info=error)
        warnings.warn(f"{refused}\n  meanwhile: texts go on without this drafter", stacklevel=2)

    def _refusal(self, what: str) -> DrafterError:
        return DrafterError(f"the drafter {self._name!r}: {what}", _ALLOWED, "mend it and load the model again")

    def _checked(self, proposals: Any, contexts: Sequence[Context]) -> list[tuple[TokenGraph, ...]]:
        """Returns copies of the graphs, under one name.

        Raises:
            DrafterError: they are none, or not as many as requests.
            Exception: whatever a graph that is not sound raises.
        """
        if not isinstance(proposals, (list, tuple)) or len(proposals) != len(contexts):
            raise self._refusal(f"propose returned {proposals!r:.200} for {len(contexts)} requests")
        found = []
        for graphs, context in zip(proposals, contexts, strict=True):
            if not isinstance(graphs, (list, tuple)) or not graphs:
                raise self._refusal(f"propose returned {graphs!r:.200} for a request")
            for graph in graphs:
                if not isinstance(graph, TokenGraph) or graph.tokens[0] != context.tokens[-1]:
                    raise self._refusal(f"propose returned {graph!r:.200} among a request's graphs")
            found.append(tuple(self._copied(graph, context) for graph in graphs))
        return found

    def _copied(self, graph: TokenGraph, context: Context) -> TokenGraph:
        copy = root_graph(context)
        pending = [(0, 0)]
        seen = set(pending)
        for theirs, ours in pending:  # which grows meanwhile
            for token, edge in graph.children[theirs].items():
                if not math.isfinite(edge.acceptance):
                    raise self._refusal(f"an acceptance of {edge.acceptance!r:.80}")
                child = copy.add(ours, int(token), self._name, float(edge.acceptance), edge.draw)
                if (edge.child, child) not in seen:
                    seen.add((edge.child, child))
                    pending.append((edge.child, child))
        return copy
