"""What the planner knows of one source of drafts: its price, and what it brings to each request and to all of them.

In: what asking it took and what that brought. Out: the same as means that slowly forget. Never sees tokens or graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftgraph.plan.probing import Savings
from draftgraph.plan.worth import Frequency

_GAIN_MEMORY = 24.0  # steps


@dataclass(slots=True)
class Source:
    """Owns what is known of one source."""

    price: float = 0.0  # seconds per request asked; 0 as long as it is not known
    savings: Savings = field(default_factory=Savings)
    probes: int = 0  # paid from these, so far: requests are probed in turn
    gain: Frequency = field(default_factory=lambda: Frequency(0.3, 2, 200))  # see `mean_gain`
    own: dict[int, Frequency] = field(default_factory=dict)

    def paid(self, seconds: float) -> None:
        self.price += (seconds - self.price) * (0.1 if self.price else 1.0)

    def mean_gain(self, request: int) -> float:
        """What it saves per step: accepted drafts, less what verifying its drafts took, in tokens without drafts."""
        own = self.own.get(request)
        return max(self.gain.mean, 0.0) if own is None else own.mean

    def gained(self, request: int, tokens: float) -> None:
        if request not in self.own:
            self.own[request] = Frequency(self.mean_gain(request), 3, _GAIN_MEMORY)
        self.own[request].add(tokens)
        self.gain.add(tokens)
