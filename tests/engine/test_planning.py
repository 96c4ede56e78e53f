"""The planner, where time is a number: it drafts where that pays, and costs next to nothing where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import MAX_BUDGET, SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request
from draftgraph.plan.cost import CostTable
from draftgraph.plan.growth import ModelGrowth
from draftgraph.plan.planner import AutoPlanner
from draftgraph.types import TokenTree
from support.planned import CostedRunner, PricedDrafter, Time, flat, noisy, planned_engine
from support.rigs import ScriptDrafter, chain, follow, hashed_logits, make_engine, run, write

VOCAB = 32
LOGITS = hashed_logits(VOCAB)
LENGTH = 120
PROMPT = (1, 2, 3)


def plain_text(logits: object = LOGITS, prompt: tuple[int, ...] = PROMPT, count: int = LENGTH) -> list[int]:
    runner = CostedRunner(logits, VOCAB, flat(1.0), Time())  # type: ignore[arg-type]
    return write(make_engine(runner), prompt, 0, max_tokens=count).output


def decode_seconds(
    *, target: CostTable, draft: CostTable | None = None, wrong: float = 0.0, others: dict[str, Drafter] | None = None
) -> tuple[float, Request]:
    """The time of one request under the planner, with its statistics; plain decoding takes LENGTH - 1 passes."""
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, target, time)
    models = {"model": CostedRunner(noisy(LOGITS, wrong), VOCAB, draft, time)} if draft else {}
    engine = planned_engine(runner, time, models=models, others=others)
    request = write(engine, PROMPT, MAX_BUDGET, max_tokens=LENGTH)
    assert request.output == plain_text()
    return request.stats.decode_seconds, request


def test_a_cheap_and_good_draft_model_is_used_to_the_full() -> None:
    seconds, request = decode_seconds(target=flat(1.0, 0.02), draft=flat(0.05), wrong=0.05)
    assert (LENGTH - 1) / seconds > 3
    assert request.stats.tokens_per_step > 4.5


def test_a_chain_gets_shorter_as_the_draft_model_gets_worse_or_dearer() -> None:
    def rows_per_step(wrong: float, price: float) -> float:
        stats = decode_seconds(target=flat(1.0, 0.05), draft=flat(price), wrong=wrong)[1].stats
        return stats.verified_rows / stats.target_passes

    assert rows_per_step(0.02, 0.05) > rows_per_step(0.3, 0.05) + 1
    assert rows_per_step(0.02, 0.05) > rows_per_step(0.02, 0.4) + 1


@pytest.mark.parametrize(
    ("target", "draft", "wrong"),
    [
        (flat(1.0, 0.02), flat(1.0), 0.0),  # a draft model as slow as the target
        (flat(1.0, 0.02), flat(0.2), 1.0),  # one that is never right
        (flat(1.0, 1.0), flat(0.1), 0.1),  # rows that cost as much as passes
        (flat(1.0, 0.3), flat(0.5), 0.6),
    ],
)  # fmt: skip
def test_drafting_that_does_not_pay_costs_next_to_nothing(target: CostTable, draft: CostTable, wrong: float) -> None:
    seconds, _ = decode_seconds(target=target, draft=draft, wrong=wrong)
    assert seconds <= 1.04 * (LENGTH - 1)


def test_a_source_that_is_never_right_is_hardly_asked() -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time)
    liar = PricedDrafter(ScriptDrafter(lambda context: chain([VOCAB - 1, VOCAB - 1])), 0.1, time)
    engine = planned_engine(runner, time, others={"liar": liar})
    write(engine, PROMPT, MAX_BUDGET, max_tokens=200)
    assert 1 <= liar.num_asked <= 30


def test_where_no_source_pays_most_steps_are_not_planned() -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time)
    liars = {
        name: PricedDrafter(ScriptDrafter(lambda context: chain([VOCAB - 1])), 0.05, time) for name in ("one", "other")
    }
    engine = planned_engine(runner, time, others=liars)
    planned = watch_planning(engine)
    write(engine, PROMPT, MAX_BUDGET, max_tokens=200)
    assert planned[:20].count(True) > 10
    assert 5 < planned[100:].count(True) < 30
    assert all(liar.num_asked > 5 for liar in liars.values())


def test_a_request_that_comes_ends_the_pause() -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time, num_slots=2)
    liar = PricedDrafter(ScriptDrafter(lambda context: chain([VOCAB - 1])), 0.1, time)
    engine = planned_engine(runner, time, others={"liar": liar})
    planned = watch_planning(engine)
    params = SamplingParams(max_tokens=200)
    requests = [engine.submit(PROMPT, params, MAX_BUDGET)]
    for at in range(100, 130):
        while len(planned) < at:
            engine.step()
        if planned[-3:] == [True, False, False] and len(requests) == 1:
            requests.append(engine.submit((*PROMPT, 4), params, MAX_BUDGET))
            engine.step()
            assert planned[-1]
    assert len(requests) == 2


def count_thoughts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of requests that a draft model's passes were weighed for, one for each time."""
    thoughts = []
    best_requests = ModelGrowth._best_requests

    def counted(growth: ModelGrowth, contexts: Sequence[Any], *rest: Any) -> set[int]:
        thoughts.append(len(contexts))
        return best_requests(growth, contexts, *rest)

    monkeypatch.setattr(ModelGrowth, "_best_requests", counted)
    return thoughts


