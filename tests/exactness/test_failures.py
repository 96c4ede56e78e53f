"""A step that raises changes no text, wherever it was; nor does a stream that is dropped in the middle of one, nor what
lies behind the end of a text."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgraph as dg
from draftgraph.config import SamplingParams
from draftgraph.draft.model import ModelDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request
from draftgraph.errors import ModelFileError
from draftgraph.types import FinishReason
from support.rigs import ScriptDrafter, TableRunner, follow, make_engine, run, small_model, tiny_runner, write
from support.tiny import write_gguf

PROMPTS = [(1, 2, 3), tuple(range(4, 60)), (9, 9, 9, 9), (7, 1, 7, 1, 7, 1, 7)]
SAMPLING: dict[str, Any] = {"max_tokens": 18, "temperature": 0.9, "seed": 3}
# where a step fails -> the object, the method, and how many calls of it go well in that step
PLACES: dict[str, tuple[Callable[[Engine], object], str, int]] = {
    "propose": (lambda engine: engine.drafter, "propose", 0),
    "the draft model's first pass": (lambda engine: engine.drafter._runner, "extend", 0),
    "the draft model's third pass": (lambda engine: engine.drafter._runner, "extend", 2),
    "the draft model finds its slot": (lambda engine: engine.drafter._runner, "blocks_needed", 1),
    "the draft model commits": (lambda engine: engine.drafter._runner, "commit", 0),
    "the draft model commits again": (lambda engine: engine.drafter._runner, "commit", 1),
    "select": (lambda engine: engine.planner, "select", 0),
    "extend": (lambda engine: engine.runner, "extend", 0),
    "after the pass": (lambda engine: engine.planner, "passed", 0),
    "before any commit": (lambda engine: engine.runner, "commit", 0),
    "between commits": (lambda engine: engine.runner, "commit", 1),
    "the drafter learns": (lambda engine: engine.drafter, "observe", 0),
    "the planner learns": (lambda engine: engine.planner, "observe", 0),
    "somebody watches": (lambda engine: engine, "observer", 0),
    "the first is told": (lambda engine: Request, "apply", 0),
    "the second is told": (lambda engine: Request, "apply", 1),
    "one retires": (lambda engine: engine.scheduler, "retire", 0),
}


class Fault(Exception):
    """What is planted."""


def fail(patch: pytest.MonkeyPatch, engine: Engine, place: str) -> None:
    """Plants a fault into the engine's steps, once."""
    owner, name, good_calls = PLACES[place]
    real = getattr(owner(engine), name)
    calls = 0

    def planted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == good_calls + 1:
            raise Fault(place)
        return real(*args, **options)

    patch.setattr(owner(engine), name, planted)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("at", [2, 5, 9])
def test_a_step_that_fails_changes_no_text(place: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama", seed=1)
    alone = [write(make_engine(tiny_runner(model)), prompt, 0, **SAMPLING) for prompt in PROMPTS]
    runner, draft_runner = tiny_runner(model), tiny_runner(model)
    engine = make_engine(runner, ModelDrafter(draft_runner, 2, 4), prefill_chunk=8)
    requests = [engine.submit(prompt, SamplingParams(**SAMPLING), 4) for prompt in PROMPTS]
    for _ in range(at):
        engine.step()
    with monkeypatch.context() as patch:
        fail(patch, engine, place)
        with pytest.raises(Fault):
            run(engine)
        engine.scheduler.check()
    run(engine)
    for request, other in zip(requests, alone, strict=True):
        assert (request.output, request.text, request.finish_reason) == (other.output, other.text, other.finish_reason)
        assert "".join(delta.text for delta in request.deltas) == other.text
    for each in (runner, draft_runner):
        each.check()
        assert each.num_free_slots == 8
        assert each.blocks.used == 0


def bad_behind(end: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Logits that count 1, 2, 3, …, and are no numbers where the text has an `end`."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        row = np.full(16, -1.0, np.float32)
        row[text[-1] + 1] = np.nan if end in text else 3.0
        return row

    return logits


@pytest.mark.parametrize("budget", range(9))
def test_a_bad_row_behind_the_end_of_a_text_is_not_met(budget: int) -> None:
    engine = make_engine(TableRunner(bad_behind(6), 16), ScriptDrafter(follow(range(1, 16), 8)), end_ids=[6])
    request = write(engine, (1,), budget, max_tokens=12)
    assert (request.output, request.finish_reason) == ([2, 3, 4, 5, 6], FinishReason.STOP)


@pytest.mark.parametrize("budget", range(9))
def test_what_stands_before_a_bad_row_is_written(budget: int) -> None:
    engine = make_engine(TableRunner(bad_behind(6), 16), ScriptDrafter(follow(range(1, 16), 8)))
    request = engine.submit((1,), SamplingParams(max_tokens=12), budget)
    with pytest.raises(ModelFileError):
        run(engine)
    assert request.output == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("place", ["propose", "passed", "observe"])
def test_a_stream_that_is_collected_in_the_middle_of_a_step_changes_no_text(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"draft": "ngram,recycle", "budget": 4, "context": 64}
    with dg.load(write_gguf(tmp_path / "model.gguf"), **options) as llm:
        plain = llm.generate("abcabcabc", budget=0, **SAMPLING)
        stream = llm.stream("abcabcabc", **SAMPLING)
        dropped = llm.stream("xyz", **SAMPLING)
        request = dropped.request
        dropped.cycle = dropped  # type: ignore[attr-defined]
        next(stream)
        owner = llm.engine.planner if place == "passed" else llm.engine.drafter
        real = getattr(owner, place)

        def collecting(*args: Any) -> Any:
            gc.collect()
            return real(*args)

        monkeypatch.setattr(owner, place, collecting)
        del dropped
        finished = stream.finish()
        assert request.finish_reason is FinishReason.CANCELLED
        assert finished.token_ids == plain.token_ids
        assert not llm.engine.scheduler.has_work
