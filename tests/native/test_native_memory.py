"""On the native runner: short memory, shared prefixes and lost slots change no text, and no bit of the cache."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.models.loader import Model, load_model
from draftgraph.types import Extension, VerifyBatch
from support.rigs import make_engine, mixture, run, write
from support.tiny import tiny_config, tiny_tokenizer, write_gguf

pytest.importorskip("draftgraph._native", reason="the extension is not built")
from draftgraph.runner.native import NativeRunner

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rope_dim": 64}
STEM = [random.Random(0).randrange(250) for _ in range(50)]
PROMPTS = [[*STEM, 1, 2], [*STEM[:35], 3], STEM[:32], [4], [*STEM[:48], 5, 6, 7], STEM]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = tiny_config(request.param, **WIDE)
    file = tmp_path_factory.mktemp("memory") / "model.gguf"
    return load_model(write_gguf(file, request.param, quant="Q4_K", config=config))


def small_runner(model: Model, num_cells: int = 144) -> NativeRunner:
    """Four slots with memory for little more than one full text."""
    return NativeRunner(
        model.source, model.config, vocab_size=len(tiny_tokenizer().tokens), context_length=112, num_slots=4,
        max_open=120, threads=2, num_cells=num_cells,
    )  # fmt: skip


def drafters(model: Model) -> dict[str, Drafter]:
    return {
        "model": ModelDrafter(small_runner(model), 3, 4),
        "mixture": mixture(NgramDrafter(6), SuffixDrafter(6), RecycleDrafter(6)),
    }


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["model", "mixture"])
def test_texts_are_those_of_solo_runs(model: Model, drafter: str, temperature: float) -> None:
    sampling = {"max_tokens": 40, "temperature": temperature, "seed": 5, "ignore_eos": True}
    alone = [write(make_engine(small_runner(model, 0)), prompt, 0, **sampling).output for prompt in PROMPTS]
    runner = small_runner(model)
    engine = make_engine(runner, drafters(model)[drafter], prefill_chunk=24)
    for _ in range(2):  # the second time, what is left in memory of the first
        requests = [engine.submit(prompt, SamplingParams(**sampling), 7) for prompt in PROMPTS]  # type: ignore[arg-type]
        assert run(engine, *requests) == alone
        runner.check()
    load = engine.scheduler.load()
    assert load.preemptions > 0
    assert load.reused_tokens > 48
    assert load.blocks_used == 0


def test_the_keys_of_a_resumed_text_are_those_of_a_fresh_prefill(model: Model) -> None:
    runner = small_runner(model)
    engine = make_engine(runner, drafters(model)["model"], prefill_chunk=24)
    engine.submit(PROMPTS[0], SamplingParams(max_tokens=3), 4)
    request = engine.submit(PROMPTS[4], SamplingParams(max_tokens=40, ignore_eos=True), 4)
    for step in range(16):
        engine.step()
        if step in (6, 11):
            engine.scheduler.preempt(request)
    fresh = small_runner(model)
    slot = fresh.open()
    known = request.tokens[: request.num_computed]
    assert request.num_written > 3
    assert request.num_computed > 50
    chain = Extension(np.array(known, np.int32), np.arange(-1, len(known) - 1, dtype=np.int32), len(known))
    fresh.extend(VerifyBatch((slot,), [chain]))
    fresh.commit(slot, range(len(known)))
    for layer in range(model.config.num_layers):
        for one, two in zip(runner.committed_keys(request.slot, layer), fresh.committed_keys(slot, layer), strict=True):
            np.testing.assert_array_equal(one, two)
