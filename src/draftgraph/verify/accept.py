"""Accept: which drafts are kept, by a rule that cannot change the text's distribution.

In: trees, the target's distributions on them, the requests' noise. Out: one `Verdict` per tree. Never sees models,
caches or drafters.

Glossary. *Accepted*: a draft that the target takes. *Correction*: the target's own token where no draft has it.
*Bonus*: the target's own token after a path that was accepted to its leaf. *Emitted*: all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from draftgraph.errors import ModelFileError
from draftgraph.graph.encode import children_by_token
from draftgraph.rng import Noise
from draftgraph.types import Ending, IntArray, Row, TokenLogprobs, TokenTree, Verdict


class Target(Protocol):
    """What a rule may ask about one tree; `path` lists drafts from below the root."""

    @property
    def position(self) -> int:
        """Absolute position of the token that follows the root."""

    def scores(self, path: Sequence[int]) -> Row:
        """Returns [vocabulary]: log-probabilities of the next token up to a constant."""

    def probs(self, path: Sequence[int]) -> Row:
        """Returns [vocabulary]: probabilities of the next token."""

    def successors(self) -> IntArray:
        """Returns [rows, k]: the target's likeliest next tokens."""

    def logprobs(self, tokens: Sequence[int], nodes: Sequence[int]) -> tuple[TokenLogprobs, ...] | None:
        """Returns how likely each of the emitted `tokens`, accepted at `nodes`, was; None if nobody asked."""


# Walks one tree from its root. Yields the emitted tokens, each with the node it was accepted at; the last one, the
# target's own, has -1. Pure.
Rule = Callable[[TokenTree, Target, Noise], Iterator[tuple[int, int]]]


def match(tree: TokenTree, target: Target, noise: Noise) -> Iterator[tuple[int, int]]:
    """The target draws, the drafts only save time: a draft is accepted when it is the target's own draw.

    The draw at a position depends on the seed, the position and the target's distribution there, so the text is the one
    of plain decoding, whatever the drafts were. Valid for every tree. (Gumbel-max coupling: arXiv 2408.07978.)
    """
    children = children_by_token(tree)
    path: list[int] = []
    node = tree.root
    while node >= 0:
        token = noise.pick(target.scores(path), target.position + len(path))
        node = children[node].get(token, -1)
        yield token, node
        path.append(node)


def residual(tree: TokenTree, target: Target, noise: Noise) -> Iterator[tuple[int, int]]:
    """Speculative sampling (arXiv 2211.17192, 2302.01318) with several draws at a node (2305.09781, 2402.12374).

    The children that were `Drawn` are tried in the order of their draws: accept with probability
    min(1, target_prob / draft_prob), otherwise subtract draft_prob from target_prob, renormalise both without the
    rejected token, and try the next. When none is left, the token is drawn from the remaining target_prob and may still
    be found among the other children. The text has the target's distribution; unlike `match` it depends on the drafts.
    """
    children = children_by_token(tree)
    path: list[int] = []
    node = tree.root
    while node >= 0:
        token = _residual_token(tree, children[node], target.probs(path), noise, target.position + len(path))
        node = children[node].get(token, -1)
        yield token, node
        path.append(node)


def _residual_token(tree: TokenTree, children: Mapping[int, int], target_prob: Row, noise: Noise, position: int) -> int:
    """Returns the next token at one node: a drawn child that is accepted, or a draw from what remains."""
    drawn = [(draw, token) for token, node in children.items() if (draw := tree.draws[node]) is not None]
    drawn.sort(key=lambda pair: pair[0].order)
    for attempt, (draw, token) in enumerate(drawn):
        assert draw.order == attempt, "a draw is missing: drafts were pruned after they were drawn"
        assert draw.draft_prob is drawn[0][0].draft_prob, "the draws at one node come from different distributions"
        draft_prob = _without(draw.draft_prob, [earlier for _, earlier in drawn[:attempt]])
        remaining = np.maximum(target_prob - draft_prob, 0)
        total = remaining.sum()
        # total == 0: the distributions are equal, and a draft is never rejected.
        if total == 0 or noise.coin(target_prob[token] / draft_prob[token], position, attempt):
            return token
        target_prob = remaining / total
    return noise.choose(target_prob, position)


def _without(probs: Row, tokens: Sequence[int]) -> Row:
    """Returns `probs` given that none of `tokens` is drawn."""
    rest = probs.copy()
    rest[list(tokens)] = 0
    return rest / rest.sum() if tokens else rest


RULES: Mapping[str, Rule] = {"match": match, "residual": residual}


def accept(
    rule: Rule,
    trees: Sequence[TokenTree],
    targets: Sequence[Target],
    noises: Sequence[Noise],
    endings: Sequence[Ending],
) -> list[Verdict]:
    """Returns the verdict on each tree by `rule`, cut where the request ends. Does not modify its arguments."""
    return [_verdict(rule, *parts) for parts in zip(trees, targets, noises, endings, strict=True)]


def _walk(rule: Rule, tree: TokenTree, target: Target, noise: Noise) -> list[tuple[int, int]]:
    """Returns what the rule yields, up to a row that cannot be used, as plain decoding would: it may lie behind the end
    of the text, where nobody would have looked at it. If it does not, the next step meets it at its root."""
    walk: list[tuple[int, int]] = []
    try:
        walk.extend(rule(tree, target, noise))
    except ModelFileError:
        if not walk:
            raise
    return walk


def _verdict(rule: Rule, tree: TokenTree, target: Target, noise: Noise, ending: Ending) -> Verdict:
    walk = _walk(rule, tree, target, noise) if tree.draws_next else []
    num_kept, finish = ending([token for token, _ in walk])
    tokens = tuple(token for token, _ in walk[:num_kept])
    nodes = tuple(node for _, node in walk[:num_kept])
    return Verdict(
        tree=tree,
        tokens=tokens,
        nodes=nodes,
        path=tuple(range(tree.num_known)) + nodes[:-1],
        finish=finish,
        successors=target.successors(),
        logprobs=target.logprobs(tokens, nodes),
    )
