"""Why a text took as long as it did: what was drafted, what it cost, and what plain decoding would have reached.

In: a request's statistics and what passes cost. Out: one `Explanation`. It only arranges what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftgraph.engine.stats import RequestStats
from draftgraph.llm import LLM, Completion
from draftgraph.plan.cost import PassCost
from draftgraph.plan.measure import measure
from draftgraph.plan.planner import AutoPlanner

_ROWS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class SourceShare:
    """One source: its drafts, and its price in milliseconds per step asked; None where the planner does not count."""

    proposed: int
    accepted: int
    asked: int
    ms_per_step: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was chosen and why.

    Args:
        budgets: drafts verified in a pass -> number of such passes.
        plain_tokens_per_second: what plain decoding was expected to reach; 0 where the planner does not know.
        pass_ms: rows -> what a pass over this text costs.
    """

    budgets: Mapping[int, int]
    tokens_per_second: float
    plain_tokens_per_second: float
    sources: Mapping[str, SourceShare]
    pass_ms: Mapping[int, float]

    @property
    def passes(self) -> int:
        return sum(self.budgets.values())

    @property
    def share_without_drafts(self) -> float:
        """Passes without drafts, from 0 to 1."""
        return self.budgets.get(0, 0) / self.passes if self.passes else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the published form."""
        return {
            "budgets": {str(drafts): passes for drafts, passes in self.budgets.items()},
            "share_without_drafts": round(self.share_without_drafts, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "plain_tokens_per_second": round(self.plain_tokens_per_second, 2),
            "sources": {
                name: {
                    "proposed": source.proposed,
                    "accepted": source.accepted,
                    "asked": source.asked,
                    "ms_per_step": None if source.ms_per_step is None else round(source.ms_per_step, 4),
                }
                for name, source in self.sources.items()
            },
            "pass_ms": {str(rows): round(ms, 3) for rows, ms in self.pass_ms.items()},
        }


def explain_completion(llm: LLM, completion: Completion) -> Explanation:
    """Returns the explanation of a text, its passes priced as the planner knows them; without one they are measured."""
    planner = llm.engine.planner
    cost = planner.cost if isinstance(planner, AutoPlanner) else PassCost(measure(llm.runner))
    return explain(completion.stats, cost, completion.prompt_tokens + completion.completion_tokens // 2)


def explain(stats: RequestStats, cost: PassCost, context: int) -> Explanation:
    """Returns the explanation of one finished request.

    Args:
        cost: of the target's passes.
        context: tokens in the text for which passes are priced.
    """
    sources = {
        name: SourceShare(
            source.proposed,
            source.accepted,
            source.asked,
            1e3 * source.seconds / source.asked if source.asked else None,
        )
        for name, source in sorted(stats.by_source.items())
    }
    return Explanation(
        dict(sorted(stats.budgets.items())),
        stats.decode_tokens_per_second,
        stats.plain_tokens_per_second,
        sources,
        {rows: 1e3 * cost.seconds(rows, rows * context) for rows in _ROWS},
    )
