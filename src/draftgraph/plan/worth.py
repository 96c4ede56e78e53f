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
_SHARED_PRIOR, _OWN_PRIOR = 2.0, 5.0

_FADING = 0.93  # per step

_Kind = tuple[tuple[str, ...], int]  # (sources, confidence bucket)


@dataclass(slots=True)
class Frequency:
    """A running mean that starts from a prior and slowly forgets."""

    mean: float
    weight: float
    memory: float

    def add(self, outcome: float) -> None:
        """Counts one outcome, such as 1 for taken and 0 for not."""
        self.weight = min(self.weight + 1, self.memory)
        self.mean += (outcome - self.mean) / self.weight


class Worth:
    """Owns the frequencies: by kind of candidate; by kind and depth, which starts from the former; by kind and request,
    which is weighed against what all requests showed.
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

    def fade(self, request: int, votes: Mapping[str, float]) -> None:
        """Lets a request's own experience with a candidate count less: it is not tried now and grows out of date."""
        for source, estimate in votes.items():
            own = self._own.get(request, _NOTHING).get(_kind((source,), estimate))
            if own is not None:
                own.weight *= _FADING

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
        return _bounded((own.weight * own.mean + _OWN_PRIOR * at_depth.mean) / (own.weight + _OWN_PRIOR))

    def _count(self, request: int, kind: _Kind, depth: int, prior: float, taken: bool) -> None:
        shared = self._kinds.get(kind)
        if shared is None:
            shared = self._kinds[kind] = Frequency(prior, _SHARED_PRIOR, _SHARED_MEMORY)
        at_depth = (kind, bisect.bisect(_DEPTHS, depth))
        if at_depth not in self._depths:
            self._depths[at_depth] = Frequency(shared.mean, _SHARED_PRIOR, _SHARED_MEMORY)
        own = self._own.setdefault(request, {})
        if kind not in own:
            own[kind] = Frequency(0.0, 0.0, _OWN_MEMORY)
        own[kind].add(taken)
        self._depths[at_depth].add(taken)
        shared.add(taken)


_NOTHING: Mapping[_Kind, Frequency] = {}


def _bounded(probability: float) -> float:
    return min(max(probability, 0.001), 0.999)


def _kind(sources: tuple[str, ...], estimate: float) -> _Kind:
    return sources, bisect.bisect(_CONFIDENCES, estimate)
