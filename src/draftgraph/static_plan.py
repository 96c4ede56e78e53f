"""The static plan of a model and its drafters on this machine: what is measured, and the tree that follows from it.

In: a workshop, draft settings and prompts. Out: acceptance by rank, what a step costs, and the best tree of every
size. The tree is one shape for every step; the planner, which decides step by step, is there to beat it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftgraph.bench.arms import Arm
from draftgraph.config import AUTO, DraftConfig
from draftgraph.draft.model import NAME as MODEL_NAME
from draftgraph.draft.table import named_sources
from draftgraph.errors import ParameterError, PromptError
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.llm import Prompt, llm_of
from draftgraph.plan.cost import Choice
from draftgraph.plan.static import StaticTree, best_choice, best_trees
from draftgraph.types import Verdict
from draftgraph.workshop import Workshop

PROMPTS = (
    "Write a Python function that merges two sorted lists, with a docstring.",
    "Explain in a few sentences how a rainbow comes about.",
    "A train travels 180 km in two and a half hours. How fast is it on average? Show the steps.",
)
_BUDGET = 8  # drafts per pass while ranks are counted
_WIDTH = 8  # candidates per node

Report = Callable[[str], None]


@dataclass(slots=True)
class RankCount:
    """How often the target wrote the draft's k-th candidate, over the nodes where it was asked.

    Counted are the root of every step, and every further node on the written path that has candidates: also those that
    were not verified.
    """

    nodes: int = 0
    right: list[int] = field(default_factory=lambda: [0] * _WIDTH)

    def count(self, verdict: Verdict) -> None:
        """Follows what one step wrote through its graph."""
        graph = verdict.tree.graph
        assert isinstance(graph, TokenGraph), "a step's graph is a token graph"
        node = 0
        for token in verdict.tokens:
            edges = sorted(graph.children[node].items(), key=lambda item: -item[1].acceptance)
            if node and not edges:
                break
            self.nodes += 1
            rank = next((rank for rank, (candidate, _) in enumerate(edges) if candidate == token), _WIDTH)
            if rank < _WIDTH:
                self.right[rank] += 1
            if token not in graph.children[node]:
                break
            node = graph.children[node][token].child

    @property
    def acceptances(self) -> list[float]:
        """P by rank, without the ranks at the end that were never right."""
        last = max((rank for rank, count in enumerate(self.right) if count), default=-1)
        return [count / self.nodes for count in self.right[: last + 1]] if self.nodes else []


@dataclass(frozen=True, slots=True)
class StaticPlan:
    """What was measured, and the best tree of every size.

    Args:
        acceptances: by rank.
        nodes: on so many nodes that was counted.
        context: tokens in the text for which costs are given.
        trees: [n] the best tree of at most n drafts.
        seconds: [n] what a step with it takes.
        best: the one with most tokens per second; its `count` is an index of `trees`.
    """

    model: str
    draft: str
    acceptances: tuple[float, ...]
    nodes: int
    context: int
    trees: tuple[StaticTree, ...]
    seconds: tuple[float, ...]
    best: Choice

    @property
    def tree(self) -> StaticTree:
        return self.trees[self.best.count]

    @property
    def speedup(self) -> float:
        """Expected tokens per second over plain decoding."""
        return self.best.rate * self.seconds[0]

    def to_json(self) -> dict[str, Any]:
        """Returns the published form."""
        tree = self.tree
        return {
            "model": self.model,
            "draft": self.draft,
            "acceptance_by_rank": [round(share, 4) for share in self.acceptances],
            "nodes": self.nodes,
            "context": self.context,
            "plain_tokens_per_second": round(1 / self.seconds[0], 2),
            "best": {
                "drafts": len(tree),
                "tokens_per_step": round(tree.tokens, 4),
                "tokens_per_second": round(self.best.rate, 2),
                "speedup": round(self.speedup, 3),
                "parents": list(tree.parents),
                "ranks": list(tree.ranks),
                "path_acceptance": [round(share, 4) for share in tree.acceptances],
            },
            "sizes": [
                {
                    "drafts": len(tree),
                    "tokens_per_step": round(tree.tokens, 4),
                    "step_ms": round(1e3 * seconds, 3),
                    "tokens_per_second": round(tree.tokens / seconds, 2),
                }
                for tree, seconds in zip(self.trees, self.seconds, strict=True)
            ],
        }


def static_plan(
    shop: Workshop, draft: DraftConfig, prompts: Sequence[Prompt], most: int, report: Report, **sampling: Any
) -> StaticPlan:
    """Measures and plans.

    Args:
        draft: who drafts; its depth is the longest path. Budget, width and merging are those of the measurement.
        most: drafts of the largest tree.

    Raises:
        ParameterError: nobody drafts.
        PromptError: no text went beyond its first token.
    """
    sources = named_sources(draft.draft)
    if not sources:
        raise ParameterError(f"--draft {draft.draft}", "drafters to plan for", "name some")
    fixed = dataclasses.replace(draft, width=_WIDTH, merge=0, budget=_BUDGET if draft.budget == AUTO else draft.budget)
    counted = _Measured(Arm("static", llm_of(shop, fixed), shop))
    for number, prompt in enumerate(prompts, start=1):
        report(f"prompt {number} of {len(prompts)}")
        counted.write(prompt, **sampling)
    if not counted.steps:
        raise PromptError("texts that ended with their first token", "texts of several tokens", "raise --max-tokens")
    report("planning")
    trees = best_trees(counted.ranks.acceptances, most, draft.depth)
    context = counted.cells // counted.steps
    seconds = _step_seconds(shop, sources, context, counted.retrieval_seconds)
    return StaticPlan(
        shop.name,
        draft.draft,
        tuple(counted.ranks.acceptances),
        counted.ranks.nodes,
        context,
        tuple(trees),
        tuple(seconds(tree) for tree in trees),
        best_choice(trees, seconds),
    )


class _Measured:
    """Writes texts and counts ranks, steps, the length of the text, and seconds of drafting beside model passes."""

    def __init__(self, arm: Arm) -> None:
        self.ranks = RankCount()
        self.steps = 0
        self.cells = 0
        self._arm = arm
        self._spent = 0.0

    def write(self, prompt: Prompt, **sampling: Any) -> None:
        """Writes one text."""
        engine = self._arm.llm.engine
        stream = self._arm.llm.stream(prompt, **sampling)
        request = stream.request

        def observe(verdicts: Sequence[Verdict]) -> None:
            (verdict,) = verdicts
            if request.step_budget:  # neither the prompt's own pass nor the last token's
                self.ranks.count(verdict)
                self.steps += 1
                self.cells += len(request.tokens)

        before = self._arm.meter()
        engine.observer = observe
        stream.finish()
        engine.observer = lambda verdicts: None
        after = self._arm.meter()
        self._spent += after.draft_seconds - before.draft_seconds
        self._spent -= after.draft_pass_seconds - before.draft_pass_seconds

    @property
    def retrieval_seconds(self) -> float:
        """What drafting took per step without the passes of draft models, which the tree's shape decides."""
        return max(self._spent, 0.0) / self.steps


def _step_seconds(
    shop: Workshop, sources: dict[str, str], context: int, retrieval: float
) -> Callable[[StaticTree], float]:
    """Returns what a step with a tree takes: its rows in the target, its levels in each draft model, and retrieval.

    Without drafts nobody is asked.
    """
    target = shop.pass_cost()
    items = [item.partition(":") for item in sources.values()]
    models = [shop.pass_cost(argument) for name, _, argument in items if name == MODEL_NAME]

    def seconds(tree: StaticTree) -> float:
        rows = 1 + len(tree)
        levels = [cost.seconds(count, count * context) for cost in models for count in tree.expanded]
        drafting = retrieval + sum(levels) if len(tree) else 0.0
        return target.seconds(rows, rows * context) + drafting

    return seconds
