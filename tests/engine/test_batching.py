"""Many requests together: what they hold is theirs alone, they end one by one, and leave nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.errors import DraftGraphError, ModelFileError
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Context, FinishReason, Verdict
from support.rigs import (
    ScriptDrafter,
    TableRunner,
    chain,
    hashed_logits,
    make_engine,
    mixture,
    run,
    scripts,
    small_model,
    tiny_runner,
    write,
)

MODEL = small_model("llama", seed=1)
OTHER = small_model("llama", seed=2)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(length).integers(0, 96, length))


def submit(engine: Engine, prompt: Sequence[int], budget: int = 8, **sampling: object) -> Request:
    return engine.submit(prompt, SamplingParams(**sampling), budget)  # type: ignore[arg-type]


def assert_empty(*runners: ReferenceRunner) -> None:
    """Asserts that all slots are free and every block can be used again."""
    for runner in runners:
        runner.check()
        slots = [runner.open() for _ in range(runner.num_free_slots)]
        assert len(slots) == 8
        for slot in slots:
            runner.release(slot)


class Spy:
    """Passes everything on and keeps what was proposed for each request: (request, token) pairs."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.proposed: set[tuple[int, int]] = set()

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int], earlier: object = ()) -> list:
        proposals = self._drafter.propose(contexts, budgets)
        for context, graphs in zip(contexts, proposals, strict=True):
            self.proposed |= {(context.request, token) for graph in graphs for token in graph.tokens[1:]}
        return proposals

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        self._drafter.observe(contexts, verdicts)

    def restart(self) -> None:
        self._drafter.restart()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_rows_that_accept_different_counts_stay_apart(order: tuple[int, ...]) -> None:
    """D-KV-02: lengths 5, 17 and 40 with drafts that are right, half right and wrong."""
    lengths, kinds = (5, 17, 40), ("oracle", "half right", "always wrong")
    alone = [write(make_engine(tiny_runner(MODEL)), prompt_of(n), 0, max_tokens=24).tokens for n in lengths]
    script_of = {n: scripts(text, 96)[kind] for n, kind, text in zip(lengths, kinds, alone, strict=True)}
    num_prompt: dict[int, int] = {}
    runner = tiny_runner(MODEL)
    engine = make_engine(runner, ScriptDrafter(lambda context: script_of[num_prompt[context.request]](context)))
    requests = {}
    for i in order:
        requests[i] = submit(engine, prompt_of(lengths[i]), max_tokens=24)
        num_prompt[requests[i].id] = lengths[i]
    run(engine)
    assert [requests[i].tokens for i in range(3)] == alone
    passes = [requests[i].stats.target_passes for i in range(3)]
    assert passes[0] < passes[1] < passes[2]
    assert_empty(runner)


def test_more_requests_than_slots_each_write_what_they_write_alone() -> None:
    """D-BA-01: half of them repetitive, half not, arriving one by one at eight slots."""
    prompts = [prompt_of(5 + i) if i % 2 else (3, 4, i) * 4 for i in range(20)]
    alone = [
        write(make_engine(tiny_runner(MODEL)), prompt, 0, max_tokens=8 + i % 5) for i, prompt in enumerate(prompts)
    ]
    runner, draft_runner = tiny_runner(MODEL), tiny_runner(OTHER)
    drafter = mixture(NgramDrafter(8), RecycleDrafter(8), ModelDrafter(draft_runner, 2, 4))
    engine = make_engine(runner, drafter, prefill_chunk=6)
    requests = []
    for i, prompt in enumerate(prompts):
        requests.append(submit(engine, prompt, i % 9, max_tokens=8 + i % 5))
        engine.step()
        engine.scheduler.check()
    run(engine)
    assert [request.output for request in requests] == [request.output for request in alone]
    assert_empty(runner, draft_runner)


def test_a_request_near_the_context_s_end_does_not_disturb_the_others() -> None:
    """D-BA-02: the first has room for eight tokens; the last chunk of its prompt is a single token."""
    runner = tiny_runner(MODEL, context_length=128)
    prompts = [prompt_of(121), prompt_of(10), prompt_of(11), prompt_of(12)]
    alone = [write(make_engine(tiny_runner(MODEL, context_length=128)), p, 0, max_tokens=30).output for p in prompts]
    assert len(alone[0]) == 7
    drafter = mixture(NgramDrafter(8), ModelDrafter(tiny_runner(OTHER, context_length=128), 2, 8))
    engine = make_engine(runner, drafter, prefill_chunk=60)
    assert run(engine, *(submit(engine, prompt, max_tokens=30) for prompt in prompts)) == alone
    assert_empty(runner)


def test_fifty_requests_in_a_row_leave_the_caches_as_they_were() -> None:
    """D-KV-08: each fills most of the context; the last is drafted for exactly as the first."""
    runner, draft_runner = tiny_runner(MODEL, context_length=48), tiny_runner(OTHER, context_length=48)
    drafter = mixture(NgramDrafter(8), SuffixDrafter(8), RecycleDrafter(8), ModelDrafter(draft_runner, 2, 4))
    engine = make_engine(runner, drafter)
    counts = []
    for _ in range(50):
        stats = write(engine, prompt_of(20), 8, max_tokens=20).stats
        counts.append((stats.drafted_nodes, stats.accepted_nodes, stats.target_passes, stats.by_source))
        assert_empty(runner, draft_runner)
    assert counts[-1] == counts[0]
    assert counts[0][1] > 0


