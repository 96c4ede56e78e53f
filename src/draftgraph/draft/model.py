"""A smaller model as drafter: it grows the graph level by level through the same protocol the target is verified with.

In: known tokens and the request's noise. Out: a graph whose nodes the draft model computed once each; a hypothesis that
merges into a computed node pays nothing. What follows a node is a ranking's choice. It never sees the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftgraph.draft.base import Growth, GrowToBudget, Proposals, root_graph
from draftgraph.draft.ranking import Ranking, coupled
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.runner.base import Runner
from draftgraph.types import Context, Extension, FloatArray, Verdict, VerifyBatch

NAME = "model"
PREFILL_CHUNK = 64


# (context, depth of a candidate, its estimate) -> the probability that the target takes it
Worth = Callable[[Context, int, float], float]


@dataclass(slots=True)
class _Branch:
    """One request in the draft model: its slot, how much of the text is committed there, and the open tree."""

    slot: int
    committed: int = 0
    open_nodes: dict[tuple[int, int], int] = field(default_factory=dict)  # (open parent, token) -> open node
    rows: dict[int, FloatArray] = field(default_factory=dict)  # open node -> logits [head] after it

    def computed_path(self, tokens: Sequence[int]) -> list[int]:
        """Returns the open nodes along `tokens` as far as they were computed along this very path."""
        path, node = [], -1
        for token in tokens:
            if (node, token) not in self.open_nodes:
                break
            node = self.open_nodes[node, token]
            path.append(node)
        return path


@dataclass(slots=True)
class _Pass:
    """What one request adds to its open tree in one pass: tokens below open nodes, without repetition."""

    branch: _Branch
    first: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def add(self, parent: int, token: int) -> int:
        """Returns the open node of `token` after `parent`, which is new unless it is there already."""
        known = self.branch.open_nodes.setdefault((parent, token), self.first + len(self.tokens))
        if known == self.first + len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return known

    def extension(self, first_row: int) -> Extension:
        """Returns the nodes to compute, with rows from `first_row` on."""
        return Extension(np.asarray(self.tokens, np.int32), np.asarray(self.parents, np.int32), first_row)


@dataclass(slots=True)
class _Growth:
    """One request's graph while it grows: its leaves, and where each node stands in the open tree.

    A leaf whose row was computed already, as a guess, is expanded at once and costs no pass.
    """

    context: Context
    branch: _Branch
    graph: TokenGraph
    source: str
    budget: int
    depth: int  # deepest draft
    open_node: dict[int, int] = field(default_factory=dict)  # graph node -> open node, for nodes with a row
    leaves: list[int] = field(default_factory=lambda: [0])  # nodes whose row may be wanted, best first
    belief: dict[int, float] = field(default_factory=lambda: {0: 1.0})  # path acceptance along first parents

    def open_pass(self, count: int, behind: Sequence[int], guesses: Sequence[Sequence[int]]) -> Extension:
        """Returns the extension that computes the first `count` leaves, after the known tokens before the root, and
        with the paths that were guessed below it."""
        work = _Pass(self.branch, len(self.branch.open_nodes))
        before = -1
        for token in behind:
            before = work.add(before, token)
        num_behind = len(work.tokens)
        for node in self.leaves[:count]:
            parent = self.open_node.get(self.graph.parents[node], before)
            self.open_node[node] = work.add(parent, self.graph.tokens[node])
        for path in guesses:
            above = self.open_node[0]
            for token in path[: self.depth - 1]:
                above = work.add(above, token)
        return work.extension(num_behind)

    def take(self, rows: FloatArray, count: int, ranking: Ranking, width: int, worth: Worth) -> None:
        """Keeps the rows of a pass, adds the candidates of the leaves it computed, and of whatever it had guessed."""
        last = len(self.branch.open_nodes)
        self.branch.rows.update(zip(range(last - len(rows), last), rows, strict=True))
        ready, rest = self.leaves[:count], self.leaves[count:]
        for node in ready:
            for child in self._add_children(node, ranking, width, worth):
                known = self.branch.open_nodes.get((self.open_node[node], self.graph.tokens[child]))
                if known is not None and self.graph.depths[child] < self.depth:
                    self.open_node[child] = known
                    ready.append(child)
                else:
                    rest.append(child)
        self.leaves = self._worth_computing(rest)

    def _add_children(self, node: int, ranking: Ranking, width: int, worth: Worth) -> list[int]:
        """Adds the candidates that may follow a node with a row. Returns those that made a new node."""
        fresh = []
        depth = self.graph.depths[node]
        for candidate in ranking(self.context, self.graph, node, self.branch.rows[self.open_node[node]], width):
            known = len(self.graph)
            child = self.graph.add(node, candidate.token, self.source, candidate.acceptance, candidate.draw)
            if child == known:
                self.belief[child] = self.belief[node] * worth(self.context, depth + 1, candidate.acceptance)
                fresh.append(child)
        return fresh

    def _worth_computing(self, nodes: Sequence[int]) -> list[int]:
        """Returns those of `nodes` among the graph's `budget` best, as long as `budget` in all are computed."""
        best = set(sorted(self.belief, key=lambda node: -self.belief[node])[: self.budget + 1])
        room = self.budget - len(self.open_node)
        kept = [node for node in nodes if node in best and self.graph.depths[node] < self.depth]
        return sorted(kept, key=lambda node: -self.belief[node])[: max(room, 0)]


