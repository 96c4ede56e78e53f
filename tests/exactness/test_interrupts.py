"""An exception at any line of a step: the step did not happen, and the same streams go on to the same texts.

Ctrl-C is such an exception, and comes anywhere. A trace function raises it here, at lines that are spread over all that
a step runs.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import draftgraph
from draftgraph.config import SamplingParams
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request
from draftgraph.plan.cost import PassCost
from draftgraph.plan.planner import AutoPlanner
from draftgraph.runner.paged import PagedRunner
from draftgraph.verify.grammar import GrammarConstraint
from support.planned import flat
from support.rigs import make_engine, run, set_block, small_model, tiny_runner, write

OURS = str(Path(draftgraph.__file__).parent)
PROMPTS = [(1, 2, 3), tuple(range(4, 40)), (9, 9, 9, 9), (7, 1, 7, 1, 7, 1, 7)]
SAMPLING: list[dict[str, Any]] = [
    {"max_tokens": 14, "temperature": 0.9, "seed": 3},
    {"max_tokens": 12, "stop": ("\x05\x06",), "logprobs": 2},
    {"max_tokens": 14, "temperature": 0.7, "seed": 5, "regex": "[\\x01-\\x5f]+"},
    {"max_tokens": 9},
]
PLACES = 20  # anywhere in a call, and as many among its last lines, where requests are told
LAST = 200


class Interrupt(BaseException):
    """What is raised: no Exception, as a KeyboardInterrupt is none."""


def count_lines(call: Callable[[], object], raise_at: int | None = None) -> int:
    """Calls it, and returns how many lines of ours that ran; raises Interrupt at the line of that number."""
    num_lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal num_lines
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            num_lines += 1
            if num_lines - 1 == raise_at:
                sys.settrace(None)
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return num_lines


def rig(*, planned: bool = False) -> tuple[Engine, list[Request], list[PagedRunner]]:
    """Four requests in three slots, with every drafter that keeps something; planned, not all of them draft always."""
    model = small_model("llama", seed=1)
    runner, draft_runner = tiny_runner(model, num_slots=3), tiny_runner(model, num_slots=3)
    drafters = (
        NgramDrafter(4),
        SuffixDrafter(4, keep_requests=True),
        RecycleDrafter(4),
        ModelDrafter(draft_runner, 2, 4),
    )
    planner = AutoPlanner(PassCost(flat(1.0, 0.02))) if planned else None
    engine = make_engine(runner, MixtureDrafter(dict(zip("abcd", drafters, strict=True)), planner), prefill_chunk=8)
    engine.planner = planner or engine.planner
    requests = []
    for prompt, options in zip(PROMPTS, SAMPLING, strict=True):
        sampling = SamplingParams(**options)
        constraint = compiled() if sampling.constraint else None
        requests.append(engine.submit(prompt, sampling, 4, constraint=constraint and constraint.copy()))
    return engine, requests, [runner, draft_runner]


@functools.cache
def compiled() -> GrammarConstraint:
    """That of the request which has one: to compile it anew each time would take most of these tests' time."""
    constraint = make_engine(tiny_runner(small_model("llama"))).constrain(SamplingParams(**SAMPLING[2]))
    assert constraint is not None
    return constraint


@pytest.fixture(scope="module")
def alone() -> list[Request]:
    """What each of them writes without drafts, by itself."""
    model = small_model("llama", seed=1)
    return [
        write(make_engine(tiny_runner(model)), prompt, 0, **sampling)
        for prompt, sampling in zip(PROMPTS, SAMPLING, strict=True)
    ]


def places(num_lines: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    found = {rng.randrange(first, num_lines) for first in (0, max(0, num_lines - LAST)) for _ in range(PLACES)}
    return sorted(found)


@pytest.mark.parametrize(("at", "planned"), [*((at, False) for at in range(10)), (3, True), (6, True)])
def test_a_step_that_is_interrupted_at_any_line_did_not_happen(
    at: int, planned: bool, alone: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, 4)
    engine, _, _ = rig(planned=planned)
    for _ in range(at):
        engine.step()
    num_lines = count_lines(engine.step)
    assert num_lines > 100
    for place in places(num_lines, at):
        engine, requests, runners = rig(planned=planned)
        for _ in range(at):
            engine.step()
        with (
            contextlib.nullcontext() if planned else pytest.raises(Interrupt),
            contextlib.suppress(*[Interrupt] * planned),
        ):
            count_lines(engine.step, raise_at=place)  # a planned step, which has a clock, may be shorter now
        engine.scheduler.check()
        run(engine)
        for request, other in zip(requests, alone, strict=True):
            assert request.output == other.output, f"line {place} of step {at}"
            assert (request.text, request.finish_reason) == (other.text, other.finish_reason)
            assert "".join(delta.text for delta in request.deltas) == other.text
            assert [token for delta in request.deltas for token in delta.token_ids] == other.output
            assert request.stats.completion_tokens == len(other.output)
            assert request.logprobs == other.logprobs
        for runner in runners:
            runner.check()
            assert runner.num_free_slots == 3
            assert runner.blocks.used == 0


@pytest.mark.parametrize("at", [3, 6])
def test_a_cancellation_that_is_interrupted_can_be_made_again(at: int, alone: list[Request]) -> None:
    engine, requests, _ = rig()
    for _ in range(at):
        engine.step()
    num_lines = count_lines(lambda: engine.cancel(requests[0]))
    for place in places(num_lines, at):
        engine, requests, runners = rig()
        for _ in range(at):
            engine.step()
        with pytest.raises(Interrupt):
            count_lines(lambda engine=engine, requests=requests: engine.cancel(requests[0]), raise_at=place)  # type: ignore[misc]
        engine.cancel(requests[0])
        run(engine)
        for request, other in list(zip(requests, alone, strict=True))[1:]:
            assert request.output == other.output, f"line {place} of step {at}"
        for runner in runners:
            runner.check()
            assert runner.blocks.used == 0
