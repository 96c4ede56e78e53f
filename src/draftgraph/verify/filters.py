"""Filters: top-k, top-p and min-p, in this order, on one row of scores.

In: scores over the temperature, the largest of them 0. Out: the same with what is dropped at -inf. Never sees logits,
tokens or requests.

Which tokens stay is defined on the whole row in falling order. As few ever stay, it is decided on the few largest alone
where that is certain, and only otherwise on all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftgraph.config import SamplingParams
from draftgraph.kernels.exp_sum import REL_ERROR, exp_sum

Scores = npt.NDArray[np.float64]

_HEADS = (256, 4096)  # how many of the largest scores are tried for top-p before all are sorted
_CERTAIN = 2 * REL_ERROR + 1e-10  # the probability by which a sum must miss top_p, beyond the rounding of any summation


def softmax(scores: Scores) -> Scores:
    """Returns the probabilities of `scores`, float64; -inf has probability 0."""
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def keep(scores: Scores, sampling: SamplingParams) -> Scores:
    """Sets the scores that top-k, top-p or min-p drop to -inf, in place, and returns them.

    Of equal scores at the border between kept and dropped, those of the lowest ids are kept.
    """
    if 0 < sampling.top_k < len(scores):
        falling = _falling(scores, sampling.top_k)[: sampling.top_k]
        kept = len(falling) if sampling.top_p == 1 else _num_reaching(np.cumsum(softmax(falling)), sampling.top_p)
        _keep_largest(scores, falling, kept)
    elif sampling.top_p < 1:
        _keep_largest(scores, *_nucleus(scores, sampling.top_p))
    if sampling.min_p > 0:
        np.putmask(scores, scores < scores.max() + np.log(sampling.min_p), -np.inf)
    return scores


def _nucleus(scores: Scores, top_p: float) -> tuple[Scores, int]:
    """Returns the largest scores, falling, and how many of them it takes to reach top_p."""
    total = exp_sum(scores)
    for count in _HEADS:
        if count < len(scores):
            falling = _falling(scores, count)
            sums = np.cumsum(np.exp(falling)) / total
            kept = _num_reaching(sums, top_p - _CERTAIN)
            if kept == _num_reaching(sums, top_p + _CERTAIN) and kept <= len(falling):
                return falling, kept
    falling = -np.sort(-scores)
    return falling, _num_reaching(np.cumsum(softmax(falling)), top_p)


def _num_reaching(sums: Scores, top_p: float) -> int:
    """Returns how many tokens stay: each while those before it have not reached top_p, so always the likeliest one."""
    return int(np.searchsorted(sums, top_p)) + 1


def _falling(scores: Scores, count: int) -> Scores:
    """Returns the `count` largest scores, perhaps more, in falling order; count <= len(scores)."""
    group = max(len(scores) // (8 * count), 1)
    tops = scores[: len(scores) // group * group].reshape(group, -1).max(axis=0)
    least = np.partition(tops, -count)[-count]  # `count` groups hold a score that is no smaller
    ids = np.flatnonzero(scores >= max(least, np.finfo(np.float64).min))
    return np.concatenate([-np.sort(-scores[ids]), np.full(max(count - len(ids), 0), -np.inf)])


def _keep_largest(scores: Scores, falling: Scores, kept: int) -> None:
    """Sets all but the `kept` largest scores to -inf, in place; `falling` are the largest."""
    border = falling[min(kept, len(falling)) - 1]
    ids = np.flatnonzero(scores >= border)
    ties = np.flatnonzero(scores[ids] == border)
    ids = np.delete(ids, ties[len(ties) - max(len(ids) - kept, 0) :])
    values = scores[ids]
    scores.fill(-np.inf)
    scores[ids] = values
