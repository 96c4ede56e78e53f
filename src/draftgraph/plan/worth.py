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
_SHARED_MEMORY, _OWN_MEMORY = 400.0, 40.0  # outcomes that count, the latest ones most
_SHARED_PRIOR, _OWN_PRIOR = 4.0, 6.0  # outcomes that a prior is worth

_Key = tuple[tuple[str, ...], int, int]  # (sources, confidence bucket, depth bucket)


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
    """Owns the frequencies: shared ones, and one set per request in progress."""

    def __init__(self) -> None:
        self._shared: dict[_Key, Frequency] = {}
        self._own: dict[int, dict[_Key, Frequency]] = {}

    def of(self, request: int, votes: Mapping[str, float], depth: int) -> float:
        """Returns the probability that a candidate is taken, given that its parent was.

        Args:
            votes: source -> its estimate; where several agree, what they are worth together is learned as its own.
            depth: of the candidate below the root, from 1.
        """
        if len(votes) == 1:
            ((source, estimate),) = votes.items()
            return self._lookup(request, (source,), estimate, depth)
        best = max(self._lookup(request, (source,), estimate, depth) for source, estimate in votes.items())
        return self._lookup(request, tuple(sorted(votes)), best, depth)

    def learn(self, request: int, votes: Mapping[str, float], depth: int, taken: bool) -> None:
        """Counts what became of a candidate whose parent was taken."""
        best = 0.0
        for source, estimate in votes.items():
            best = max(best, self._lookup(request, (source,), estimate, depth))
            self._count(request, (source,), estimate, depth, taken)
        if len(votes) > 1:
            self._count(request, tuple(sorted(votes)), best, depth, taken)

    def forget(self, request: int) -> None:
        """Drops what belongs to a request that is over; what it taught the others stays."""
        self._own.pop(request, None)

    def _lookup(self, request: int, sources: tuple[str, ...], estimate: float, depth: int) -> float:
        key = _key(sources, estimate, depth)
        own = self._own.get(request)
        found = own.get(key) if own else None
        found = found or self._shared.get(key)
        return min(found.mean, 0.999) if found else min(max(estimate, 0.001), 0.999)

    def _count(self, request: int, sources: tuple[str, ...], estimate: float, depth: int, taken: bool) -> None:
        key = _key(sources, estimate, depth)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = Frequency(min(max(estimate, 0.001), 0.999), _SHARED_PRIOR, _SHARED_MEMORY)
        own = self._own.setdefault(request, {})
        if key not in own:
            own[key] = Frequency(shared.mean, _OWN_PRIOR, _OWN_MEMORY)
        own[key].add(taken)
        shared.add(taken)


def _key(sources: tuple[str, ...], estimate: float, depth: int) -> _Key:
    return sources, bisect.bisect(_CONFIDENCES, estimate), bisect.bisect(_DEPTHS, depth)
