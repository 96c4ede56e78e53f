"""Position-keyed noise: the only randomness of the project.

A leaf. A request's noise is a hash of (seed, position, token id) and nothing else, so that a token does not depend on
how many others were drafted, on the batch, or on anything drawn before it. Drafters get the same noise, which is how
they agree with a sampling target. Nothing here knows a logit's origin.
"""

from __future__ import annotations

import secrets
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Lanes keep draws for different purposes at one position independent of each other.
_LANE_TOKEN, _LANE_RESIDUAL, _LANE_COIN, _LANE_DRAFT = range(4)


class Noise(Protocol):
    """How a request draws. `position` is the absolute position of the token being drawn."""

    def gumbel(self, position: int, num_tokens: int) -> npt.NDArray[np.float64]:
        """Returns [num_tokens]: the noise added to the log-probability of each token id at this position."""

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> npt.NDArray[np.float64]:
        """Returns [num_tokens]: noise of one node of the graph rooted before `position`, independent of all other."""

    def pick(self, scores: npt.NDArray[Any], position: int) -> int:
        """Draws from softmax(scores): the argmax of scores + gumbel. Ties go to the lowest id."""

    def choose(self, probs: npt.NDArray[Any], position: int) -> int:
        """Draws from `probs` [vocabulary], independently of `gumbel` and `pick` at the same position."""

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        """True with `probability`, independently for each (position, attempt) and of all other draws."""


class Greedy:
    """No noise: the likeliest token, the lowest id on a tie."""

    def gumbel(self, position: int, num_tokens: int) -> npt.NDArray[np.float64]:
        return np.zeros(num_tokens)

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> npt.NDArray[np.float64]:
        return np.zeros(num_tokens)

    def pick(self, scores: npt.NDArray[Any], position: int) -> int:
        return int(np.argmax(scores))

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

    def gumbel(self, position: int, num_tokens: int) -> npt.NDArray[np.float64]:
        return self._gumbel(position, num_tokens, _LANE_TOKEN)

    def draft_gumbel(self, position: int, node: int, num_tokens: int) -> npt.NDArray[np.float64]:
        return self._gumbel(position, num_tokens, _LANE_DRAFT, first=node << 32)

    def pick(self, scores: npt.NDArray[Any], position: int) -> int:
        return int(np.argmax(scores + self.gumbel(position, len(scores))))

    def choose(self, probs: npt.NDArray[Any], position: int) -> int:
        with np.errstate(divide="ignore"):
            scores = np.log(probs)
        return int(np.argmax(scores + self._gumbel(position, len(probs), _LANE_RESIDUAL)))

    def coin(self, probability: Any, position: int, attempt: int) -> bool:
        return bool(self._uniform(position, np.array([attempt], np.uint64), _LANE_COIN)[0] < probability)

    def _gumbel(self, position: int, num_tokens: int, lane: int, first: int = 0) -> npt.NDArray[np.float64]:
        uniform = self._uniform(position, np.arange(first, first + num_tokens, dtype=np.uint64), lane)
        return np.asarray(-np.log(-np.log(uniform)))

    def _uniform(self, position: int, counters: npt.NDArray[np.uint64], lane: int) -> npt.NDArray[np.float64]:
        """Uniform in the open interval (0, 1), with 52 bits each."""
        with np.errstate(over="ignore"):
            key = _mix(np.uint64(self.seed) + _GOLDEN)
            key = _mix(key ^ _mix(np.uint64(position) * _GOLDEN + np.uint64(lane)))
            bits = _mix(key + (counters + np.uint64(1)) * _GOLDEN)
        return np.asarray((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


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
