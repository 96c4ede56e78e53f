"""What a measurement under load found: claims with their verdicts, tables, and the published form.

In: values. Out: one JSON object, and the same for people.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftgraph.bench.machine import commit, machine
from draftgraph.bench.tables import Table


@dataclass(frozen=True, slots=True)
class Claim:
    """A promise, what was measured, and whether it holds."""

    promise: str
    measured: str
    holds: bool


@dataclass(slots=True)
class Report:
    """What a subcommand found.

    Args:
        settings: what the server was started with, and what was asked.
    """

    name: str
    settings: dict[str, Any]
    claims: list[Claim] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)  # by caption

    def claim(self, promise: str, measured: str, holds: bool) -> None:
        """Adds a claim."""
        self.claims.append(Claim(promise, measured, bool(holds)))

    @property
    def passed(self) -> bool:
        return all(claim.holds for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        """Returns the published form."""
        return {
            "name": self.name,
            "passed": self.passed,
            "claims": [
                {"promise": claim.promise, "measured": claim.measured, "holds": claim.holds} for claim in self.claims
            ],
            "tables": {caption: table.records() for caption, table in self.tables.items()},
            "settings": self.settings,
            "machine": machine(),
            "commit": commit(),
        }

    def to_text(self) -> str:
        """Returns tables and verdicts for people."""
        parts = [f"{caption}\n\n{table.markdown()}" for caption, table in self.tables.items()]
        verdicts = [f"{'pass' if claim.holds else 'FAIL'}  {claim.promise}: {claim.measured}" for claim in self.claims]
        return "\n\n".join([*parts, "\n".join(verdicts)])


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of `values` does not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def milliseconds(seconds: float) -> str:
    """Returns a time as a cell of a table."""
    return f"{1e3 * seconds:.1f}"


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """Returns by how much the least-squares line through `values` rises from the first of `times` to the last."""
    slope, _ = statistics.linear_regression(times, values)
    return slope * (times[-1] - times[0])
