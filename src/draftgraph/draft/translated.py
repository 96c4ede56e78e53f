"""A draft model with another vocabulary: it reads the target's text in its own tokens and proposes in the target's.

In: known tokens and the request's noise. Out: what a `ModelDrafter` proposes for the translated text, translated back.
The two texts agree byte for byte. Up to a border between words the draft model's cache keeps its tokens; behind it they
are made anew in every step (cf. arXiv 2502.05202). It never sees the target, nor how words are looked up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from draftgraph.draft.base import Growth, Proposals, root_graph
from draftgraph.draft.model import NAME, ModelDrafter
from draftgraph.draft.ranking import REACH, Candidate, likeliest_candidates, ranked, scaled
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.runner.base import Runner
from draftgraph.types import Context, FloatArray, IntArray, MergeRule, Verdict

_MOST_UNSETTLED = 16  # draft tokens that are made anew in a step
_MEDIAN_GUMBEL = 0.3665


class Translation(Protocol):
    """What is known of the two vocabularies. Never raises, whatever the ids stand for."""

    @property
    def opening(self) -> Sequence[int]:
        """Draft ids with which every text begins."""

    @property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """[n] draft ids and [n] target ids with the same text."""

    @property
    def mute(self) -> IntArray:
        """[n] draft ids that stand for nothing in the target's vocabulary."""

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """Returns draft ids with the text of target ids; markup is matched by name, or else written out."""

    def to_target(self, tokens: Sequence[int]) -> list[int]:
        """Returns target ids with the text of draft ids, without those that are mute."""

    def is_border(self, before: int, after: int) -> bool:
        """Whether two neighbouring target ids are cut apart in both vocabularies, whatever follows."""


@dataclass(slots=True)
class _Text:
    """One request's text in draft tokens. Owns `ids`; `ids[:settled]` never change again, and at most
    `_MOST_UNSETTLED` follow them."""

    ids: list[int]
    settled: int = 0
    read: int = 0  # target tokens that are settled
    length: int = 0  # target tokens in all

    def follow(self, known: Sequence[int], fresh: Sequence[int], translation: Translation) -> None:
        """Brings the ids to the text of `known` and `fresh` together."""
        if self.length == len(known) + len(fresh):
            return
        tail = [*known[self.read :], *fresh]
        borders = (i for i in range(len(tail) - 1, 0, -1) if translation.is_border(tail[i - 1], tail[i]))
        border = next(borders, 0)
        rest = translation.to_draft(tail[border:])
        if len(rest) > _MOST_UNSETTLED:
            border, rest = len(tail), []
        self.ids[self.settled :] = translation.to_draft(tail[:border])
        self.settled = len(self.ids)
        self.ids += rest
        self.read += border
        self.length = len(known) + len(fresh)

    def context(self, about: Context) -> Context:
        """Returns `about` with this text instead. Nothing merges in it: a merged node has no one text."""
        return replace(about, tokens=self.ids, merge_rule=MergeRule(0))


