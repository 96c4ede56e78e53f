"""A smaller model as drafter: it grows the graph level by level through the same protocol the target is verified with.

In: known tokens and the request's noise. Out: a graph whose nodes the draft model computed once each; a hypothesis that
merges into a computed node pays nothing. Candidates are either the model's coupled draws (`coupled`) or real draws that
carry their distribution (`drawn`). It never sees the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftgraph.draft.base import root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.runner.base import Runner
from draftgraph.types import Context, Drawn, Extension, FloatArray, Row, Verdict, VerifyBatch

NAME = "model"
_PREFILL_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may follow a node, the estimate that the target takes it, and how it was drawn."""

    token: int
    acceptance: float
    draw: Drawn | None


# (context, graph node, its depth, logits [vocabulary] after it, how many) -> the candidates after it, best first. Pure.
Ranking = Callable[[Context, int, int, FloatArray, int], list[Candidate]]


def coupled(context: Context, node: int, depth: int, logits: FloatArray, width: int) -> list[Candidate]:
    """Ranks by log draft_prob + the request's own noise (arXiv 2408.07978): at temperature 0 the likeliest tokens,
    otherwise the draft model's draws from the very noise that the target will draw with.

    The estimate is the softmax of the ranked quantity: at temperature 0 that is draft_prob itself, otherwise it says by
    how much a draw won, hence how large a difference between the models it survives.
    """
    perturbed = _log_prob(context, logits) + context.noise.gumbel(len(context.tokens) + depth, len(logits))
    weights = np.exp(perturbed - perturbed.max())
    weights /= weights.sum()
    return [Candidate(token, float(weights[token]), None) for token in _top(perturbed, width)]


def drawn(context: Context, node: int, depth: int, logits: FloatArray, width: int) -> list[Candidate]:
    """Draws without replacement (Gumbel top-k, arXiv 1903.06059) for the residual rule; at temperature 0 as `coupled`.

    The estimate of draw number i is the i-th largest probability: it must not depend on the value that was drawn, or
    selection would bias the text.
    """
    if context.temperature == 0:
        return coupled(context, node, depth, logits, width)
    log_prob = _log_prob(context, logits)
    draft_prob: Row = np.exp(log_prob)
    tokens = _top(log_prob + context.noise.draft_gumbel(len(context.tokens), node, len(logits)), width)
    estimates = np.sort(draft_prob)[::-1]
    return [
        Candidate(token, float(estimates[order]), Drawn(draft_prob, order))
        for order, token in enumerate(tokens)
        if draft_prob[token] > 0
    ]


@dataclass(slots=True)
class _Branch:
    """One request in the draft model: its slot, how much of the text is committed there, and the open tree."""

    slot: int
    committed: int = 0
    open_nodes: dict[tuple[int, int], int] = field(default_factory=dict)  # (open parent, token) -> open node

    def append(self, tokens: Sequence[int], parents: Sequence[int], first_row: int) -> Extension:
        """Adds nodes to the open tree. Returns the extension that computes them, with rows from `first_row` on."""
        for token, parent in zip(tokens, parents, strict=True):
            self.open_nodes[parent, token] = len(self.open_nodes)
        return Extension(np.asarray(tokens, np.int32), np.asarray(parents, np.int32), first_row)

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
class _Growth:
    """One request's graph while it grows: what to expand next and where each node stands in the open tree."""

    context: Context
    branch: _Branch
    graph: TokenGraph
    budget: int
    levels: int  # still to grow
    behind: Sequence[int]  # known tokens before the root that are not committed yet
    open_node: dict[int, int] = field(default_factory=dict)  # graph node -> open node, for computed nodes
    frontier: list[int] = field(default_factory=lambda: [0])
    belief: dict[int, float] = field(default_factory=lambda: {0: 1.0})  # path acceptance along first parents

    def add_children(self, ranking: Ranking, rows: FloatArray, width: int) -> None:
        """Adds the candidates of every frontier node; those worth a forward pass become the next frontier."""
        fresh = []
        for node, logits in zip(self.frontier, rows, strict=True):
            for candidate in ranking(self.context, node, self.graph.depths[node], logits, width):
                known = len(self.graph)
                child = self.graph.add(node, candidate.token, NAME, candidate.acceptance, candidate.draw)
                if child == known:
                    self.belief[child] = self.belief[node] * candidate.acceptance
                    fresh.append(child)
        self.levels -= 1
        self.frontier = self._worth_computing(fresh) if self.levels > 0 else []

    def _worth_computing(self, fresh: Sequence[int]) -> list[int]:
        """Returns the nodes of `fresh` among the graph's `budget` best, as long as `budget` in all are computed."""
        best = set(sorted(self.belief, key=lambda node: -self.belief[node])[: self.budget + 1])
        room = self.budget - len(self.open_node)
        return sorted((node for node in fresh if node in best), key=lambda node: -self.belief[node])[: max(room, 0)]

    def extension(self) -> Extension:
        """Returns the frontier as nodes of the draft model's open tree; the first time, the known tokens before it."""
        num_behind = len(self.behind)
        first = len(self.branch.open_nodes) + num_behind
        parents = [self.open_node.get(self.graph.parents[node], num_behind - 1) for node in self.frontier]
        self.open_node.update({node: first + i for i, node in enumerate(self.frontier)})
        tokens = [*self.behind, *(self.graph.tokens[node] for node in self.frontier)]
        self.behind = ()
        return self.branch.append(tokens, [*range(-1, num_behind - 1), *parents], num_behind)


