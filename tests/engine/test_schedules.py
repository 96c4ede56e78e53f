"""Arriving, stepping, leaving, losing the slot and failing in any order: every text is that of a solo run."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter, Proposals
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.request import Request, State
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Context, FinishReason
from support.rigs import make_engine, mixture, set_block, small_model, tiny_runner, write

CONTEXT, CELLS, BLOCK = 40, 64, 4
FAMILY = "gemma3"  # windows of eight tokens in every other layer
STEM = tuple(range(3, 21))
PROMPTS = (
    STEM,
    STEM[:16],
    (*STEM[:9], 50),
    (*STEM[:12], 60, 61),
    (STEM[1],),
    (*STEM, 70, 71),
    tuple(range(90, 60, -1)),
)


@functools.cache
def alone(prompt: tuple[int, ...], temperature: float, count: int) -> tuple[list[int], str, object]:
    engine = make_engine(tiny_runner(small_model(FAMILY, seed=1), context_length=CONTEXT))
    request = write(engine, prompt, 0, max_tokens=count, temperature=temperature, seed=3)
    return request.output, request.text, request.finish_reason


class Fault(Exception):
    """What a drafter of one's own may raise."""


class Moody:
    """Passes everything on, and may raise when the others have proposed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.observe, self.restart = drafter.observe, drafter.restart
        self.fails = False

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        proposals = self._drafter.propose(contexts, budgets, earlier)
        if self.fails:
            raise Fault
        return proposals


class Schedules(RuleBasedStateMachine):
    """An engine with three slots and memory for one and a half full texts, in the target and in the draft model."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        set_block(self.patch, BLOCK)
        self.runner, self.draft_runner = (self.small_runner(seed) for seed in (1, 2))
        members = NgramDrafter(4), SuffixDrafter(4), RecycleDrafter(4), ModelDrafter(self.draft_runner, 2, 3)
        self.drafter = Moody(mixture(*members))
        self.engine = make_engine(self.runner, self.drafter, prefill_chunk=8)
        self.requests: list[tuple[Request, tuple[tuple[int, ...], float, int]]] = []

    @staticmethod
    def small_runner(seed: int) -> ReferenceRunner:
        return tiny_runner(small_model(FAMILY, seed=seed), context_length=CONTEXT, num_slots=3, num_cells=CELLS)

    def unfinished(self) -> list[Request]:
        return [request for request, _ in self.requests if request.state is not State.FINISHED]

    @precondition(lambda self: len(self.unfinished()) < 8)
    @rule(
        prompt=st.sampled_from(PROMPTS),
        temperature=st.sampled_from([0.0, 0.9]),
        count=st.sampled_from([1, 5, 12, 30]),
        budget=st.integers(0, 9),
    )
    def submit(self, prompt: tuple[int, ...], temperature: float, count: int, budget: int) -> None:
        params = SamplingParams(max_tokens=count, temperature=temperature, seed=3)
        self.requests.append((self.engine.submit(prompt, params, budget), (prompt, temperature, count)))

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            unfinished = self.unfinished()
            before = [(request.num_computed, request.num_written) for request in unfinished[:1]]
            self.engine.step()
            assert [(request.num_computed, request.num_written) for request in unfinished[:1]] != before or not before
            self.all_is_accounted_for()

    @precondition(lambda self: self.unfinished())
    @rule(pick=st.integers(0, 7))
    def cancel(self, pick: int) -> None:
        request = self.unfinished()[pick % len(self.unfinished())]
        self.engine.cancel(request)
        assert request.finish_reason is FinishReason.CANCELLED

    @precondition(lambda self: any(request.slot >= 0 for request in self.unfinished()))
    @rule(pick=st.integers(0, 2))
    def preempt(self, pick: int) -> None:
        running = [request for request in self.unfinished() if request.slot >= 0]
        # The youngest, so that the queue stays in the order of arrival.
        for request in running[::-1][: pick + 1]:
            self.engine.scheduler.preempt(request)

    @precondition(lambda self: self.unfinished())
    @rule()
    def fail_a_step(self) -> None:
        """It did not happen: nobody has come on."""
        before = [(request.num_written, request.text) for request in self.unfinished()]
        self.drafter.fails = True
        with pytest.raises(Fault):
            self.engine.step()
        self.drafter.fails = False
        assert [(request.num_written, request.text) for request in self.unfinished()] == before

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.engine.scheduler.check()
        self.runner.check()
        self.draft_runner.check()
        load = self.engine.scheduler.load()
        assert load.running + load.waiting == len(self.unfinished())

    @invariant()
    def every_text_is_that_of_a_solo_run(self) -> None:
        for request, given in self.requests:
            output, text, reason = alone(*given)
            assert request.output == output[: request.num_written]
            assert "".join(delta.text for delta in request.deltas) == request.text
            if request.state is State.FINISHED and request.finish_reason is not FinishReason.CANCELLED:
                assert (request.output, request.text, request.finish_reason) == (output, text, reason)

    def teardown(self) -> None:
        while self.unfinished():
            self.step(1)
        self.every_text_is_that_of_a_solo_run()
        assert self.runner.blocks.used == self.draft_runner.blocks.used == 0
        assert self.runner.num_free_slots == self.draft_runner.num_free_slots == 3
        self.patch.undo()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