class TranslatedDrafter:
    """Proposes a graph per request, grown by `runner`'s model in its own vocabulary. Its slots are a `ModelDrafter`'s.

    Args:
        runner: the draft model.
        translation: between its vocabulary and the target's.
        width, depth, growth, source: see `ModelDrafter`; width and depth are counted in the draft model's tokens.
    """

    def __init__(
        self,
        runner: Runner,
        translation: Translation,
        width: int,
        depth: int,
        growth: Growth | None = None,
        source: str = NAME,
    ) -> None:
        self._drafter = ModelDrafter(runner, width, depth, self._coupled, growth, source, _MOST_UNSETTLED)
        self._translation = translation
        self._texts: dict[int, _Text] = {}

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        graphs = [root_graph(context) for context in contexts]
        for context, budget in zip(contexts, budgets, strict=True):
            if budget:
                self._text(context).follow(context.tokens, (), self._translation)
        asked = [i for i, budget in enumerate(budgets) if budget and self._texts[contexts[i].request].ids]
        theirs = [self._texts[contexts[i].request].context(contexts[i]) for i in asked]
        seen = [
            tuple(translated(graph, root_graph(about), self._translation.to_draft) for graph in earlier[i])
            for i, about in zip(asked, theirs, strict=True)
            if earlier
        ]
        proposals = self._drafter.propose(theirs, [budgets[i] for i in asked], seen)
        for i, (proposed,) in zip(asked, proposals, strict=True):
            translated(proposed, graphs[i], self._translation.to_target)
        return [(graph,) for graph in graphs]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            text = self._texts.get(context.request)
            if text is None:
                continue
            if verdict.finish is not None:
                del self._texts[context.request]
            text.follow(context.tokens, verdict.tokens, self._translation)
            # All but the last of what the draft model is told of may be committed: here, what is settled.
            settled, following = text.ids[: text.settled], text.ids[text.settled : text.settled + 1]
            self._drafter.observe([replace(context, tokens=settled)], [replace(verdict, tokens=tuple(following))])

    def restart(self) -> None:
        self._texts.clear()
        self._drafter.restart()

    def _text(self, context: Context) -> _Text:
        if context.request not in self._texts:
            self._texts[context.request] = _Text(list(self._translation.opening))
        return self._texts[context.request]

    def _coupled(
        self, context: Context, graph: TokenGraph, node: int, logits: FloatArray, width: int
    ) -> list[Candidate]:
        """As `coupled`, with the noise of the target token that has a candidate's text, at its place in the target's
        text. Where there is none, the median stands in: such a candidate wins where that is likelier than not."""
        audible = logits.copy()
        audible[self._translation.mute] = -np.inf
        if context.temperature == 0:
            return likeliest_candidates(audible, width)
        path = _path_to(graph, node)
        position = self._texts[context.request].length + len(self._translation.to_target(path))
        draft_ids, target_ids = self._translation.pairs
        scores = scaled(context, audible)
        perturbed = scores + _MEDIAN_GUMBEL
        perturbed[draft_ids] = -np.inf
        paired = np.full(target_ids.max(initial=0) + 1, -np.inf)
        paired[target_ids] = scores[draft_ids]
        if np.isfinite(paired.max()):
            drafts = np.empty(len(paired), np.int64)
            drafts[target_ids] = draft_ids
            ids, values = context.noise.contenders(paired, position, REACH)
            perturbed[drafts[ids]] = values
        within = np.flatnonzero(perturbed >= perturbed.max() - REACH)
        return ranked(within, perturbed[within], width)


def translated(graph: TokenGraph, into: TokenGraph, across: Callable[[Sequence[int]], list[int]]) -> TokenGraph:
    """Adds the hypotheses of `graph` to the bare root `into`, in the tokens that `across` makes of a path, and returns
    it. Does not modify `graph`.

    Whatever probability a hypothesis has and none of its continuations takes goes to its own text. So a word that
    probably goes on counts for little, and its continuations for the longer tokens they make; where tokens match one to
    one, an estimate stays what it was.
    """
    shares = _shares(graph, across)
    source = next((edge.sources[0] for edge in graph.children[0].values()), "")
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for path in sorted(shares, key=lambda path: (len(path), -shares[path])):
        if path and shares[path] > 0:
            above = path[:-1]
            nodes[path] = into.add(nodes[above], path[-1], source, shares[path] / shares[above])
    return into


def _shares(graph: TokenGraph, across: Callable[[Sequence[int]], list[int]]) -> dict[tuple[int, ...], float]:
    """Returns for each translated path the probability that the text begins with it.

    A graph has more paths than nodes where hypotheses merge: the likeliest are followed, as many as there are nodes.
    """
    shares: dict[tuple[int, ...], float] = {}
    pending: list[tuple[float, int, tuple[int, ...], int]] = [(-1.0, 0, (), 0)]
    num_followed = order = 0
    while pending:
        negated, _, path, node = heapq.heappop(pending)
        rest = -negated
        num_followed += 1
        for token, edge in graph.children[node].items() if num_followed <= len(graph) else ():
            order += 1
            heapq.heappush(pending, (negated * edge.acceptance, order, (*path, token), edge.child))
            rest += negated * edge.acceptance
        tokens = tuple(across(path))
        for length in range(len(tokens) + 1):
            shares[tokens[:length]] = shares.get(tokens[:length], 0.0) + max(rest, 0.0)
    return shares


def _path_to(graph: TokenGraph, node: int) -> list[int]:
    """Returns the tokens from below the root to `node`."""
    path = []
    while node > 0:
        path.append(graph.tokens[node])
        node = graph.parents[node]
    return path[::-1]
