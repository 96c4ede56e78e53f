"""How far a draft model grows its graph: as long as another of its passes brings more than it costs.

In: what passes of both models cost, what the draft model's candidates were worth. Out: which requests get a graph, and
how many nodes each of its levels computes. Depth grows where the model is sure, width where it is not; both follow from
the costs (the aims of Sequoia, arXiv 2402.12374, and EAGLE-2, arXiv 2406.16858). Never sees tokens' meaning or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draft.base import Proposals
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.plan.cost import PassCost, best_count
from draftgraph.plan.planner import AutoPlanner, first_vote
from draftgraph.plan.probing import Pause, Savings
from draftgraph.types import Context

_MOST_ROWS = 16  # nodes in one pass of the draft model
_LEAST_GUESS = 0.1  # belief below which paths are not looked at
_PAUSE = 8  # steps for which a batch is not thought about after nobody in it was worth it, unless somebody joins it
_READ_ALONG = 8  # known tokens that the first pass reads along for next to nothing
_HORIZON = 128  # tokens over which reading a prompt with the draft model is spread


class ModelGrowth:
    """One draft model's growth within a batch; see `draft.base.Growth`. To the planner it is a `DraftModel`.

    Args:
        planner: the step's planner.
        source: the name under which the model proposes.
        cost: of the draft model's passes.
        depth: longest path.
    """

    most_guesses = 7

    def __init__(self, planner: AutoPlanner, source: str, cost: PassCost, depth: int) -> None:
        self._planner = planner
        self._source = source
        self._cost = cost
        self._depth = depth
        self._savings = Savings()
        self._probing = False
        self._pause = Pause()
        self._contexts: Sequence[Context] = ()
        self._levels = 0
        self._spent = 0.0
        self._reading = False
        planner.add_model(source, self)

    def start(self, contexts: Sequence[Context], behind: Sequence[int], earlier: Proposals) -> list[bool]:
        requests = frozenset(context.request for context in contexts)
        if len(contexts) > 1 and not self._probing and self._pause.covers(requests):
            return [False] * len(contexts)
        step = self._planner.step
        base = self._cost.seconds(1, int(step.context))
        without = self._without(contexts, earlier)
        chosen = self._best_requests(contexts, behind, without)
        others = [i for i in range(len(contexts)) if i not in chosen]
        if others and (self._probing or self._savings.take(base + self._catch_up(behind[others[0]]))):
            chosen.add(others[0])
        self._probing = False
        for i in others:
            self._planner.worth.fade(contexts[i].request, first_vote(self._source))
        self._contexts = [context for i, context in enumerate(contexts) if i in chosen]
        self._reading = any(self._catch_up(behind[i]) for i in chosen)
        self._levels = 1
        self._spend(len(chosen))
        self._pause = Pause(0 if chosen else _PAUSE, requests)
        return [i in chosen for i in range(len(contexts))]

    def guesses(self, context: Context, earlier: Sequence[TokenGraph]) -> list[tuple[int, ...]]:
        """A guess is worth its row if the pass that it saves, when the model agrees, is."""
        paths: list[tuple[float, tuple[int, ...]]] = []
        pending: list[tuple[float, tuple[int, ...], TokenGraph, int]] = [(1.0, (), graph, 0) for graph in earlier]
        while pending:
            belief, path, graph, node = pending.pop()
            for token, edge in graph.children[node].items():
                value = belief * self._planner.worth.of(context.request, edge.votes, len(path) + 1)
                if value > _LEAST_GUESS:
                    paths.append((value, (*path, token)))
                    pending.append((value, (*path, token), graph, edge.child))
        paths.sort(key=lambda item: -item[0])
        best = {path: value for value, path in reversed(paths)}  # the largest value of each path
        seconds = [self._pass_seconds(1 + count) for count in range(self.most_guesses + 1)]
        found: list[tuple[int, ...]] = []
        for path, value in sorted(best.items(), key=lambda item: -item[1])[: self.most_guesses]:
            if value * seconds[0] <= seconds[len(found) + 1] - seconds[len(found)]:
                break
            found.append(path)
        return found

    def worth(self, context: Context, depth: int, estimate: float) -> float:
        return self._planner.worth.of(context.request, {self._source: estimate}, depth)

    def next_level(self, beliefs: Sequence[Sequence[float]], leaves: Sequence[Sequence[float]]) -> list[int]:
        step = self._planner.step
        gains = sorted((belief for some in beliefs for belief in some), reverse=True)[: 4 * _MOST_ROWS]
        now = best_count(gains, step.requests, self._seconds(len(gains)))
        self._levels += 1
        queue = sorted(
            (
                (belief * self._first(context, self._levels), i)
                for i, (context, some) in enumerate(zip(self._contexts, leaves, strict=True))
                for belief in some
            ),
            reverse=True,
        )[:_MOST_ROWS]
        best, best_rate, tokens = 0, now.rate, now.tokens
        for count, (gain, _) in enumerate(queue, start=1):
            tokens += gain
            rate = tokens / (step.spent + self._pass_seconds(count) + step.pass_seconds(now.count + count))
            if rate > best_rate:
                best, best_rate = count, rate
        self._spend(best)
        chosen = [i for _, i in queue[:best]]
        return [chosen.count(i) for i in range(len(leaves))]

    def _best_requests(
        self, contexts: Sequence[Context], behind: Sequence[int], without: Sequence[Sequence[float]]
    ) -> set[int]:
        """Returns the requests for which a chain of the best length beats what is there without this model."""
        step = self._planner.step
        gains = sorted((gain for some in without for gain in some), reverse=True)
        best_rate = best_count(gains, step.requests, self._seconds(len(gains))).rate
        chains = [self._chain(context) for context in contexts]
        ranked = sorted(range(len(contexts)), key=lambda i: sum(without[i]) - sum(chains[i]))
        others = step.requests - len(contexts)
        best: set[int] = set()
        for size in range(1, len(ranked) + 1):
            asked, rest = ranked[:size], ranked[size:]
            left = others + sum(1 + sum(without[i]) for i in rest)
            rows = sum(len(without[i]) for i in rest)
            for levels in range(1, max(len(chains[i]) for i in asked) + 1):
                tokens = left + sum(1 + max(sum(chains[i][:levels]), sum(without[i])) for i in asked)
                reading = sum(
                    self._catch_up(behind[i]) * tokens / size / min(contexts[i].max_depth + 1, _HORIZON) for i in asked
                )
                seconds = reading + levels * self._pass_seconds(size) + step.pass_seconds(rows + levels * size)
                if tokens / (step.spent + seconds) > best_rate:
                    best, best_rate = set(asked), tokens / (step.spent + seconds)
        return best

    def _seconds(self, most: int) -> list[float]:
        """Returns what the step takes with 0 to `most` drafts."""
        step = self._planner.step
        return [step.spent + step.pass_seconds(count) for count in range(most + 1)]

    def _chain(self, context: Context) -> list[float]:
        """Returns the expected path acceptances of a chain of first candidates, by depth."""
        belief, chain = 1.0, []
        for depth in range(1, min(self._depth, context.max_depth) + 1):
            belief *= self._first(context, depth)
            chain.append(belief)
        return chain

    def _without(self, contexts: Sequence[Context], earlier: Proposals) -> list[list[float]]:
        """Returns the path acceptances of the best chain of what was proposed before, per request."""
        if not earlier:
            return [[] for _ in contexts]
        return [
            max((self._likeliest_chain(graph, context) for graph in graphs), key=sum, default=[])
            for context, graphs in zip(contexts, earlier, strict=True)
        ]

    def _likeliest_chain(self, graph: TokenGraph, context: Context) -> list[float]:
        chain: list[float] = []
        node, belief = 0, 1.0
        while graph.children[node] and len(chain) < context.max_depth:
            edges = graph.children[node].values()
            worths = [(self._planner.worth.of(context.request, e.votes, len(chain) + 1), e.child) for e in edges]
            value, node = max(worths)
            belief *= value
            chain.append(belief)
        return chain

    def _first(self, context: Context, depth: int) -> float:
        return self._planner.worth.of(context.request, first_vote(self._source), depth)

    def _catch_up(self, behind: int) -> float:
        """Returns what it takes to read known tokens beyond those that fit into the first pass."""
        return self._cost.seconds(behind, 0) if behind > _READ_ALONG else 0.0

    def _pass_seconds(self, rows: int) -> float:
        return self._cost.seconds(rows, int(rows * self._planner.step.context))

    def _spend(self, rows: int) -> None:
        seconds = self._pass_seconds(rows)
        self._spent = seconds if self._levels == 1 else self._spent + seconds
        self._planner.step.spend(seconds)

    def earn(self, seconds: float) -> None:
        """Grants time for being tried where it does not pay."""
        self._savings.earn(seconds, 4 * self._pass_seconds(1))

    def probe(self) -> bool:
        """Whether there is enough of that time for one pass, which is then spent."""
        self._probing = self._probing or self._savings.take(self._pass_seconds(1))
        return self._probing

    def promise(self, context: Context) -> float:
        """Returns the tokens per second that the best chain of this model alone is expected to reach."""
        step = self._planner.step
        total, best = 1.0, 0.0
        for levels, belief in enumerate(self._chain(context), start=1):
            total += belief
            best = max(best, total / (levels * self._pass_seconds(1) + step.pass_seconds(levels)))
        return best

    def settle(self, seconds: float) -> None:
        """Corrects the cost by what all passes of this step took, unless a long text was read in them."""
        if self._spent > 0 and not self._reading:
            self._cost.scale(seconds / self._spent)