@pytest.mark.parametrize(("size", "most"), [(1, 1.0), (2, 0.3)])
def test_a_batch_that_a_draft_model_does_not_pay_for_is_seldom_thought_about(
    size: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time, num_slots=size)
    useless = CostedRunner(noisy(LOGITS, 1.0), VOCAB, flat(0.5), time, num_slots=size)
    engine = planned_engine(runner, time, models={"model": useless})
    thoughts = count_thoughts(monkeypatch)
    requests = [engine.submit((*PROMPT, i), SamplingParams(max_tokens=120), MAX_BUDGET) for i in range(size)]
    run(engine, *requests)
    assert most / 3 < len(thoughts) / 120 < most


def test_a_batch_is_thought_about_again_when_a_request_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time, num_slots=3)
    useless = CostedRunner(noisy(LOGITS, 1.0), VOCAB, flat(0.5), time, num_slots=3)
    engine = planned_engine(runner, time, models={"model": useless})
    thoughts = count_thoughts(monkeypatch)
    params = SamplingParams(max_tokens=200)
    for i in range(2):
        engine.submit((*PROMPT, i), params, MAX_BUDGET)
    at_rest = 0
    while at_rest < 3:
        before = len(thoughts)
        engine.step()
        at_rest = at_rest + 1 if len(thoughts) == before and before > 3 else 0
    engine.submit((*PROMPT, 2), params, MAX_BUDGET)
    before = len(thoughts)
    engine.step()
    engine.step()  # the first one only reads the new prompt
    assert 3 in thoughts[before:]


def watch_planning(engine: Engine) -> list[bool]:
    """Returns a list that grows with every step by whether drafts were thought of in it."""
    planner = engine.planner
    assert isinstance(planner, AutoPlanner)
    planned: list[bool] = []
    select = planner.select

    def watched(*parts: Any) -> list[TokenTree]:
        planned.append(planner.step.planned)
        return select(*parts)

    planner.select = watched  # type: ignore[method-assign]
    return planned


def test_a_source_that_becomes_right_is_found_again() -> None:
    text = (*PROMPT, *plain_text(count=200))
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time)
    right = follow(text, 6)
    late = PricedDrafter(
        ScriptDrafter(lambda context: right(context) if len(context.tokens) > 100 else chain([VOCAB - 1])), 0.02, time
    )
    engine = planned_engine(runner, time, others={"late": late})
    request = write(engine, PROMPT, MAX_BUDGET, max_tokens=200)
    assert request.stats.decode_seconds < 160
    assert late.num_asked < 120


def test_of_two_draft_models_the_one_that_pays_is_asked() -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.02), time)
    good = CostedRunner(noisy(LOGITS, 0.1), VOCAB, flat(0.06), time)
    bad = CostedRunner(noisy(LOGITS, 0.9), VOCAB, flat(0.06), time)
    engine = planned_engine(runner, time, models={"bad": bad, "good": good})
    request = write(engine, PROMPT, MAX_BUDGET, max_tokens=LENGTH)
    assert request.output == plain_text()
    assert good.num_passes > 5 * bad.num_passes
    assert (LENGTH - 1) / request.stats.decode_seconds > 2.5


def test_budgets_fall_as_the_batch_grows_and_the_total_does_not() -> None:
    """Four rows are free, the pass is bound by arithmetic beyond: in a large batch drafts have to be better."""
    table = CostTable({1: 1.0, 4: 1.0, 8: 1.3, 16: 2.4, 32: 4.8, 64: 9.6}, 0.0)
    budgets, rates = [], []
    for size in (1, 2, 4, 8, 16):
        time = Time()
        runner = CostedRunner(LOGITS, VOCAB, table, time, num_slots=16)
        draft = CostedRunner(noisy(LOGITS, 0.25), VOCAB, flat(0.08, 0.1), time, num_slots=16)
        engine = planned_engine(runner, time, models={"model": draft})
        params = SamplingParams(max_tokens=60)
        requests = [engine.submit((*PROMPT, i), params, MAX_BUDGET) for i in range(size)]
        run(engine, *requests)
        plain_engine = planned_engine(CostedRunner(LOGITS, VOCAB, table, plain := Time(), num_slots=16), plain)
        plain_requests = [plain_engine.submit((*PROMPT, i), params, 0) for i in range(size)]
        assert run(plain_engine, *plain_requests) == [request.output for request in requests]
        stats = [request.stats for request in requests]
        drafts = sum(s.verified_rows - s.target_passes for s in stats)
        budgets.append(drafts / sum(s.target_passes for s in stats))
        rates.append(plain.now / time.now)
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] > 2.5 > budgets[-1] + 1
    assert min(rates) >= 0.98
    assert rates[0] > 1.4


