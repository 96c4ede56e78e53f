"""By KV: what the cache holds after commits is what a fresh prefill of the same text computes, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ranking import drawn
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.request import State
from draftgraph.errors import CapacityError
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.runner import kv
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Extension, VerifyBatch
from draftgraph.verify.accept import match, residual
from support.rigs import ScriptDrafter, make_engine, mixture, scripts, set_block, small_model, tiny_runner, write

PROMPT = (5, 9, 33, 5, 9, 70, 2, 5, 9, 5, 9)


@functools.cache
def model(seed: int = 0, family: str = "qwen2") -> tuple[ModelConfig, ModelWeights]:
    return small_model(family, seed=seed, tied=family == "qwen2")


def extension(tokens: Sequence[int], parents: Sequence[int]) -> Extension:
    return Extension(np.asarray(tokens, np.int32), np.asarray(parents, np.int32), 0)


def assert_fresh(
    runner: ReferenceRunner, slot: int, tokens: Sequence[int], seed: int = 0, family: str = "qwen2"
) -> None:
    """Asserts that the slot holds exactly `tokens`, as a prefill of them in another runner computes them."""
    fresh = tiny_runner(model(seed, family))
    other = fresh.open()
    if tokens:
        fresh.extend(VerifyBatch((other,), [extension(tokens, range(-1, len(tokens) - 1))]))
        fresh.commit(other, range(len(tokens)))
    for layer in range(model(seed, family)[0].num_layers):
        for found, wanted in zip(runner.committed_keys(slot, layer), fresh.committed_keys(other, layer), strict=True):
            np.testing.assert_array_equal(found, wanted)


def drafters(text: Sequence[int]) -> dict[str, Drafter]:
    named: dict[str, Drafter] = {name: ScriptDrafter(script) for name, script in scripts(text, 96).items()}
    named["mixture"] = mixture(RecycleDrafter(6), SuffixDrafter(6))
    return named


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_after_every_step_the_cache_is_that_of_a_fresh_prefill(temperature: float, family: str) -> None:
    options = {"max_tokens": 20, "temperature": temperature, "seed": 1}
    text = (*PROMPT, *write(make_engine(tiny_runner(model(0, family))), PROMPT, 0, **options).output)
    num_rejected = 0
    for name, drafter in drafters(text).items():
        runner = tiny_runner(model(0, family))
        engine = make_engine(runner, drafter, prefill_chunk=4)
        request = engine.submit(PROMPT, SamplingParams(**options), 8)  # type: ignore[arg-type]
        while request.state is not State.FINISHED:
            engine.step()
            runner.check()
            if request.state is State.DECODE and request.num_written % 3 == 0:
                assert_fresh(runner, request.slot, request.tokens[:-1], family=family)
        assert tuple(request.tokens) == text, name
        num_rejected += request.stats.verified_rows - request.stats.accepted_nodes
    assert num_rejected > 200, "without rejections the test shows little"


@pytest.mark.parametrize(("merge_length", "family"), [(0, "qwen2"), (1, "qwen2"), (2, "qwen2"), (1, "gemma3")])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_draft_model_s_cache_is_that_of_a_fresh_prefill(temperature: float, merge_length: int, family: str) -> None:
    """With merging, paths are accepted through edges along which the draft model computed nothing."""
    for rule_, ranking in ((match, None), (residual, drawn)):
        draft_runner = tiny_runner(model(1, family))
        drafter = ModelDrafter(draft_runner, 3, 4, **({} if ranking is None else {"ranking": ranking}))
        engine = make_engine(tiny_runner(model()), drafter, rule=rule_, merge_length=merge_length, prefill_chunk=4)
        sampling = SamplingParams(max_tokens=24, temperature=temperature, seed=2)
        request = engine.submit(PROMPT, sampling, 12)
        checked = 0
        while request.state is not State.FINISHED:
            engine.step()
            draft_runner.check()
            if request.state is State.DECODE and draft_runner.num_free_slots < 8:
                held = draft_runner.committed_keys(0, 0)[0].shape[1]
                assert held < len(request.tokens), "the root was committed"
                assert_fresh(draft_runner, 0, request.tokens[:held], seed=1, family=family)
                checked += 1
        assert checked > 3
        assert draft_runner.num_free_slots == 8


def test_a_commit_through_a_merged_edge_keeps_only_what_was_computed_along_the_path() -> None:
    """Greedy, every token may merge with every other: after [a, b] the draft model proposes b a b a …"""
    draft_runner = tiny_runner(model(1))
    drafter = ModelDrafter(draft_runner, 4, 6)
    merged = 0
    for seed in range(4):
        engine = make_engine(tiny_runner(model(seed)), drafter, merge_length=1)
        request = engine.submit(PROMPT[seed:], SamplingParams(max_tokens=24), 16)
        while request.state is not State.FINISHED:
            engine.step()
            if request.state is State.DECODE and draft_runner.num_free_slots < 8:
                held = draft_runner.committed_keys(0, 0)[0].shape[1]
                assert_fresh(draft_runner, 0, request.tokens[:held], seed=1)
        merged += request.stats.merged_nodes
    assert merged > 10


def test_the_cache_gives_back_its_blocks_and_takes_no_more_than_it_was_given() -> None:
    runner = tiny_runner(model(), context_length=32, num_slots=2)
    slots = [runner.open(), runner.open()]
    with pytest.raises(CapacityError):
        runner.open()
    for _ in range(30):
        for slot in slots:
            runner.extend(VerifyBatch((slot,), [extension([1] * 32, range(-1, 31))]))
            runner.commit(slot, range(32))
            with pytest.raises(CapacityError):
                runner.extend(VerifyBatch((slot,), [extension([1], [-1])]))
            runner.release(slot)
            assert runner.open() == slot
            runner.check()


class Cache(RuleBasedStateMachine):
    """Any sequence of opening, extending, committing and releasing, beside the texts that the slots should hold."""

    block = kv.BLOCK

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        set_block(self.patch, self.block)
        self.runner = tiny_runner(model(), num_slots=3)
        self.written: list[list[int]] = [[]]
        self.texts: dict[int, list[int]] = {}
        self.trees: dict[int, tuple[list[int], list[int]]] = {}

    @precondition(lambda self: len(self.texts) < 3)
    @rule()
    def open(self) -> None:
        slot = self.runner.open()
        assert slot not in self.texts
        self.texts[slot], self.trees[slot] = [], ([], [])

    @precondition(lambda self: len(self.texts) < 3)
    @rule(pick=st.integers(0, 99), length=st.integers(0, 99))
    def open_with(self, pick: int, length: int) -> None:
        """Opens a slot with what is left of a text that some slot has held, and makes it end differently."""
        text = self.written[pick % len(self.written)]
        tokens = [*text[: length % (len(text) + 1)], pick % 96]
        self.open()
        slot = list(self.texts)[-1]
        found = self.runner.reuse(slot, tokens)
        assert found % self.block == 0
        self.texts[slot] += tokens[:found]
        assert_fresh(self.runner, slot, self.texts[slot])

    @precondition(lambda self: self.texts)
    @rule(
        pick=st.integers(0, 2),
        nodes=st.lists(st.tuples(st.integers(0, 95), st.integers(0, 99)), min_size=1, max_size=9),
    )
    def extend(self, pick: int, nodes: list[tuple[int, int]]) -> None:
        slot = list(self.texts)[pick % len(self.texts)]
        tokens, parents = self.trees[slot]
        first = len(tokens)
        for token, choice in nodes:
            parents.append(choice % (len(tokens) + 1) - 1 if choice % 3 else len(tokens) - 1)
            tokens.append(token)
        self.runner.extend(VerifyBatch((slot,), [extension(tokens[first:], parents[first:])]))

    @precondition(lambda self: self.texts)
    @rule(pick=st.integers(0, 2), last=st.integers(0, 99))
    def commit(self, pick: int, last: int) -> None:
        slot = list(self.texts)[pick % len(self.texts)]
        tokens, parents = self.trees[slot]
        node, path = last % (len(tokens) + 1) - 1, []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        self.runner.commit(slot, path)
        self.texts[slot] += [tokens[node] for node in path]
        self.trees[slot] = ([], [])
        self.written.append(list(self.texts[slot]))
        assert self.runner._slots[slot].text == self.texts[slot]
        assert_fresh(self.runner, slot, self.texts[slot])

    @precondition(lambda self: self.texts)
    @rule(pick=st.integers(0, 2))
    def release(self, pick: int) -> None:
        slot = list(self.texts)[pick % len(self.texts)]
        self.runner.release(slot)
        del self.texts[slot], self.trees[slot]

    @invariant()
    def blocks_balance(self) -> None:
        self.runner.check()
        assert self.runner.num_free_slots == 3 - len(self.texts)

    def teardown(self) -> None:
        for slot, text in self.texts.items():
            assert_fresh(self.runner, slot, text)
        self.patch.undo()


class CacheOfSmallBlocks(Cache):
    """As `Cache`, with blocks that are full after three tokens, so that slots share many."""

    block = 3


TestCache = Cache.TestCase
TestCacheOfSmallBlocks = CacheOfSmallBlocks.TestCase
TestCache.settings = TestCacheOfSmallBlocks.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, derandomize=True
)