@dataclass(slots=True)
class _Step:
    """What the requests of one step share.

    Args:
        present: the requests.
        left: how many tokens of long texts may still be read.
        promised: blocks that the graphs begun so far may yet take.
    """

    present: frozenset[int]
    left: int
    promised: int = 0


class ModelDrafter:
    """Proposes a graph per request, grown by `runner`'s model. Owns one of its slots per request in progress.

    A request that finds no slot or no memory, or whose text is being read by and by, gets no drafts in that step.

    Args:
        runner: the draft model, with the target's vocabulary.
        width: candidates per node.
        depth: longest path to propose.
        ranking: `coupled` or `drawn`.
        growth: how far each graph grows within that and the budget.
        source: the name under which it proposes.
        unsettled: at most so many known tokens before the root may still change; reading a text commits none of them.
    """

    def __init__(
        self,
        runner: Runner,
        width: int,
        depth: int,
        ranking: Ranking = coupled,
        growth: Growth | None = None,
        source: str = NAME,
        unsettled: int = 0,
    ) -> None:
        self._runner = runner
        self._width = width
        self._depth = depth
        self._ranking = ranking
        self._policy = growth or GrowToBudget()
        self._source = source
        self._unsettled = unsettled
        self._branches: dict[int, _Branch] = {}

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        graphs = [root_graph(context) for context in contexts]
        # With company, what a step reads of long texts is limited, so that nobody waits for all of another's text.
        left = PREFILL_CHUNK if len(contexts) > 1 else self._runner.context_length
        step = _Step(frozenset(context.request for context in contexts), left)
        able = [i for i, budget in enumerate(budgets) if budget and self._has_place(contexts[i], budget, step)]
        asked = [contexts[i] for i in able]
        behind = [self._num_behind(context) for context in asked]
        wanted = self._policy.start(asked, behind, [earlier[i] for i in able] if earlier else ())
        growths, guesses = [], []
        for i in itertools.compress(able, wanted):
            growths.append(self._start(contexts[i], budgets[i], graphs[i], step))
            guesses.append(self._policy.guesses(contexts[i], earlier[i] if earlier else ()))
        counts: Sequence[int] = [len(growth.leaves) for growth in growths]
        while any(counts):
            self._compute(growths, counts, guesses)
            guesses = [[]] * len(growths)
            leaves = [[growth.belief[node] for node in growth.leaves] for growth in growths]
            counts = self._policy.next_level([list(growth.belief.values())[1:] for growth in growths], leaves)
        return [(graph,) for graph in graphs]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            branch = self._branches.get(context.request)
            if branch is None:
                continue
            if verdict.finish is not None:
                self._runner.release(self._branches.pop(context.request).slot)
                continue
            # The last token is never committed: the next graph needs its row.
            self._commit(branch, (*context.tokens[branch.committed :], *verdict.tokens)[:-1])

    def restart(self) -> None:
        self._branches.clear()
        self._runner.reset()

    def _commit(self, branch: _Branch, tokens: Sequence[int]) -> None:
        """Keeps what was computed along `tokens`; what was computed under another parent is stale and goes."""
        path = branch.computed_path(tokens)
        self._runner.commit(branch.slot, path)
        branch.committed += len(path)
        branch.open_nodes.clear()
        branch.rows.clear()

    def _compute(
        self, growths: Sequence[_Growth], counts: Sequence[int], guesses: Sequence[Sequence[Sequence[int]]]
    ) -> None:
        """One pass over the first leaves of each graph, `counts` of them; a graph with none sits it out."""
        asked = [(growth, count, paths) for growth, count, paths in zip(growths, counts, guesses, strict=True) if count]
        extensions = []
        for growth, count, paths in asked:
            behind = () if growth.open_node else growth.context.tokens[growth.branch.committed : -1]
            extensions.append(growth.open_pass(count, behind, paths))
        batch = VerifyBatch(tuple(growth.branch.slot for growth, _, _ in asked), extensions)
        for (growth, count, _), rows in zip(asked, self._runner.extend(batch).rows, strict=True):
            growth.take(rows, count, self._ranking, self._width, self._policy.worth)

    def _num_behind(self, context: Context) -> int:
        """Known tokens before the root that are not committed yet."""
        branch = self._branches.get(context.request)
        return len(context.tokens) - 1 - (branch.committed if branch else 0)

    def _depth_of(self, context: Context) -> int:
        return min(self._depth, context.max_depth, self._runner.context_length - len(context.tokens) + 1)

    def _has_place(self, context: Context, budget: int, step: _Step) -> bool:
        """Whether a request can have drafts: there is a slot for it, and memory, which is promised to it."""
        branch = self._branch(context, step) if self._depth_of(context) > 0 else None
        if branch is None:
            return False
        num_nodes = self._num_behind(context) + 1 + budget + self._policy.most_guesses
        needed = self._runner.blocks_needed(branch.slot, num_nodes)
        if step.promised + needed > self._runner.blocks.available:
            self._release_absent(step)
        if step.promised + needed > self._runner.blocks.available:
            return False
        step.promised += needed
        return True

    def _start(self, context: Context, budget: int, graph: TokenGraph, step: _Step) -> _Growth:
        """Brings the slot close to the root; where this step is too short for that, the graph has no leaves."""
        branch = self._branches[context.request]
        while self._num_behind(context) > PREFILL_CHUNK and step.left > 0:
            self._read_chunk(context, branch)
            step.left -= PREFILL_CHUNK
        growth = _Growth(context, branch, graph, self._source, budget, self._depth_of(context))
        behind = self._num_behind(context)
        if behind > self._depth + self._unsettled:
            if behind > step.left:
                growth.leaves.clear()
            step.left -= behind
        return growth

    def _branch(self, context: Context, step: _Step) -> _Branch | None:
        """Returns the request's branch, its open tree empty; None if there is no slot for it."""
        branch = self._branches.get(context.request)
        if branch is not None:
            return branch
        if not self._runner.num_free_slots:
            self._release_absent(step)
        if not self._runner.num_free_slots:
            return None
        slot = self._runner.open(context.cache_salt)
        lasting = context.tokens[: max(len(context.tokens) - 1 - self._unsettled, 0)]
        self._branches[context.request] = _Branch(slot, self._runner.reuse(slot, lasting))
        return self._branches[context.request]

    def _release_absent(self, step: _Step) -> None:
        """Releases the slots of requests that are not in the batch: they wait, and can read their texts again."""
        for request in self._branches.keys() - step.present:
            self._runner.release(self._branches.pop(request).slot)

    def _read_chunk(self, context: Context, branch: _Branch) -> None:
        """Commits the next known tokens before the root."""
        lasting = len(context.tokens) - 1 - self._unsettled
        chunk = context.tokens[branch.committed : min(branch.committed + PREFILL_CHUNK, lasting)]
        work = _Pass(branch, 0)
        for parent, token in enumerate(chunk, start=-1):
            work.add(parent, token)
        self._runner.extend(VerifyBatch((branch.slot,), [work.extension(len(chunk))]))
        self._commit(branch, chunk)
