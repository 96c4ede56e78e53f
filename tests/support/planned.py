"""Engines whose time is a number: passes and drafters cost what a test says, so that plans can be judged exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftgraph.draft.base import Drafter, Proposals
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Vocabulary
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.plan.cost import CostTable, PassCost
from draftgraph.plan.growth import ModelGrowth
from draftgraph.plan.planner import AutoPlanner
from draftgraph.types import Context, TargetRows, Verdict, VerifyBatch
from draftgraph.verify.accept import match
from support.rigs import Logits, TableRunner


class Time:
    """A clock that moves when something costs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CostedRunner(TableRunner):
    """A `TableRunner` whose passes take what a table says."""

    def __init__(self, logits: Logits, vocab_size: int, table: CostTable, time: Time, **options: int) -> None:
        super().__init__(logits, vocab_size, **options)
        self.cost = PassCost(table)
        self._time = time
        self.seconds = 0.0

    def extend(self, batch: VerifyBatch) -> TargetRows:
        taken = self.cost.seconds(sum(len(ext.tokens) for ext in batch.extensions), 0)
        self._time.now += taken
        self.seconds += taken
        return super().extend(batch)


class PricedDrafter:
    """A drafter that takes `price` seconds per request."""

    def __init__(self, drafter: Drafter, price: float, time: Time) -> None:
        self._drafter = drafter
        self._price = price
        self._time = time
        self.num_asked = 0

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        self.num_asked += len(contexts)
        self._time.now += self._price * len(contexts)
        return self._drafter.propose(contexts, budgets, earlier)

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        self._drafter.observe(contexts, verdicts)

    def restart(self) -> None:
        self._drafter.restart()


def flat(one: float, growth: float = 0.0) -> CostTable:
    """One row takes `one` seconds, every further row `growth` times that."""
    return CostTable({rows: one * (1 + growth * (rows - 1)) for rows in (1, 2, 4, 8, 16, 32, 64)}, 0.0)


def noisy(logits: Logits, wrong: float, seed: int = 0) -> Logits:
    """A draft model's logits: the target's, but for a share of the texts somebody else's."""

    def draft(text: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([seed, 77, *text])
        real = logits(text)
        return rng.permutation(real) if rng.random() < wrong else real

    return draft


def planned_engine(
    target: CostedRunner,
    time: Time,
    *,
    models: Mapping[str, CostedRunner] | None = None,
    others: Mapping[str, Drafter] | None = None,
    depth: int = 8,
    table: CostTable | None = None,
) -> Engine:
    """An engine that plans with the true costs, or with `table` for the target's."""
    planner = AutoPlanner(PassCost(table) if table else target.cost, time)
    members: dict[str, Drafter] = dict(others or {})
    for source, runner in (models or {}).items():
        growth = ModelGrowth(planner, source, runner.cost, depth)
        members[source] = ModelDrafter(runner, 3, depth, growth=growth, source=source)
    vocabulary = Vocabulary(target.vocab_size, frozenset(), lambda token: bytes([token % 256]))
    return Engine(target, MixtureDrafter(members, planner, time), match, vocabulary, planner=planner, clock=time)
