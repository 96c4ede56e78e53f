"""By identity: giving a slot up and starting from another request's blocks leave every text as it is alone."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter, NoDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, State
from draftgraph.runner import kv
from draftgraph.runner.reference import ReferenceRunner
from support.rigs import make_engine, mixture, set_block, small_model, tiny_runner, write

COUNT = 24
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.4, "seed": 5},
}
DRAFTERS: dict[str, Callable[[Callable[[int], ReferenceRunner]], Drafter]] = {
    "none": lambda runner: NoDrafter(),
    "ngram": lambda runner: NgramDrafter(6),
    "suffix": lambda runner: SuffixDrafter(6),
    "recycle": lambda runner: RecycleDrafter(6),
    "model, the same weights": lambda runner: ModelDrafter(runner(1), 2, 5),
    "model, other weights": lambda runner: ModelDrafter(runner(2), 3, 4),
    "mixture": lambda runner: mixture(NgramDrafter(4), RecycleDrafter(4), ModelDrafter(runner(2), 2, 4)),
}


@pytest.fixture(params=[1, 4, 16], ids=lambda size: f"blocks of {size}")
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    set_block(monkeypatch, request.param)
    size: int = request.param
    return size


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Half of it repeats, so that there is something to draft."""
    half = np.random.default_rng([length, seed]).integers(0, 96, length // 2 + 1)
    return tuple(int(token) for token in (*half, *half))[:length]


def result(request: Request) -> tuple[list[int], str, object]:
    return request.output, request.text, request.finish_reason


@functools.cache
def alone(family: str, prompt: tuple[int, ...], sampling: str, count: int = COUNT) -> tuple[list[int], str, object]:
    """What a request writes without drafts, in a runner of its own."""
    options = {"max_tokens": count, **SAMPLINGS[sampling]}
    return result(write(make_engine(tiny_runner(small_model(family, seed=1))), prompt, 0, **options))


def submit(engine: Engine, prompt: tuple[int, ...], sampling: str, budget: int = 6, count: int = COUNT) -> Request:
    params = SamplingParams(max_tokens=count, **SAMPLINGS[sampling])  # type: ignore[arg-type]
    return engine.submit(prompt, params, budget)


def finish(engine: Engine, *runners: ReferenceRunner) -> None:
    """Runs to the end. After every step all is accounted for, and the oldest request has come on."""
    for _ in range(2000):
        if not engine.scheduler.has_work:
            break
        requests = [*engine.scheduler._running.values(), *engine.scheduler._waiting]
        oldest = min(requests, key=lambda request: request.id)
        before = (oldest.num_computed, oldest.num_written)
        engine.step()
        engine.scheduler.check()
        for runner in runners:
            runner.check()
        assert (oldest.num_computed, oldest.num_written) > before, "the oldest request stood still"
    assert not engine.scheduler.has_work, "no end in sight"
    for runner in runners:
        assert runner.blocks.used == 0


def joined(request: Request) -> tuple[list[int], str]:
    """What a client that took every delta has received."""
    return [token for delta in request.deltas for token in delta.token_ids], "".join(d.text for d in request.deltas)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_requests_that_outgrow_the_memory_write_what_they_write_alone(drafter: str, sampling: str, block: int) -> None:
    """Four slots, and memory for little more than one full text, in the target and in the draft model."""
    family = "qwen2"

    def small_runner(seed: int) -> ReferenceRunner:
        return tiny_runner(small_model(family, seed=seed), context_length=72, num_slots=4, num_cells=80)

    runner = small_runner(1)
    draft_runners: list[ReferenceRunner] = []

    def draft_runner(seed: int) -> ReferenceRunner:
        draft_runners.append(small_runner(seed))
        return draft_runners[-1]

    engine = make_engine(runner, DRAFTERS[drafter](draft_runner), prefill_chunk=16)
    prompts = [prompt_of(length) for length in (14, 20, 9, 30, 1, 17)]
    requests = [submit(engine, prompt, sampling, count=40) for prompt in prompts]
    finish(engine, runner, *draft_runners)
    assert engine.scheduler.load().preemptions > 0, "the memory was never short"
    for prompt, request in zip(prompts, requests, strict=True):
        assert result(request) == alone(family, prompt, sampling, count=40)
        assert joined(request) == (request.output, request.text)
    assert all(draft.blocks.used == 0 for draft in draft_runners)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("drafter", ["none", "mixture"])
def test_a_request_may_lose_its_slot_after_any_step(family: str, drafter: str) -> None:
    """Also while it still reads, and while it reads again; another one runs beside it."""
    prompt, other = prompt_of(37), prompt_of(12)
    for sampling in SAMPLINGS:
        for losses in ((1,), (2,), (3,), (5,), (8,), (3, 4, 5), (6, 7, 10), tuple(range(1, 30, 3))):
            runner = tiny_runner(small_model(family, seed=1))
            draft_runner = tiny_runner(small_model(family, seed=2))
            engine = make_engine(runner, DRAFTERS[drafter](lambda seed, kept=draft_runner: kept), prefill_chunk=16)
            neighbour, request = submit(engine, other, sampling), submit(engine, prompt, sampling)
            step = 0
            while engine.scheduler.has_work:
                engine.step()
                step += 1
                if step in losses and request.state in (State.PREFILL, State.DECODE):
                    engine.scheduler.preempt(request)
                engine.scheduler.check()
                runner.check()
            assert result(request) == alone(family, prompt, sampling), losses
            assert joined(request) == (request.output, request.text)
            assert result(neighbour) == alone(family, other, sampling)
            assert request.stats.preemptions > 0
            assert request.stats.completion_tokens == len(request.output)
            assert runner.blocks.used == draft_runner.blocks.used == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_text_that_starts_from_another_s_blocks_is_the_same(drafter: str, block: int) -> None:
    """D-KV-07: a prefix of 40 tokens with several ends, one after the other; drafts are accepted as without reuse."""
    prefix = prompt_of(40)
    family = ("gemma3", "qwen2", "mistral")[(list(DRAFTERS).index(drafter) + block // 4) % 3]
    model = small_model(family, seed=1)
    for sampling in SAMPLINGS:
        runner = tiny_runner(model)
        engine = make_engine(runner, DRAFTERS[drafter](lambda seed: tiny_runner(small_model(family, seed=seed))))
        again = prompt_of(7, seed=2)  # with its first written token it fills three blocks
        for end in ((7,), (7, 8, 9), (3,), (), again, again, prompt_of(30, seed=1)):
            request = submit(engine, (*prefix, *end), sampling)
            finish(engine, runner)
            assert result(request) == alone(family, (*prefix, *end), sampling)
            fresh = make_engine(
                tiny_runner(model), DRAFTERS[drafter](lambda seed: tiny_runner(small_model(family, seed=seed)))
            )
            counted = submit(fresh, (*prefix, *end), sampling)
            finish(fresh)
            for name in ("target_passes", "drafted_nodes", "accepted_nodes", "by_source"):
                assert getattr(request.stats, name) == getattr(counted.stats, name), name
            if end != (7,):  # the first
                assert request.stats.reused_tokens >= (39 // block) * block


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_reuse_from_a_fragmented_memory(sampling: str, block: int) -> None:
    """D-KV-06: A, B and C share prefixes and run together, B is cancelled, and D takes up A's prefix."""
    runner = tiny_runner(small_model("qwen2", seed=1), context_length=96, num_slots=4, num_cells=160)
    drafter = DRAFTERS["mixture"](lambda seed: tiny_runner(small_model("qwen2", seed=seed), num_slots=4))
    engine = make_engine(runner, drafter, prefill_chunk=24)
    long, short = prompt_of(50), prompt_of(50)[:20]
    prompts = {"A": (*long, 1), "B": (*short, 2, 3), "C": (*long[:33], 4), "D": (*long, 5, 6)}
    requests = {name: submit(engine, prompts[name], sampling) for name in "ABC"}
    for _ in range(8):
        engine.step()
    engine.cancel(requests["B"])
    finish(engine, runner)
    requests["D"] = submit(engine, prompts["D"], sampling)
    finish(engine, runner)
    for name in "ACD":
        assert result(requests[name]) == alone("qwen2", prompts[name], sampling), name
    wanted = alone("qwen2", prompts["B"], sampling)[0]
    assert requests["B"].output == wanted[: len(requests["B"].output)]
    assert requests["D"].stats.reused_tokens >= 48


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_requests_with_one_prompt_at_the_same_time_share_what_is_read(sampling: str, block: int) -> None:
    """They start one step apart, and later ones of a length that ends with a block: its last row is read again."""
    runner = tiny_runner(small_model("llama", seed=1))
    engine = make_engine(runner, DRAFTERS["recycle"](lambda seed: runner), prefill_chunk=64)
    prompt = prompt_of(32)
    requests = []
    for _ in range(5):
        requests.append(submit(engine, prompt, sampling))
        engine.step()
        runner.check()
    together = runner.blocks.used
    finish(engine, runner)
    assert all(result(request) == alone("llama", prompt, sampling) for request in requests)
    assert [request.stats.reused_tokens for request in requests] == [0] + [31 // block * block] * 4
    assert together < 5 * -(-32 // block), "nothing was shared"


def test_two_requests_that_read_one_text_side_by_side_end_with_one_copy(block: int) -> None:
    runner = tiny_runner(small_model("llama", seed=1))
    engine = make_engine(runner, prefill_chunk=64)
    prompt = prompt_of(32)
    requests = [submit(engine, prompt, "greedy") for _ in range(2)]
    engine.step()
    runner.check()
    assert [request.num_computed for request in requests] == [32, 32]
    assert runner.blocks.used == 32 // block
    finish(engine, runner)
    assert all(result(request) == alone("llama", prompt, "greedy") for request in requests)


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """Those that hold what it wrote too: drafts were accepted and rejected on the way."""
    runner = tiny_runner(small_model("llama", seed=1))
    engine = make_engine(runner, ModelDrafter(tiny_runner(small_model("llama", seed=1)), 3, 5))
    request = submit(engine, prompt_of(50), "sampled")
    while request.num_written < 20:
        engine.step()
    assert 0 < request.stats.accepted_nodes < request.stats.verified_rows - request.stats.target_passes
    before = request.num_computed
    engine.scheduler.preempt(request)
    assert runner.blocks.used == 0
    engine.step()
    assert engine.scheduler.load().reused_tokens == before // kv.BLOCK * kv.BLOCK > 0
    assert request.stats.reused_tokens == 0, "the prompt itself was read"
    finish(engine, runner)
    assert result(request) == alone("llama", prompt_of(50), "sampled")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_model_short_of_memory_drafts_for_fewer(sampling: str) -> None:
    """Four texts in the target, room for little more than one in the draft model."""
    runner = tiny_runner(small_model("llama", seed=1))
    draft_runner = tiny_runner(small_model("llama", seed=2), context_length=72, num_slots=4, num_cells=80)
    engine = make_engine(runner, ModelDrafter(draft_runner, 2, 4))
    prompts = [prompt_of(length) for length in (20, 24, 18, 26)]
    requests = [submit(engine, prompt, sampling) for prompt in prompts]
    finish(engine, runner, draft_runner)
    for prompt, request in zip(prompts, requests, strict=True):
        assert result(request) == alone("llama", prompt, sampling)
    assert requests[0].stats.drafted_nodes > 0
    bare = sum(request.stats.budgets.get(0, 0) for request in requests)
    assert bare > len(requests), "each may end without drafts, but memory was to be short before"


def test_a_request_that_lost_its_slot_leaves_its_place_in_the_draft_model_to_others() -> None:
    draft_runner = tiny_runner(small_model("llama", seed=2), num_slots=1)
    engine = make_engine(tiny_runner(small_model("llama", seed=1), num_slots=1), ModelDrafter(draft_runner, 2, 4))
    first, second = (submit(engine, prompt_of(length), "greedy") for length in (20, 21))
    for _ in range(4):
        engine.step()
    engine.scheduler.preempt(first)
    engine.scheduler._waiting.rotate()  # the other one's turn
    while second.state is not State.FINISHED:
        engine.step()
        draft_runner.check()
    assert second.stats.drafted_nodes > 0
    finish(engine, draft_runner)
    assert result(first) == alone("llama", prompt_of(20), "greedy")
