"""What one request cost and what drafting brought. Observed from outside the stages, from verdicts and a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from draftgraph.plan.planner import Expense
from draftgraph.types import Verdict

_COUNTS = ("reused_tokens", "preemptions", "drafted_nodes", "verified_rows", "merged_nodes", "accepted_nodes")


@dataclass(slots=True)
class SourceStats:
    """One drafter's share: drafts of it that were verified, how many of them were accepted, and what asking it took in
    how many steps, where the planner knows."""

    proposed: int = 0
    accepted: int = 0
    asked: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RequestStats:
    """One request's counts and times, in seconds.

    The pass that reads the end of the prompt writes the first token; it belongs to the prefill. `target_passes` and all
    counts of drafts are about the later passes that wrote tokens. `reused_tokens` of the prompt were in memory and not
    read; `preemptions` times the request lost its slot to others.
    """

    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    completion_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0
    target_passes: int = 0
    drafted_nodes: int = 0
    merged_nodes: int = 0
    verified_rows: int = 0
    accepted_nodes: int = 0
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    budgets: dict[int, int] = field(default_factory=dict)  # drafts verified in a pass -> number of such passes
    plain_seconds: float = 0.0  # what the same tokens were expected to take without drafts; 0 where it is not known

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted per target pass; 0 if the first token was the only one."""
        return (self.completion_tokens - 1) / self.target_passes if self.target_passes else 0.0

    @property
    def prefill_seconds(self) -> float:
        return self.first_token - self.started

    @property
    def decode_seconds(self) -> float:
        return self.last_token - self.first_token

    @property
    def decode_tokens_per_second(self) -> float:
        return (self.completion_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def plain_tokens_per_second(self) -> float:
        """What plain decoding was expected to reach; 0 where it is not known."""
        return (self.completion_tokens - 1) / self.plain_seconds if self.plain_seconds > 0 else 0.0

    def copy(self) -> RequestStats:
        """Returns an independent copy."""
        twin = RequestStats(*_values_of(self))  # NOTE: `replace` takes five times as long, in every step
        twin.by_source = {name: SourceStats(*_values_of_source(share)) for name, share in self.by_source.items()}
        twin.budgets = dict(self.budgets)
        return twin

    def record(self, verdict: Verdict, expense: Expense, now: float) -> None:
        """Counts one verdict."""
        if not verdict.tokens:
            return
        is_first = not self.completion_tokens
        self.last_token = now
        self.completion_tokens += len(verdict.tokens)
        if is_first:
            self.first_token = now
            return
        tree = verdict.tree
        self.target_passes += 1
        self.drafted_nodes += tree.graph.num_drafted
        self.merged_nodes += tree.graph.num_merged
        self.verified_rows += 1 + tree.num_drafts
        self.accepted_nodes += verdict.num_accepted
        self.budgets[tree.num_drafts] = self.budgets.get(tree.num_drafts, 0) + 1
        self.plain_seconds += expense.plain
        for source, seconds in expense.drafts.items():
            share = self.by_source.setdefault(source, SourceStats())
            share.asked += 1
            share.seconds += seconds
        for sources in tree.sources:
            for source in sources:
                self.by_source.setdefault(source, SourceStats()).proposed += 1
        for node in verdict.nodes:
            for source in tree.sources[node] if node >= 0 else ():
                self.by_source[source].accepted += 1

    def to_json(self) -> dict[str, Any]:
        """Returns the published form."""
        return total_json([self])


_values_of = attrgetter(*(field.name for field in fields(RequestStats)))
_values_of_source = attrgetter(*(field.name for field in fields(SourceStats)))


def total_json(parts: Sequence[RequestStats]) -> dict[str, Any]:
    """Returns the published form of requests that ran together: counts are added, times are the slowest's."""
    passes = sum(stats.target_passes for stats in parts)
    written = sum(stats.completion_tokens - 1 for stats in parts if stats.completion_tokens)
    seconds = max(stats.decode_seconds for stats in parts)
    plain_seconds = max(stats.plain_seconds for stats in parts)
    budgets = sum((Counter(stats.budgets) for stats in parts), Counter())
    return {
        "target_passes": passes,
        "tokens_per_step": round(written / passes, 4) if passes else 0.0,
        "prefill_seconds": round(max(stats.prefill_seconds for stats in parts), 4),
        "decode_seconds": round(seconds, 4),
        "decode_tokens_per_second": round(written / seconds, 2) if seconds > 0 else 0.0,
        **{name: sum(getattr(stats, name) for stats in parts) for name in _COUNTS},
        "budgets": {str(drafts): passes for drafts, passes in sorted(budgets.items())},
        "plain_tokens_per_second": round(written / plain_seconds, 2) if plain_seconds > 0 else 0.0,
        "by_source": _sources_json([stats.by_source for stats in parts]),
    }


def _sources_json(parts: Sequence[Mapping[str, SourceStats]]) -> dict[str, Any]:
    names = sorted(set().union(*parts))
    found = {name: [part[name] for part in parts if name in part] for name in names}
    return {
        name: {
            "proposed": sum(source.proposed for source in sources),
            "accepted": sum(source.accepted for source in sources),
            "asked": sum(source.asked for source in sources),
            "seconds": round(sum(source.seconds for source in sources), 4),
        }
        for name, sources in found.items()
    }
