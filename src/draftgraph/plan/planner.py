"""The planner: how many drafts each request gets in a step, and which sources are asked for them.

In: what a pass costs, what guesses were worth, the step's graphs. Out: trees, for the most expected tokens per second
of the batch as a whole. Nothing it decides can change a text; it only decides what is tried. Never sees tensors.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from draftgraph.config import MAX_BUDGET
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.plan.cost import PassCost, best_count
from draftgraph.plan.overhead import Overhead
from draftgraph.plan.probing import Pause
from draftgraph.plan.source import Source
from draftgraph.plan.worth import Worth
from draftgraph.types import Context, TokenTree, Verdict, Window

_MOST = 64  # drafts in one tree
_LEAST_ASKED = 8  # drafts a source is asked for at least: what is not verified still teaches
_PROBING = 0.01  # share of the time that may go to sources which do not pay, and to each draft model that does not
_LEAST_GAIN = 1.05  # what drafts must promise over none: the best of many uncertain estimates is one that flatters
_CAUTION = 2.0  # how many times its price a source must be worth: a lucky guess looks like gain for a while
_LONGEST_PAUSE = 8  # steps
_CHECKED = 64  # after so many steps with drafts one goes without, to see what that takes now


@dataclass(frozen=True, slots=True)
class Expense:
    """What a step cost one request, in seconds.

    Args:
        plain: what its tokens would have taken without drafts, as far as that is known.
        drafts: by source.
    """

    plain: float = 0.0
    drafts: Mapping[str, float] = field(default_factory=dict)


class Planner(Protocol):
    """Decides how much to draft. All four are called once per step, in this order; `observe` also alone, for a request
    that is cancelled between two steps."""

    def budgets(self, contexts: Sequence[Context], windows: Sequence[Window]) -> list[int]:
        """Returns how many drafts are worth making for each request."""

    def select(
        self, contexts: Sequence[Context], graphs: Sequence[TokenGraph], windows: Sequence[Window]
    ) -> list[TokenTree]:
        """Returns the tree to verify for each request."""

    def passed(self) -> None:
        """Told that the target's pass over the selected trees is done."""

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> list[Expense]:
        """Learns from a step that is done and returns what it cost. `contexts` are those from before the verdicts."""


class DraftModel(Protocol):
    """What the planner asks of a draft model's growth."""

    def promise(self, context: Context) -> float:
        """Returns the tokens per second that this model alone is expected to bring."""

    def earn(self, seconds: float) -> None:
        """Grants time for being tried where it does not pay."""

    def probe(self) -> bool:
        """Whether there is enough of that time for one pass, which is then spent."""

    def settle(self, seconds: float) -> None:
        """Told what asking it took in this step."""


class FixedPlanner:
    """As many drafts as the request's budget and `most` allow, in the order of the drafters' own estimates."""

    def __init__(self, most: int = MAX_BUDGET) -> None:
        self._most = most

    def budgets(self, contexts: Sequence[Context], windows: Sequence[Window]) -> list[int]:
        return [min(window.budget, self._most) for window in windows]

    def select(
        self, contexts: Sequence[Context], graphs: Sequence[TokenGraph], windows: Sequence[Window]
    ) -> list[TokenTree]:
        return select(graphs, [replace(window, budget=min(window.budget, self._most)) for window in windows])

    def passed(self) -> None:
        pass

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> list[Expense]:
        return [Expense() for _ in contexts]


@dataclass
class Step:
    """One step while it is planned.

    Args:
        requests: that can be given drafts; each writes a token without any.
        rows, cells: of the pass without drafts.
        read_rows, read_cells: those among them that no token is written after.
        context: mean length of the requests' texts.
        spent: seconds that the step takes beside the pass: what is usual after one, and what drafting took so far; the
            planner adds what sources took, each draft model's growth its passes.
        planned: whether drafts were thought of at all; if not, only `requests` is known.
    """

    cost: PassCost
    requests: int = 0
    rows: int = 0
    cells: int = 0
    read_rows: int = 0
    read_cells: int = 0
    context: float = 0.0
    spent: float = 0.0
    planned: bool = True
    paid: dict[str, tuple[float, frozenset[int]]] = field(default_factory=dict)  # source -> (seconds, requests asked)
    trees: Sequence[TokenTree] = ()
    began: float = 0.0  # when the planning began
    started: float = 0.0  # when the pass began
    taken: float = 0.0  # seconds of the pass

    def spend(self, seconds: float) -> None:
        """Counts time that went into drafting."""
        self.spent += seconds

    def pass_seconds(self, drafts: int) -> float:
        """Returns what writing takes of the target's pass with so many drafts.

        What others read in the same pass has to be read in any case and is not among the price of a token.
        """
        rows = self.rows + drafts
        together = self.cost.seconds(rows, self.cells + int(drafts * self.context))
        return max(together - self._reading_seconds, together * (rows - self.read_rows) / max(rows, 1))

    @cached_property
    def _reading_seconds(self) -> float:
        return self.cost.seconds(self.read_rows, self.read_cells)

    @cached_property
    def token_seconds(self) -> float:
        """What a token takes without drafts."""
        return self.pass_seconds(0) / max(self.requests, 1)

    @cached_property
    def draft_tokens(self) -> float:
        """What verifying one draft took: tokens that would have been written without any in that time."""
        count = sum(tree.num_drafts for tree in self.trees)
        return (self.pass_seconds(count) - self.pass_seconds(0)) / count / self.token_seconds if count else 0.0


