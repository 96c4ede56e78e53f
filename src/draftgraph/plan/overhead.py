"""What a step takes beside its pass, with drafts and without: Python between two passes, which for a small model is not
little.

In: what steps took. Out: seconds per request, and how much more than their answers drafts cost. Never sees a source.
"""

from __future__ import annotations

from dataclasses import dataclass

_RATE = 0.1  # share of each new observation
_MOST_BURDEN = 5.0  # where clocks show more than this, they show something else


@dataclass(slots=True)
class Overhead:
    """Owns what is known of it.

    Args:
        without, with_drafts: seconds per request of steps beside their passes; 0 as long as they are not known.
        burden: what drafts cost in all over what their sources take to answer: they are merged, selected, judged and
            learned from as well.
    """

    without: float = 0.0
    with_drafts: float = 0.0
    burden: float = 1.0

    def learn(self, seconds: float, answers: float | None) -> None:
        """Learns from a step that took `seconds` per request beside its pass; `answers` of them went to sources, None
        if none was asked."""
        if answers is None:
            self.without += _RATE * (seconds - self.without)
            return
        self.with_drafts += _RATE * (seconds - self.with_drafts)
        if self.without and self.with_drafts:
            burden = max(self.with_drafts - self.without, 0.0) / max(answers, 1e-9)
            self.burden += _RATE * (min(max(burden, 1.0), _MOST_BURDEN) - self.burden)
