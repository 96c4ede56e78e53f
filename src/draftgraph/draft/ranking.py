"""Rankings: what a draft model proposes after a node, from its logits there.

In: logits of one row, the request's noise and temperature. Out: candidates, best first, each with an estimate that the
target takes it: the model's coupled draws (`coupled`), or real draws that carry their distribution (`drawn`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftgraph.graph.token_graph import TokenGraph
from draftgraph.kernels.likeliest import likeliest
from draftgraph.types import Context, Drawn, FloatArray, Row

REACH = 10.0  # nats below the best draw, within which draws are candidates and count in its estimate


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may follow a node, the estimate that the target takes it, and how it was drawn."""

    token: int
    acceptance: float
    draw: Drawn | None


# (context, graph, its node, logits [vocabulary] after the node, how many) -> the candidates after it, best first. Pure.
Ranking = Callable[[Context, TokenGraph, int, FloatArray, int], list[Candidate]]


def coupled(context: Context, graph: TokenGraph, node: int, logits: FloatArray, width: int) -> list[Candidate]:
    """Ranks by log draft_prob + the request's own noise (arXiv 2408.07978): at temperature 0 the likeliest tokens,
    otherwise the draft model's draws from the very noise that the target will draw with."""
    if context.temperature == 0:
        return likeliest_candidates(logits, width)
    position = len(context.tokens) + graph.depths[node]
    return ranked(*context.noise.contenders(scaled(context, logits), position, REACH), width)


def ranked(ids: npt.NDArray[np.int64], perturbed: Row, width: int) -> list[Candidate]:
    """Returns the `width` ids [k] with the largest perturbed scores [k], which are all within `REACH` of the best.

    The estimate is the softmax of the perturbed scores: it says by how much a draw won, hence how large a difference
    between the models it survives. What lost by more than `REACH` is left out: a share about as large as the
    probability of all tokens rarer than e^-REACH together.
    """
    weights = np.exp(perturbed - perturbed.max())
    weights /= weights.sum()
    return [Candidate(int(ids[place]), float(weights[place]), None) for place in _top(perturbed, width)]


def drawn(context: Context, graph: TokenGraph, node: int, logits: FloatArray, width: int) -> list[Candidate]:
    """Draws without replacement (Gumbel top-k, arXiv 1903.06059) for the residual rule; at temperature 0 as `coupled`.

    The estimate of draw number i is the i-th largest probability: it must not depend on the value that was drawn, or
    selection would bias the text.
    """
    if context.temperature == 0:
        return coupled(context, graph, node, logits, width)
    log_prob = scaled(context, logits)
    log_prob -= np.log(np.exp(log_prob).sum())
    draft_prob: Row = np.exp(log_prob)
    tokens = _top(log_prob + context.noise.draft_gumbel(len(context.tokens), node, len(logits)), width)
    estimates = draft_prob[_top(draft_prob, width)]
    return [
        Candidate(token, float(estimates[order]), Drawn(draft_prob, order))
        for order, token in enumerate(tokens)
        if draft_prob[token] > 0
    ]


def likeliest_candidates(logits: FloatArray, width: int) -> list[Candidate]:
    """Returns the `width` likeliest tokens with their probabilities at temperature 1."""
    tokens = likeliest(logits[np.newaxis], width)[0]
    weights = np.exp(logits - logits.max())
    probs = weights[tokens] / weights.sum()
    return [Candidate(int(token), float(prob), None) for token, prob in zip(tokens, probs, strict=True)]


def scaled(context: Context, logits: FloatArray) -> Row:
    """Returns [vocabulary]: the logits below their largest, over the temperature, which is not 0."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    with np.errstate(over="ignore"):  # close to temperature 0 all but the largest may become -inf
        scores /= context.temperature
    return scores


def _top(scores: Row, width: int) -> list[int]:
    """Returns the ids of the `width` largest scores, largest first."""
    width = min(width, len(scores))
    top = np.argpartition(scores, -width)[-width:]
    return [int(token) for token in top[np.argsort(-scores[top], kind="stable")]]
