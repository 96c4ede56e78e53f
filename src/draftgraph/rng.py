"""Position-keyed noise: the only randomness of the project.

A leaf: of ours it knows only the extension. A request's noise is a hash of (seed, position, token id) and nothing else,
so that a token does not depend on how many others were drafted, on the batch, or on anything drawn before it. Drafters
get the same noise, which is how they agree with a sampling target. Nothing here knows a logit's origin.

NumPy's formula decides every draw. The extension only says which few ids of a vocabulary can win at all; without it
the formula looks at every id, and finds the same.
"""

from __future__ import annotations

import secrets
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftgraph.extension import core

Scores = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Lanes keep draws for different purposes at one position independent of each other.
_LANE_TOKEN, _LANE_RESIDUAL, _LANE_COIN, _LANE_DRAFT = range(4)


class Noise(Protocol):
    """How a request draws. `position` is the absolute position of the token being drawn.

    `scores` [vocabulary] are log-probabilities up to a constant, not NaN; -inf cannot be drawn.
    """

    def pick(self, scores: Scores, position: int) -> int:
        """Draws from softmax(scores): the argmax of scores + noise. Ties go to the lowest id."""

    def contenders(self, scores: Scores, position: int, margin: float) -> tuple[npt.NDArray[np.int64], Scores]:
        """Returns the ids [k], rising, whose scores + noise of `pick` lie within `margin` of the largest, and these."""

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> Scores:
        """Returns [num_tokens]: noise of one node of the graph rooted before `position`, independent of all other."""

    def choose(self, probs: npt.NDArray[Any], position: int) -> int:
        """Draws from `probs` [vocabulary], independently of `pick` at the same position."""

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        """True with `probability`, independently for each (position, attempt) and of all other draws."""


class Greedy:
    """No noise: the likeliest token, the lowest id on a tie."""

    def pick(self, scores: Scores, position: int) -> int:
        return int(np.argmax(scores))

    def contenders(self, scores: Scores, position: int, margin: float) -> tuple[npt.NDArray[np.int64], Scores]:
        ids = np.flatnonzero(scores >= scores.max() - margin)
        return ids, scores[ids]

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> Scores:
        return np.zeros(num_tokens)

    def choose(self, probs: npt.NDArray[Any], position: int) -> int:
        return int(np.argmax(probs))

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        return bool(probability >= 1)


class SeededNoise:
    """Gumbel noise from a 64-bit seed (the Gumbel-max trick; the coupling of arXiv 2408.07978).

    The hash is SplitMix64 keyed by (seed, position, lane) and counted by the token id.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def pick(self, scores: Scores, position: int) -> int:
        return _argmax(scores, self._key(position, _LANE_TOKEN))

    def contenders(self, scores: Scores, position: int, margin: float) -> tuple[npt.NDArray[np.int64], Scores]:
        ids, perturbed = _perturb(scores, self._key(position, _LANE_TOKEN), margin)
        within = ~(perturbed < perturbed.max() - margin)
        return ids[within], perturbed[within]

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> Scores:
        return _gumbel(self._key(position, _LANE_DRAFT), (node << 32) + np.arange(num_tokens))

    def choose(self, probs: npt.NDArray[Any], position: int) -> int:
        with np.errstate(divide="ignore"):
            scores = np.log(probs)
        return _argmax(scores, self._key(position, _LANE_RESIDUAL))

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        return bool(_uniform(self._key(position, _LANE_COIN), np.array([attempt]))[0] < probability)

    def _key(self, position: int, lane: int) -> np.uint64:
        with np.errstate(over="ignore"):
            key = _mix(np.uint64(self.seed) + _GOLDEN)
            return np.uint64(_mix(key ^ _mix(np.uint64(position) * _GOLDEN + np.uint64(lane))))


def _argmax(scores: Scores, key: np.uint64) -> int:
    """Returns the id of the largest score + noise, the lowest on a tie."""
    ids, perturbed = _perturb(scores, key, 0)
    return int(ids[np.argmax(perturbed)])


def _perturb(scores: Scores, key: np.uint64, margin: float) -> tuple[npt.NDArray[np.int64], Scores]:
    """Returns ids, rising, among them all whose scores + noise lie within `margin` of the largest, and these."""
    ids = _possible(scores, key, margin)
    return ids, scores[ids] + _gumbel(key, ids)


def _possible(scores: Scores, key: np.uint64, margin: float) -> npt.NDArray[np.int64]:
    if core is not None:
        room = np.empty(len(scores), np.int32)
        if count := core.contenders(np.ascontiguousarray(scores, np.float64), int(key), margin, room):
            return room[:count].astype(np.int64)
    return np.arange(len(scores))


def _gumbel(key: np.uint64, counters: npt.NDArray[np.int64]) -> Scores:
    return np.asarray(-np.log(-np.log(_uniform(key, counters))))


def _uniform(key: np.uint64, counters: npt.NDArray[np.int64]) -> Scores:
    """Uniform in the open interval (0, 1), with 52 bits each."""
    with np.errstate(over="ignore"):
        bits = _mix(key + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return np.asarray(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _mix(state: Any) -> Any:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), on uint64 scalars or arrays."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def fresh_seed() -> int:
    """A seed for a request that names none, from the system's entropy."""
    return secrets.randbits(63)


def noise_for(temperature: float, seed: int) -> Noise:
    """Returns the noise of a request: none at temperature 0."""
    return SeededNoise(seed) if temperature > 0 else Greedy()