def test_what_others_read_in_the_same_pass_does_not_make_drafts_look_cheap() -> None:
    """Every row costs the same: a draft that may be wrong never pays, however long the pass is with others' prompts."""
    table = CostTable({rows: float(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)}, 0.0)
    seconds, outputs, drafts = [], [], []
    for wrong in (None, 0.5):
        time = Time()
        runner = CostedRunner(LOGITS, VOCAB, table, time, num_slots=2, context_length=700)
        draft = CostedRunner(noisy(LOGITS, wrong or 0), VOCAB, flat(1e-6), time, num_slots=2, context_length=700)
        engine = planned_engine(runner, time, models={"model": draft} if wrong else {})
        writer = engine.submit(PROMPT, SamplingParams(max_tokens=60), MAX_BUDGET)
        while engine.scheduler.has_work:
            if writer.num_written < 50 and engine.scheduler.load().running < 2:
                engine.submit([1] * 600, SamplingParams(max_tokens=1), 0)
            engine.step()
        seconds.append(time.now)
        outputs.append(writer.output)
        drafts.append(writer.stats.verified_rows - writer.stats.target_passes)
    assert outputs[0] == outputs[1]
    assert drafts[1] <= 3  # in passes that check what the machine can do


def test_a_pass_in_which_nobody_writes_has_no_drafts() -> None:
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(0.0625, 1.0), time, context_length=400)  # a sixteenth per row
    engine = planned_engine(runner, time, others={"ngram": NgramDrafter(4)})
    request = engine.submit([1, 2, 3] * 60, SamplingParams(max_tokens=4), MAX_BUDGET)
    while not request.num_written:
        engine.step()
    assert time.now == pytest.approx(180 / 16)


def test_what_plain_decoding_would_have_taken_is_known() -> None:
    _, request = decode_seconds(target=flat(0.5, 0.02), draft=flat(0.02), wrong=0.1)
    assert request.stats.plain_tokens_per_second == pytest.approx(2.0, rel=0.1)
    assert request.stats.by_source["model"].seconds > 0
    assert sum(request.stats.budgets.values()) == request.stats.target_passes


def test_a_wrong_table_is_corrected_by_what_passes_take() -> None:
    """The table says that rows are free; each costs half a pass."""
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, flat(1.0, 0.5), time)
    draft = CostedRunner(noisy(LOGITS, 0.3), VOCAB, flat(0.02), time)
    engine = planned_engine(runner, time, models={"model": draft}, table=flat(1.0, 0.0))
    first = write(engine, PROMPT, MAX_BUDGET, max_tokens=LENGTH).stats.decode_seconds
    second = write(engine, PROMPT, MAX_BUDGET, max_tokens=LENGTH).stats.decode_seconds
    assert first > second
    assert second <= 1.3 * (LENGTH - 1)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_plan_changes_a_text(data: st.DataObject) -> None:
    """Any costs, true or imagined, any drafters, any batch: ids are those of plain decoding."""
    costs = st.builds(flat, st.floats(0.01, 1.0), st.floats(0.0, 1.0))
    temperature = data.draw(st.sampled_from([0.0, 0.9]))
    time = Time()
    runner = CostedRunner(LOGITS, VOCAB, data.draw(costs), time)
    models = {
        f"model {i}": CostedRunner(noisy(LOGITS, wrong, i), VOCAB, data.draw(costs), time)
        for i, wrong in enumerate(data.draw(st.lists(st.floats(0, 1), max_size=2)))
    }
    others: dict[str, Drafter] = {"ngram": NgramDrafter(6), "suffix": SuffixDrafter(6), "recycle": RecycleDrafter(6)}
    engine = planned_engine(runner, time, models=models, others=others, table=data.draw(costs))
    wanted = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    requests, texts = [], []
    for i in wanted:
        params = SamplingParams(max_tokens=24, temperature=temperature, seed=i)
        requests.append(engine.submit((i, 1, 2, 1, 2), params, MAX_BUDGET))
        lone = make_engine(CostedRunner(LOGITS, VOCAB, flat(1.0), Time()))
        texts.append(write(lone, (i, 1, 2, 1, 2), 0, max_tokens=24, temperature=temperature, seed=i).output)
    assert run(engine, *requests) == texts
    assert np.isfinite(time.now)
