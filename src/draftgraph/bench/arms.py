"""The arms of a benchmark: plain decoding, the planner, and fixed shapes to compare with, over one loaded model.

In: a workshop, draft settings and the arms' names. Out: LLMs that can be measured, each with a meter.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgraph.config import AUTO, DraftConfig
from draftgraph.draft.base import EngineDrafter, Proposals
from draftgraph.draft.table import named_sources
from draftgraph.errors import ParameterError
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.llm import LLM, llm_of
from draftgraph.plan.chain import ChainPlanner
from draftgraph.plan.planner import Planner
from draftgraph.types import Context, Verdict
from draftgraph.workshop import Workshop

PLAIN = "plain"
ALL = "all"
_FIXED_BUDGET = 4  # of the arms that do not plan, unless --budget says otherwise
_MERGE = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """How an arm differs from the draft settings: its own values, and a planner in place of theirs."""

    options: Mapping[str, Any]
    planner: Callable[[], Planner] | None = None


@dataclass(frozen=True, slots=True)
class Meter:
    """What was counted up to some moment; the difference of two is what happened between them."""

    passes: int
    pass_seconds: float
    draft_passes: int
    draft_pass_seconds: float
    draft_seconds: float


class TimedDrafter:
    """A drafter, and the seconds that it took in all."""

    def __init__(self, drafter: EngineDrafter, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._drafter = drafter
        self._clock = clock

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        start = self._clock()
        graphs = self._drafter.propose(contexts, budgets, earlier)
        self.seconds += self._clock() - start
        return graphs

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        start = self._clock()
        self._drafter.observe(contexts, verdicts)
        self.seconds += self._clock() - start

    def restart(self) -> None:
        self._drafter.restart()


class Arm:
    """One way to write, ready to be measured. Times the LLM's drafter from now on."""

    def __init__(self, name: str, llm: LLM, shop: Workshop) -> None:
        self.name = name
        self.llm = llm
        self._shop = shop
        self._drafter = TimedDrafter(llm.engine.drafter)
        llm.engine.drafter = self._drafter

    def forget(self) -> None:
        """Drops the texts that the models' caches keep, so that no arm finds what another one has read."""
        for runner in (self._shop.runner, *(runner for runner, _ in self._shop.drafts.values())):
            runner.forget()

    def meter(self) -> Meter:
        """Returns what was counted so far; the passes are those of all arms together."""
        target, drafts = self._shop.runner, [runner for runner, _ in self._shop.drafts.values()]
        return Meter(
            target.num_passes,
            target.pass_seconds,
            sum(runner.num_passes for runner in drafts),
            sum(runner.pass_seconds for runner in drafts),
            self._drafter.seconds,
        )


def settings_of(names: str, draft: DraftConfig) -> dict[str, Setting]:
    """Returns the arms that `names` lists, comma-separated; plain comes first and is never missing.

    Raises:
        ParameterError: a name that is no arm, or nobody to draft.
    """
    known = _known(draft)
    if len(known) == 1:
        raise ParameterError(f"--draft {draft.draft}", "drafters to compare with plain decoding", "name some")
    listed = [name.strip() for name in names.split(",")]
    chosen = list(known) if ALL in listed else [PLAIN, *listed]
    for name in chosen:
        if name not in known:
            raise ParameterError(f"arm {name!r}", ", ".join(known) + f", or {ALL}", "change --arms")
    return {name: known[name] for name in dict.fromkeys(chosen)}


def _known(draft: DraftConfig) -> dict[str, Setting]:
    """Every arm of these draft settings, by name."""
    sources = named_sources(draft.draft)
    plain = {PLAIN: Setting({"draft": "off", "budget": 0})}
    if not sources:
        return plain
    budget = _FIXED_BUDGET if draft.budget == AUTO else draft.budget
    return {
        **plain,
        AUTO: Setting({"budget": AUTO}),
        "chain": Setting({"budget": budget, "width": 1, "merge": 0}, ChainPlanner),
        "tree": Setting({"budget": budget, "merge": 0}),
        "graph": Setting({"budget": budget, "merge": draft.merge or _MERGE}),
        **{source: Setting({"budget": budget, "draft": item}) for source, item in sources.items()},
    }


def open_arms(shop: Workshop, draft: DraftConfig, settings: Mapping[str, Setting]) -> list[Arm]:
    """Returns the arms, ready; draft models are loaded, and passes measured, where that was not done before."""
    return [
        Arm(
            name,
            llm_of(shop, dataclasses.replace(draft, **setting.options), planner=setting.planner and setting.planner()),
            shop,
        )
        for name, setting in settings.items()
    ]