class ModelDrafter:
    """Proposes a graph per request, grown by `runner`'s model. Owns one of its slots per request in progress.

    Args:
        runner: the draft model, with the target's vocabulary.
        width: candidates per node.
        depth: most levels to grow.
        ranking: `coupled` or `drawn`.
    """

    def __init__(self, runner: Runner, width: int, depth: int, ranking: Ranking = coupled) -> None:
        self._runner = runner
        self._width = width
        self._depth = depth
        self._ranking = ranking
        self._branches: dict[int, _Branch] = {}

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> list[tuple[TokenGraph, ...]]:
        graphs = [root_graph(context) for context in contexts]
        growths = []
        for context, budget, graph in zip(contexts, budgets, graphs, strict=True):
            growth = self._start(context, budget, graph)
            if growth is not None:
                growths.append(growth)
        while growths:
            batch = VerifyBatch(
                tuple(growth.branch.slot for growth in growths), [growth.extension() for growth in growths]
            )
            for growth, rows in zip(growths, self._runner.extend(batch).rows, strict=True):
                growth.add_children(self._ranking, rows, self._width)
            growths = [growth for growth in growths if growth.frontier]
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

    def _commit(self, branch: _Branch, tokens: Sequence[int]) -> None:
        """Keeps what was computed along `tokens`; what was computed under another parent is stale and goes."""
        path = branch.computed_path(tokens)
        self._runner.commit(branch.slot, path)
        branch.committed += len(path)
        branch.open_nodes.clear()

    def _start(self, context: Context, budget: int, graph: TokenGraph) -> _Growth | None:
        """Brings the request's slot close to its root; None where the request gets no drafts from this model."""
        levels = min(self._depth, context.max_depth, self._runner.context_length - len(context.tokens) + 1)
        if budget == 0 or levels <= 0:
            return None
        branch = self._branches.get(context.request)
        if branch is None:
            if not self._runner.num_free_slots:
                return None
            branch = self._branches[context.request] = _Branch(self._runner.open())
        self._commit(branch, ())  # a step that failed left an open tree
        behind = context.tokens[branch.committed : -1]
        while len(behind) > _PREFILL_CHUNK:
            chunk, behind = behind[:_PREFILL_CHUNK], behind[_PREFILL_CHUNK:]
            extension = branch.append(chunk, range(-1, len(chunk) - 1), first_row=len(chunk))
            self._runner.extend(VerifyBatch((branch.slot,), [extension]))
            self._commit(branch, chunk)
        return _Growth(context, branch, graph, budget, levels, behind)


def _log_prob(context: Context, logits: FloatArray) -> Row:
    """Returns [vocabulary]: log draft_prob at the request's temperature, at 1 where that is 0."""
    shifted = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # close to temperature 0 all but the largest may become -inf
        scaled = shifted / (context.temperature or 1.0)
    return np.asarray(scaled - np.log(np.exp(scaled).sum()))


def _top(scores: Row, width: int) -> list[int]:
    """Returns the ids of the `width` largest scores, largest first."""
    width = min(width, len(scores))
    top = np.argpartition(scores, -width)[-width:]
    return [int(token) for token in top[np.argsort(-scores[top], kind="stable")]]
