"""How what does not pay is left alone, and still tried now and then.

In: seconds, and the requests of a step. Out: whether there is enough to try, whether this step is one of rest. Never
sees what is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Savings:
    """Seconds saved up for trying."""

    seconds: float = 0.0

    def earn(self, seconds: float, most: float = float("inf")) -> None:
        """Adds some, up to `most` in all."""
        self.seconds = min(self.seconds + seconds, most)

    def take(self, price: float) -> bool:
        """Spends all of it if that is enough. Returns whether it was."""
        if self.seconds < price:
            return False
        self.seconds = 0.0
        return True


@dataclass(slots=True)
class Pause:
    """Steps in which nothing is thought about, for requests for which that was found not to pay.

    Args:
        steps: how many are left.
        requests: whom it was found for.
    """

    steps: int = 0
    requests: frozenset[int] = frozenset()

    def covers(self, requests: Iterable[int]) -> bool:
        """Whether a step of these requests is one of them, which is then used up; somebody new ends the pause."""
        if self.steps and self.requests.issuperset(requests):
            self.steps -= 1
            return True
        self.steps = 0
        return False