def test_no_drafter_shows_one_request_s_words_to_another() -> None:
    """D-KV-09: in the first text a secret may follow every token; in the second the target never finds one likely."""
    first = (79, *(token for i in range(79) for token in (i, 80 + i % 16)))
    secret = set(range(80, 96))

    def logits(text: tuple[int, ...]) -> np.ndarray:
        return hashed_logits(96)(text[-2:]) - (50 if text[0] != 79 else -2) * (np.arange(96) >= 80)

    def proposed_after(drafter: Drafter) -> set[int]:
        spy = Spy(drafter)
        engine = make_engine(TableRunner(logits, 96), spy)
        for prompt in ((5,), first, (1, 2, 3)):
            spy.proposed.clear()
            write(engine, prompt, 16, max_tokens=60)
        return {token for _, token in spy.proposed}

    for drafter in (NgramDrafter(8), SuffixDrafter(8), RecycleDrafter(8)):
        assert not proposed_after(drafter) & secret
    for drafter in (SuffixDrafter(8, keep_requests=True), RecycleDrafter(8, keep_requests=True)):
        assert proposed_after(drafter) & secret, "the test would not see a leak"
    # What is remembered when the settings say so does not change the text, and is drafted from.
    for drafter in (SuffixDrafter(8, keep_requests=True), RecycleDrafter(8, keep_requests=True)):
        engine = make_engine(TableRunner(hashed_logits(96), 96), drafter)
        first, second = (write(engine, (1, 2, 3), 8, max_tokens=20) for _ in range(2))
        assert first.output == second.output
        assert second.stats.target_passes < first.stats.target_passes


def test_a_cancelled_request_frees_its_slots_and_disturbs_nobody() -> None:
    alone = write(make_engine(tiny_runner(MODEL)), prompt_of(9), 0, max_tokens=30).output
    runner, draft_runner = tiny_runner(MODEL), tiny_runner(OTHER)
    drafter = mixture(SuffixDrafter(8), RecycleDrafter(8), NgramDrafter(8), ModelDrafter(draft_runner, 2, 4))
    engine = make_engine(runner, drafter, prefill_chunk=4)
    others = [submit(engine, prompt_of(9), max_tokens=30) for _ in range(11)]  # three of them wait for a slot
    kept = others.pop(3)
    for i, request in enumerate(others):
        engine.step()
        engine.cancel(request)
        engine.cancel(request)  # a second time does nothing
        engine.scheduler.check()
        runner.check()
        assert request.finish_reason is FinishReason.CANCELLED
        assert request.output == alone[: len(request.output)], i
    run(engine)
    assert kept.output == alone
    assert_empty(runner, draft_runner)


def test_a_waiting_request_can_be_cancelled() -> None:
    runner = tiny_runner(MODEL, num_slots=1)
    engine = make_engine(runner, RecycleDrafter(4))
    first, second, third = (submit(engine, (1, 2, 3), max_tokens=5) for _ in range(3))
    engine.step()
    engine.cancel(second)
    assert (second.state, second.output, second.text) == (State.FINISHED, [], "")
    run(engine)
    assert first.output == third.output
    assert runner.num_free_slots == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_end_in_a_typed_error_and_harm_nobody_else(bad: float) -> None:
    """After the request that met them is cancelled, its neighbours go on and write what they write alone."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        return (
            np.where(np.arange(8) == 3, bad, hashed_logits(8)(text)) if text[:2] == (7, 7) else hashed_logits(8)(text)
        )

    alone = write(make_engine(TableRunner(hashed_logits(8), 8)), (1, 2), 0, max_tokens=20).output
    draft_runner = TableRunner(hashed_logits(8), 8)
    moody = itertools.count()
    for drafter in (ScriptDrafter(lambda context: chain([next(moody) % 8] * 2)), ModelDrafter(draft_runner, 2, 4)):
        engine = make_engine(TableRunner(logits, 8), drafter)
        good = submit(engine, (1, 2), max_tokens=20)
        for _ in range(3):
            engine.step()
        broken = submit(engine, (7, 7), max_tokens=20)
        with pytest.raises(ModelFileError, match="not finite"):
            engine.step()
        engine.cancel(broken)
        run(engine)
        assert good.output == alone
    assert draft_runner.num_free_slots == 8


def test_damaged_weights_end_in_a_typed_error() -> None:
    config, weights = small_model("llama", seed=1)
    weights.final_norm[0] = np.nan
    for budget in (0, 4):
        with pytest.raises(DraftGraphError, match="weights are damaged"):
            write(make_engine(tiny_runner((config, weights)), NgramDrafter(4)), (1, 2, 3), budget)


@pytest.mark.parametrize("rows", [(105, 99), (99, 105), (96, 96)])
def test_padded_rows_of_target_and_draft_are_never_written_or_embedded(rows: tuple[int, int]) -> None:
    """D-TK-06, D-TK-07: rows beyond the 96 real tokens have by far the largest logits."""

    def padded(count: int, seed: int) -> ReferenceRunner:
        config, weights = small_model("llama", tied=False, seed=seed)
        head = np.concatenate([weights.head, np.full((count - 96, 32), 50, np.float32)])
        embedding = np.concatenate([weights.embedding, np.full((count - 96, 32), np.nan, np.float32)])
        config = type(config)(**{**{f: getattr(config, f) for f in config.__slots__}, "vocab_rows": count})
        weights = type(weights)(embedding, weights.layers, weights.final_norm, head)
        return ReferenceRunner(
            config, weights, vocab_size=96, context_length=256, num_slots=8, max_open=640
        )  # fmt: skip

    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        wanted = write(
            make_engine(tiny_runner(small_model("llama", tied=False, seed=1))), (5, 6, 7), 0, max_tokens=20, **sampling
        )
        drafter = mixture(RecycleDrafter(6), ModelDrafter(padded(rows[1], 2), 4, 4))
        found = write(make_engine(padded(rows[0], 1), drafter), (5, 6, 7), 8, max_tokens=20, **sampling)
        assert found.output == wanted.output
        assert found.stats.drafted_nodes > 0