class AutoPlanner:
    """Chooses nothing, a chain or a graph, per request and step. Also the drafters' `Advice`.

    Args:
        cost: of the target's passes.
        clock: returns seconds.
    """

    def __init__(self, cost: PassCost, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cost = cost
        self.worth = Worth()
        self.step = Step(cost)
        self._clock = clock
        self._sources: dict[str, Source] = {}
        self._asked: dict[str, frozenset[int]] = {}
        self._reach: dict[int, int] = {}  # request -> drafts it is asked for
        self._since_plain = 0  # steps
        self._overhead = Overhead()
        self._models: dict[str, DraftModel] = {}
        self._pause = Pause()  # in which nobody is asked, and nothing of a plan is made
        self._earned = 0.0  # seconds of passes since sources were granted a share of them

    def add_model(self, source: str, model: DraftModel) -> None:
        """Says that `source` is a draft model, which decides by itself whether it pays."""
        self._models[source] = model

    def budgets(self, contexts: Sequence[Context], windows: Sequence[Window]) -> list[int]:
        self._asked = {}
        if self._pause.covers(context.request for context in contexts):
            num_writing = [window.complete for window in windows].count(True)
            self.step = Step(self.cost, requests=num_writing, planned=False)
            return [0] * len(windows)
        lengths = [len(context.tokens) for context in contexts]
        writing = [length for length, window in zip(lengths, windows, strict=True) if window.complete]
        rows = sum(len(window.known) for window in windows)
        cells = sum(len(window.known) * length for window, length in zip(windows, lengths, strict=True))
        self.step = Step(
            self.cost,
            requests=len(writing),
            rows=rows,
            cells=cells,
            read_rows=rows - len(writing),
            read_cells=cells - sum(writing),
            context=sum(lengths) / max(len(lengths), 1),
            spent=self._overhead.without * len(contexts),
            began=self._clock(),
        )
        if self._since_plain >= _CHECKED:
            return [0] * len(windows)
        return [
            min(window.budget, self._reach.get(context.request, _LEAST_ASKED))
            for context, window in zip(contexts, windows, strict=True)
        ]

    def wants(self, source: str, contexts: Sequence[Context]) -> list[bool]:
        if source in self._models:
            wanted = [self._route(source, context) for context in contexts]
        else:
            entry = self._sources.setdefault(source, Source())
            price = entry.price * self._overhead.burden
            least = _CAUTION * price / self.step.token_seconds
            wanted = [entry.mean_gain(context.request) >= least for context in contexts]
            if contexts and not any(wanted) and entry.savings.take(self._probe_price(entry, len(contexts))):
                entry.probes += 1
                wanted[entry.probes % len(wanted)] = True
        if any(wanted):
            self._asked[source] = frozenset(itertools.compress((context.request for context in contexts), wanted))
        return wanted

    def _route(self, source: str, context: Context) -> bool:
        """Whether a request goes to this draft model: to the one that promises most, and now and then to another."""
        if len(self._models) == 1:
            return True
        promises = {name: model.promise(context) for name, model in self._models.items()}
        if source == max(promises, key=promises.__getitem__):
            return True
        return self._models[source].probe()

    def paid(self, source: str, seconds: float) -> None:
        self.step.paid[source] = (seconds, self._asked[source])
        if source in self._models:
            self._models[source].settle(seconds)
        else:
            self._sources[source].paid(seconds / max(len(self._asked[source]), 1))
            self.step.spend(seconds)

    def select(
        self, contexts: Sequence[Context], graphs: Sequence[TokenGraph], windows: Sequence[Window]
    ) -> list[TokenTree]:
        step = self.step

        def keep(gains: Sequence[float]) -> int:
            seconds = [step.spent + step.pass_seconds(count) for count in range(len(gains) + 1)]
            best = best_count(gains, step.requests, seconds)
            return best.count if best.tokens * seconds[0] >= _LEAST_GAIN * step.requests * best.seconds else 0

        trees = select(
            graphs, windows, lambda index, edge, depth: self.worth.of(contexts[index].request, edge.votes, depth), keep
        )
        step.trees = trees
        step.started = self._clock()
        return trees

    def passed(self) -> None:
        self.step.taken = self._clock() - self.step.started

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> list[Expense]:
        step = self.step
        if step.trees and step.trees[0] is verdicts[0].tree:  # a request that is cancelled had no pass
            self._earned += step.taken
            if step.planned:
                self._learn_step(contexts)
        expenses = []
        for context, verdict in zip(contexts, verdicts, strict=True):
            if step.planned:
                self._learn(context.request, verdict)
            expenses.append(self._expense(context, verdict))
            if verdict.finish is not None:
                self.worth.forget(context.request)
                self._reach.pop(context.request, None)
                for source in self._sources.values():
                    source.own.pop(context.request, None)
        return expenses

    def _learn_step(self, contexts: Sequence[Context]) -> None:
        step = self.step
        self._learn_overhead(self._clock() - step.began - step.taken, len(contexts))
        self._since_plain = self._since_plain + 1 if any(tree.num_drafts for tree in step.trees) else 0
        rows = sum(len(tree.tokens) for tree in step.trees)
        cells = sum(len(tree.tokens) * len(context.tokens) for tree, context in zip(step.trees, contexts, strict=True))
        self.cost.observe(rows, cells, step.taken)
        for source in self._sources.values():
            source.savings.earn(_PROBING * self._earned / len(self._sources))
        for model in self._models.values():
            model.earn(_PROBING * self._earned)
        self._earned = 0.0
        idle = self._sources and not self._asked and not self._models
        steps = self._steps_until_a_probe(len(contexts)) if idle else 0
        self._pause = Pause(steps, frozenset(context.request for context in contexts))

    def _steps_until_a_probe(self, requests: int) -> int:
        """Where no source pays, for how many steps none has saved enough to be tried: till then nothing changes. The
        interpreter's work is dear right after a pass, which leaves none of it in the processor's caches."""
        share = max(_PROBING * self.step.taken / len(self._sources), 1e-9)
        missing = min(self._probe_price(source, requests) - source.savings.seconds for source in self._sources.values())
        return min(max(int(missing / share), 0), _LONGEST_PAUSE)

    def _probe_price(self, source: Source, requests: int) -> float:
        """Returns the seconds it takes to ask a source for one request's drafts: never less than what it takes to ask
        at all, when nothing of it is in the processor's caches."""
        overhead = self._overhead
        return max(source.price * overhead.burden, (overhead.with_drafts - overhead.without) * requests)

    def _learn_overhead(self, seconds: float, requests: int) -> None:
        paid = self.step.paid
        if self._models.keys().isdisjoint(paid):
            answers = sum(seconds for seconds, _ in paid.values()) / requests if paid else None
            self._overhead.learn(seconds / requests, answers)

    def _learn(self, request: int, verdict: Verdict) -> None:
        """Follows what was written through the graph: every edge on the way was right or wrong, verified or not."""
        if not verdict.tree.draws_next:
            return
        graph = verdict.tree.graph
        assert isinstance(graph, TokenGraph), "the planner's trees come from token graphs"
        node = 0
        for depth, token in enumerate(verdict.tokens, start=1):
            edges = graph.children[node]
            for candidate, edge in edges.items():
                self.worth.learn(request, edge.votes, depth, candidate == token)
            self._learn_first(request, graph, node, depth, token)
            if token not in edges:
                break
            node = edges[token].child
        chosen = verdict.tree.num_drafts
        self._reach[request] = min(_MOST, max(_LEAST_ASKED, 2 * chosen + 4, self._reach.get(request, 0) * 3 // 4))
        self._learn_gains(request, verdict)

    def _learn_first(self, request: int, graph: TokenGraph, node: int, depth: int, token: int) -> None:
        """Counts whether each draft model's best candidate was right, whatever its confidence."""
        for source in self._models:
            votes = {t: edge.votes[source] for t, edge in graph.children[node].items() if source in edge.votes}
            if votes:
                best = max(votes, key=votes.__getitem__)
                self.worth.learn(request, first_vote(source), depth, best == token)

    def _learn_gains(self, request: int, verdict: Verdict) -> None:
        """Counts for their sources what drafts brought and what they took; several that agree share both."""
        gains = {s: 0.0 for s, asked in self._asked.items() if request in asked and s in self._sources}
        for node in verdict.nodes:
            sources = verdict.tree.sources[node] if node >= 0 else ()
            for source in sources:
                if source in gains:
                    gains[source] += 1 / len(sources)
        for sources in verdict.tree.sources:
            for source in sources:
                if source in gains:
                    gains[source] -= self.step.draft_tokens / len(sources)
        for source, gain in gains.items():
            self._sources[source].gained(request, gain)

    def _expense(self, context: Context, verdict: Verdict) -> Expense:
        together = max(self.step.requests, 1)  # requests that would share a pass without drafts too
        plain = len(verdict.tokens) * self.cost.seconds(together, together * len(context.tokens)) / together
        drafts = {
            source: seconds / len(asked)
            for source, (seconds, asked) in self.step.paid.items()
            if context.request in asked
        }
        return Expense(plain, drafts)


def first_vote(source: str) -> dict[str, float]:
    """The name under which a model's best candidates are counted, with what to expect of a fair draft model."""
    return {f"first of {source}": 0.7}
