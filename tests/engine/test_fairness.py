"""Who advances: those who write, in every step; those who read share one chunk, first come, first served."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.model import ModelDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.errors import PromptError
from draftgraph.runner.kv import BLOCK
from draftgraph.types import Verdict
from support.rigs import TableRunner, hashed_logits, make_engine, run, small_model, tiny_runner

CHUNK = 16


def submit(engine: Engine, length: int, count: int = 10, budget: int = 0) -> Request:
    return engine.submit([length % 8] * length, SamplingParams(max_tokens=count), budget)


def watched(runner: TableRunner, chunk: int = CHUNK) -> tuple[Engine, list[Sequence[Verdict]]]:
    engine = make_engine(runner, prefill_chunk=chunk)
    steps: list[Sequence[Verdict]] = []
    engine.observer = steps.append
    return engine, steps


def test_a_long_prompt_does_not_keep_the_others_from_writing() -> None:
    """Three write when it arrives and three more come behind it; no step reads more than one chunk."""
    engine, steps = watched(TableRunner(hashed_logits(8), 8, context_length=512))
    writers = [submit(engine, 4, count=60) for _ in range(3)]
    engine.step()
    long = submit(engine, 400)
    behind = [submit(engine, 5) for _ in range(3)]
    while long.state is not State.DECODE:
        before = [writer.num_written for writer in writers]
        engine.step()
        assert [writer.num_written for writer in writers] == [count + 1 for count in before]
        assert sum(verdict.tree.num_known for verdict in steps[-1]) <= len(writers) + CHUNK
    assert len(steps) == 1 + 400 // CHUNK, "the reading was held up"
    assert all(request.num_written == 0 for request in behind), "they came later"
    engine.step()
    assert all(request.num_written == 1 for request in behind), "three prompts fit into one step"
    run(engine)


def test_short_prompts_are_read_together() -> None:
    """Sixteen of five tokens in five steps of sixteen."""
    engine, _ = watched(TableRunner(hashed_logits(8), 8, num_slots=16))
    requests = [submit(engine, 5, count=40) for _ in range(16)]
    begun = []
    for _ in range(5):
        engine.step()
        begun.append(sum(request.num_written > 0 for request in requests))
    assert begun == [3, 6, 9, 12, 16]
    run(engine)
    assert all(len(request.output) == 40 for request in requests)
    order = [request.stats.first_token for request in requests]
    assert order == sorted(order)


def test_the_last_token_of_a_prompt_may_be_a_chunk_of_its_own() -> None:
    engine, steps = watched(TableRunner(hashed_logits(8), 8))
    request = submit(engine, CHUNK + 1, count=3)
    run(engine)
    assert [step[0].tree.num_known for step in steps] == [CHUNK, 1, 1, 1]
    assert request.num_written == 3


def test_a_draft_model_reads_a_long_text_by_and_by_unless_alone() -> None:
    """Beside others at most a chunk in a step, and they are drafted for meanwhile; alone it is read at once."""

    class Sized(TableRunner):
        num_rows = 0

        def extend(self, batch):  # type: ignore[no-untyped-def]
            self.num_rows += sum(len(extension.tokens) for extension in batch.extensions)
            return super().extend(batch)

    def rows_per_step(neighbours: int) -> list[int]:
        draft = Sized(hashed_logits(8), 8, context_length=512)
        target = TableRunner(hashed_logits(8, seed=1), 8, context_length=512)
        engine = make_engine(target, ModelDrafter(draft, 1, 4), prefill_chunk=512)
        others = [submit(engine, 3, count=40, budget=2) for _ in range(neighbours)]
        for _ in range(3):
            engine.step()
        request = submit(engine, 300, count=40, budget=2)
        rows = []
        for _ in range(12):
            draft.num_rows = 0
            engine.step()
            rows.append(draft.num_rows)
        run(engine)
        assert request.stats.drafted_nodes > 0
        assert all(other.stats.drafted_nodes > 0 for other in others)
        return rows

    shared, alone = rows_per_step(3), rows_per_step(0)
    assert max(shared) <= 64 + 4 * 3 + 4, "more than a chunk and the drafts of four"
    assert sum(shared) > 300
    assert max(alone) >= 300


@pytest.mark.parametrize("num_slots", [1, 2, 5])
def test_every_request_runs_in_the_order_of_arrival(num_slots: int) -> None:
    engine, _ = watched(TableRunner(hashed_logits(8), 8, num_slots=num_slots))
    ticks = iter(range(10**6))
    engine.scheduler._clock = lambda: float(next(ticks))
    requests = [submit(engine, 3 + i % 4, count=4 + i % 3) for i in range(12)]
    run(engine)
    started = [request.stats.started for request in requests]
    assert started == sorted(started)


def test_drafts_go_before_a_request_does_and_memory_is_used_to_the_last_cell() -> None:
    """Memory for exactly one full text: drafts are dropped near its end, and the text is as long as it can be."""
    model = small_model("llama", seed=1)
    runner = tiny_runner(model, context_length=48, num_slots=2, num_cells=48)
    from_model = ModelDrafter(tiny_runner(model, context_length=48, num_slots=2, num_cells=48), 2, 8)
    engine = make_engine(runner, from_model)
    steps: list[Sequence[Verdict]] = []
    engine.observer = steps.append
    request = engine.submit([1, 2, 3], SamplingParams(max_tokens=100), 40)
    run(engine)
    assert len(request.tokens) == 48
    assert request.output == run_plain(model)
    drafts = [step[0].tree.num_drafts for step in steps]
    assert max(drafts) > 0
    assert request.stats.preemptions == 0


def run_plain(model) -> list[int]:  # type: ignore[no-untyped-def]
    engine = make_engine(tiny_runner(model, context_length=48))
    request = engine.submit([1, 2, 3], SamplingParams(max_tokens=100), 0)
    run(engine)
    return request.output


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_queued() -> None:
    model = small_model("llama", seed=1)
    engine = make_engine(tiny_runner(model, context_length=32, num_slots=2, num_cells=32))
    with pytest.raises(PromptError, match="32") as error:
        engine.submit([1] * 32, SamplingParams(), 4)
    assert "kv-tokens" in error.value.remedy
    assert not engine.scheduler.has_work
    last = engine.submit([1] * 31, SamplingParams(), 4)
    run(engine)
    assert last.num_written == 1


def test_the_load_is_what_is_there() -> None:
    runner = tiny_runner(small_model("llama", seed=1), context_length=64, num_slots=2, num_cells=8 * BLOCK)
    engine = make_engine(runner)
    requests = [engine.submit(list(range(BLOCK + 4)), SamplingParams(max_tokens=6), 2) for _ in range(3)]
    engine.step()
    load = engine.scheduler.load()
    assert (load.running, load.waiting, load.blocks_total, load.preemptions) == (2, 1, 8, 0)
    assert load.blocks_used == 3, "the full block is shared, the second blocks are not"
    engine.scheduler.preempt(requests[1])
    load = engine.scheduler.load()
    assert (load.running, load.waiting, load.preemptions, load.blocks_used) == (1, 2, 1, 2)
    run(engine)
    load = engine.scheduler.load()
    assert (load.running, load.waiting, load.blocks_used) == (0, 0, 0)
    assert load.blocks_cached >= 1
    assert load.reused_tokens == BLOCK + BLOCK, "the preempted request and the third"
