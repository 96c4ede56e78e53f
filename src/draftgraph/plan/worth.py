"""What a guess is worth: the chance that the target takes it, by who proposed it, how deep and how sure.

In: estimates as drafters give them, and what became of each. Out: calibrated probabilities, so that sources compete
fairly in one graph. Learned per request, with what all requests taught as its prior. Never sees tokens or tensors.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

# Borders between confidence buckets and between depth buckets.
_CONFIDENCES = (0.02, 0.05, 0.1, 0.18, 0.28, 0.4, 0.52, 0.64, 0.75, 0.84, 0.9, 0.95, 0.98, 0.995)
_DEPTHS = (2, 3, 5, 9)
# Outcomes that count, the latest ones most, and outcomes that a prior is worth: for all requests, and for one.
_SHARED_MEMORY, _OWN_MEMORY = 400.0, 40.0
_SHARED_PRIOR, _OWN_PRIOR = 2.0, 2.0

_Kind = tuple[tuple[str, ...], int]  # (sources, confidence bucket)


@dataclass(slots=True)
class Frequency:
    """How often something happened: a running mean that starts from a prior and slowly forgets."""

    mean: float
    weight: float
    memory: float

    def add(self, happened: float) -> None:
        """Counts one outcome, 1 or 0."""
        self.weight = min(self.weight + 1, self.memory)
        self.mean += (happened - self.mean) / self.weight


class Worth:
    """Owns the frequencies: by kind of candidate; by kind and depth, which starts from the former; by kind and request.

    What a request shows of a kind, against what all of them showed, is carried over to every depth.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Kind, Frequency] = {}
        self._depths: dict[tuple[_Kind, int], Frequency] = {}
        self._own: dict[int, dict[_Kind, Frequency]] = {}

    def of(self, request: int, votes: Mapping[str, float], depth: int) -> float:
        """Returns the probability that a candidate is taken, given that its parent was.

        Args:
            votes: source -> its estimate; where several agree, what they are worth together is learned as its own.
            depth: of the candidate below the root, from 1.
        """
        if len(votes) > 1:
            together = self._find(request, _kind(tuple(sorted(votes)), max(votes.values())), depth)
            if together is not None:
                return together
        return max(self._alone(request, source, estimate, depth) for source, estimate in votes.items())

    def learn(self, request: int, votes: Mapping[str, float], depth: int, taken: bool) -> None:
        """Counts what became of a candidate whose parent was taken."""
        prior = self.of(request, votes, depth)
        for source, estimate in votes.items():
            self._count(request, _kind((source,), estimate), depth, _bounded(estimate), taken)
        if len(votes) > 1:
            self._count(request, _kind(tuple(sorted(votes)), max(votes.values())), depth, prior, taken)

    def forget(self, request: int) -> None:
        """Drops what belongs to a request that is over; what it taught the others stays."""
        self._own.pop(request, None)

    def _alone(self, request: int, source: str, estimate: float, depth: int) -> float:
        found = self._find(request, _kind((source,), estimate), depth)
        return _bounded(estimate) if found is None else found

    def _find(self, request: int, kind: _Kind, depth: int) -> float | None:
        shared = self._kinds.get(kind)
        if shared is None:
            return None
        at_depth = self._depths.get((kind, bisect.bisect(_DEPTHS, depth)), shared)
        own = self._own.get(request, _NOTHING).get(kind)
        if own is None:
            return _bounded(at_depth.mean)
        odds = _odds(at_depth.mean) * _odds(own.mean) / _odds(shared.mean)
        return _bounded(odds / (1 + odds))

    def _count(self, request: int, kind: _Kind, depth: int, prior: float, taken: bool) -> None:
        shared = self._kinds.get(kind)
        if shared is None:
            shared = self._kinds[kind] = Frequency(prior, _SHARED_PRIOR, _SHARED_MEMORY)
        at_depth = (kind, bisect.bisect(_DEPTHS, depth))
        if at_depth not in self._depths:
            self._depths[at_depth] = Frequency(shared.mean, _OWN_PRIOR, _SHARED_MEMORY)
        own = self._own.setdefault(request, {})
        if kind not in own:
            own[kind] = Frequency(shared.mean, _OWN_PRIOR, _OWN_MEMORY)
        for frequency in (shared, self._depths[at_depth], own[kind]):
            frequency.add(taken)


_NOTHING: Mapping[_Kind, Frequency] = {}


def _bounded(probability: float) -> float:
    return min(max(probability, 0.001), 0.999)


def _odds(probability: float) -> float:
    probability = _bounded(probability)
    return probability / (1 - probability)


def _kind(sources: tuple[str, ...], estimate: float) -> _Kind:
    return sources, bisect.bisect(_CONFIDENCES, estimate)
