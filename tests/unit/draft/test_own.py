"""A user's drafter among ours: priced and stopped by the planner, looked at, and put aside where it fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from draftgraph.config import MAX_BUDGET, SamplingParams
from draftgraph.draft.base import Drafter, root_graph
from draftgraph.draft.own import among_ours
from draftgraph.engine.engine import Engine
from draftgraph.plan.planner import AutoPlanner
from draftgraph.types import Context
from support.planned import CostedRunner, PricedDrafter, Time, flat
from support.rigs import ScriptDrafter, TableRunner, chain, follow, hashed_logits, make_engine, run, write

VOCAB = 32
LOGITS = hashed_logits(VOCAB)
PROMPT = (1, 2, 3)
LENGTH = 200


def plain() -> list[int]:
    return write(make_engine(TableRunner(LOGITS, VOCAB)), PROMPT, 0, max_tokens=LENGTH).output


def planned(drafter: Drafter, price: float) -> tuple[float, PricedDrafter]:
    """The seconds of a request of LENGTH tokens whose passes take one each, as `load(drafter=…)` would run it."""
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time)
    priced = PricedDrafter(drafter, price, time)
    planner = AutoPlanner(runner.cost, time)
    engine = make_engine(runner, among_ours(priced, planner, time))  # type: ignore[arg-type]
    engine.planner = planner
    request = write(engine, PROMPT, MAX_BUDGET, max_tokens=LENGTH)
    assert request.output == plain()
    return time.now, priced


def test_a_drafter_that_is_never_right_and_dear_is_hardly_ever_asked() -> None:
    seconds, priced = planned(ScriptDrafter(lambda context: chain([0, 0, 0])), 0.5)
    assert priced.num_asked <= 6
    assert seconds < 1.03 * LENGTH


def test_a_drafter_that_is_right_and_cheap_is_always_asked() -> None:
    """Whatever names its graphs have: its drafts are counted under its own."""
    drafter = ScriptDrafter(follow([*PROMPT, *plain()], 6))
    drafter.name = "mine"
    seconds, priced = planned(drafter, 0.05)
    assert priced.num_asked > 25
    assert seconds < 0.4 * LENGTH


def test_its_drafts_are_counted_under_its_name() -> None:
    drafter = ScriptDrafter(follow([*PROMPT, *plain()], 6))
    drafter.name = "mine"
    request = write(make_engine(TableRunner(LOGITS, VOCAB), among_ours(drafter)), PROMPT, 8, max_tokens=LENGTH)  # type: ignore[arg-type]
    assert request.stats.by_source.keys() == {"mine"}
    assert {source for sources in request.sources for source in sources} == {"mine", "target"}


def nothing(contexts: Sequence[Context]) -> Any:
    return None


class Faulty:
    """Proposes the first token of the vocabulary, until its `count`-th answer."""

    name = "faulty"

    def __init__(self, answer: Callable[[Sequence[Context]], Any], count: int = 3) -> None:
        self._answer = answer
        self._left = count

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Any = ()) -> Any:
        self._left -= 1
        if self._left <= 0:
            return self._answer(contexts)
        graphs = [root_graph(context) for context in contexts]
        for graph in graphs:
            graph.add(0, 0, "x", 0.5)
        return [(graph,) for graph in graphs]

    def observe(self, contexts: Sequence[Context], verdicts: Any) -> None:
        if self._left <= 0 and self._answer is observes_badly:
            raise KeyError("observe")


def observes_badly(contexts: Sequence[Context]) -> Any:
    return [(root_graph(context),) for context in contexts]


def raises(contexts: Sequence[Context]) -> Any:
    raise ZeroDivisionError("a fault of the drafter's own")


def not_finite(contexts: Sequence[Context]) -> Any:
    graphs = [root_graph(context) for context in contexts]
    graphs[0].add(0, 1, "x", float("nan"))
    return [(graph,) for graph in graphs]


def words(contexts: Sequence[Context]) -> Any:
    graphs = [root_graph(context) for context in contexts]
    graphs[0].add(0, "the", "x", 0.5)  # type: ignore[arg-type]
    return [(graph,) for graph in graphs]


FAULTS: dict[str, Callable[[Sequence[Context]], Any]] = {
    "None": nothing,
    "nothing for a request": lambda contexts: [()] * len(contexts),
    "None for a request": lambda contexts: [None] * len(contexts),
    "a graph that is none": lambda contexts: [(None,)] * len(contexts),
    "too few": lambda contexts: [],
    "too many": lambda contexts: [(root_graph(contexts[0]),)] * 9,
    "a bare graph": lambda contexts: [root_graph(context) for context in contexts],
    "another request's root": lambda contexts: [(root_graph(contexts[-1]),)] * len(contexts),
    "a token that is none": words,
    "an estimate that is no number": not_finite,
    "an exception": raises,
    "an exception when it is told": observes_badly,
}


def three(engine: Engine) -> list[list[int]]:
    requests = [engine.submit((i, i + 1), SamplingParams(max_tokens=12), 4) for i in range(3)]
    return run(engine, *requests)


@pytest.mark.parametrize("name", FAULTS)
def test_a_drafter_that_fails_is_put_aside_with_its_name_and_everybody_goes_on(name: str) -> None:
    wanted = three(make_engine(TableRunner(LOGITS, VOCAB)))
    faulty = Faulty(FAULTS[name])
    with pytest.warns(UserWarning, match=r"the drafter 'faulty'[\s\S]*allowed[\s\S]*do this") as warned:
        assert three(make_engine(TableRunner(LOGITS, VOCAB), among_ours(faulty))) == wanted  # type: ignore[arg-type]
    assert len(warned) == 1


def test_a_drafter_without_a_fault_warns_of_nothing_and_need_not_know_restart() -> None:
    wanted = three(make_engine(TableRunner(LOGITS, VOCAB)))
    engine = make_engine(TableRunner(LOGITS, VOCAB), among_ours(Faulty(nothing, count=10**9)))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.drafter.restart()
        assert three(engine) == wanted


def test_an_interruption_is_passed_on() -> None:
    def interrupted(contexts: Sequence[Context]) -> Any:
        raise KeyboardInterrupt

    engine = make_engine(TableRunner(LOGITS, VOCAB), among_ours(Faulty(interrupted)))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        three(engine)
