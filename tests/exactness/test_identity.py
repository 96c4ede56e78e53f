"""By identity: ids, text and finish reason are those of plain decoding, whatever drafts, whoever shares the batch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.request import Request
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.verify.accept import residual
from support.rigs import (
    ScriptDrafter,
    TableRunner,
    hashed_logits,
    make_engine,
    mixture,
    run,
    scripts,
    small_model,
    tiny_runner,
    write,
)

COUNT = 20
PROMPT = tuple(int(token) for token in np.random.default_rng(1).integers(0, 96, 9)) * 2
MODELS = {
    "llama, tied": ("llama", True),
    "llama, untied": ("llama", False),
    "qwen2, tied": ("qwen2", True),
    "qwen2, untied": ("qwen2", False),
    "qwen3, untied": ("qwen3", False),
    "mistral, untied": ("mistral", False),
    "gemma3, untied": ("gemma3", False),
}
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    "greedy with a bias": {"logit_bias": {3: 4.0, 7: -100.0, 11: 2.0}},
    "temperature 0.3": {"temperature": 0.3},
    "temperature 0.8, top-k": {"temperature": 0.8, "top_k": 5},
    "temperature 1.5, top-p": {"temperature": 1.5, "top_p": 0.7},
    "temperature 0.8, min-p": {"temperature": 0.8, "min_p": 0.2},
    "temperature 1.5, everything": {
        "temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.4, "logit_bias": {3: 1.0, 5: -2.0},
    },
}  # fmt: skip
SCRIPTS = tuple(scripts((0,), 96))


@functools.cache
def model(name: str, seed: int = 1) -> tuple[ModelConfig, ModelWeights]:
    family, tied = MODELS[name]
    return small_model(family, tied=tied, seed=seed)


def result(request: Request) -> tuple[list[int], str, object]:
    return request.output, request.text, request.finish_reason


@functools.cache
def plain(name: str, sampling: str, prompt: tuple[int, ...] = PROMPT) -> tuple[list[int], str, object]:
    engine = make_engine(tiny_runner(model(name)))
    return result(write(engine, prompt, 0, max_tokens=COUNT, seed=5, **SAMPLINGS[sampling]))


def draft_model(name: str, *, seed: int, width: int) -> ModelDrafter:
    return ModelDrafter(tiny_runner(model(name, seed)), width, 5)


# name -> the drafter for a target model and a text known in advance
DRAFTERS: dict[str, Callable[[str, Sequence[int]], Drafter]] = {
    "ngram": lambda name, text: NgramDrafter(8),
    "suffix": lambda name, text: SuffixDrafter(8),
    "suffix with a corpus": lambda name, text: SuffixDrafter(8, corpus=[*text, *text[::-1]]),
    "recycle": lambda name, text: RecycleDrafter(8),
    "model, width 2, the same weights": lambda name, text: draft_model(name, seed=1, width=2),
    **{
        f"model, width {width}, other weights": lambda name, text, width=width: draft_model(name, seed=0, width=width)
        for width in (1, 2, 3, 4)
    },
    "mixture": lambda name, text: mixture(
        NgramDrafter(8), SuffixDrafter(8), RecycleDrafter(8), draft_model(name, seed=1, width=3)
    ),
    "mixture with a script": lambda name, text: mixture(
        draft_model(name, seed=0, width=2), ScriptDrafter(scripts(text, 96)["random graphs"]), NgramDrafter(4)
    ),
    **{
        script: lambda name, text, script=script: ScriptDrafter(scripts(text, 96)[script]) for script in SCRIPTS
    },
}  # fmt: skip


def drafted(name: str, sampling: str, drafter: str, budget: int, merge_length: int = 2, chunk: int = 64) -> Request:
    text = (*PROMPT, *plain(name, sampling)[0])
    engine = make_engine(
        tiny_runner(model(name)), DRAFTERS[drafter](name, text), merge_length=merge_length, prefill_chunk=chunk
    )
    return write(engine, PROMPT, budget, max_tokens=COUNT, seed=5, **SAMPLINGS[sampling])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_drafter_changes_the_text_at_any_sampling(drafter: str) -> None:
    for i, sampling in enumerate(SAMPLINGS):
        name = list(MODELS)[i % len(MODELS)]
        request = drafted(name, sampling, drafter, budget=(8, 1, 16, 4)[i % 4])
        assert result(request) == plain(name, sampling), sampling


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", ["greedy", "temperature 0.8, top-k"])
def test_no_drafter_changes_the_text_of_any_model(name: str, sampling: str) -> None:
    for drafter in ("mixture", "random graphs", "half right", "model, width 3, other weights"):
        assert result(drafted(name, sampling, drafter, budget=7)) == plain(name, sampling), drafter


@pytest.mark.parametrize("name", ["mistral, untied", "gemma3, untied"])
@pytest.mark.parametrize("drafter", ["oracle", "longer than any budget", "duplicates", "mixture"])
def test_windows_that_slide_over_prompt_text_and_drafts_do_not_change_the_text(name: str, drafter: str) -> None:
    """The window is eight tokens: shorter than the prompt, and than a path of the longest drafts."""
    assert max(model(name)[0].windows) == 8 < len(PROMPT)
    for sampling, budget in (("greedy", 16), ("greedy", 3), ("temperature 1.5, top-p", 16)):
        assert result(drafted(name, sampling, drafter, budget, chunk=5)) == plain(name, sampling)
    if drafter == "longer than any budget":
        deepest = drafted(name, "greedy", drafter, budget=16).stats
        assert deepest.tokens_per_step > 8, "no path outgrew the window"


@pytest.mark.parametrize("merge_length", range(4))
def test_no_budget_and_no_merging_changes_the_text(merge_length: int) -> None:
    for budget in range(1, 17):
        sampling = ("greedy", "temperature 1.5, everything")[budget % 2]
        drafter = ("random graphs", "mixture", "model, width 4, other weights")[budget % 3]
        assert result(drafted("qwen2, untied", sampling, drafter, budget, merge_length)) == plain(
            "qwen2, untied", sampling
        )


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_size_of_prefill_chunks_does_not_change_the_text(chunk: int) -> None:
    for sampling, drafter in itertools.product(("greedy", "temperature 0.3"), ("mixture", "oracle")):
        assert result(drafted("llama, untied", sampling, drafter, 8, chunk=chunk)) == plain("llama, untied", sampling)


@pytest.mark.parametrize("size", [3, 8])
def test_neighbours_and_their_order_do_not_change_the_text(size: int) -> None:
    name = "qwen2, tied"
    prompts = [PROMPT[i:] + PROMPT[:i] for i in range(0, 2 * size, 2)]
    samplings = [list(SAMPLINGS)[i % len(SAMPLINGS)] for i in range(size)]
    for order in (range(size), range(size - 1, -1, -1), np.random.default_rng(size).permutation(size)):
        engine = make_engine(tiny_runner(model(name)), DRAFTERS["mixture"](name, ()), prefill_chunk=7)
        requests = {}
        for i in order:
            params = SamplingParams(max_tokens=COUNT, seed=5, **SAMPLINGS[samplings[i]])  # type: ignore[arg-type]
            requests[i] = engine.submit(prompts[i], params, budget=int(i) + 1)
            engine.step()  # they arrive one by one
        run(engine)
        for i, request in requests.items():
            assert result(request) == plain(name, samplings[i], prompts[i])


def test_a_draft_model_with_the_target_s_weights_is_accepted_at_any_temperature() -> None:
    """Coupled draws from one distribution are one draw: of 19 tokens each pass writes five drafts and a bonus."""
    options = {"max_tokens": COUNT, "seed": 5}
    for temperature in (0.0, 0.3, 1.0, 2.0):
        engine = make_engine(tiny_runner(model("llama, tied")), draft_model("llama, tied", seed=1, width=1))
        assert write(engine, PROMPT, 5, temperature=temperature, **options).stats.target_passes == 4


def test_these_texts_are_worth_testing() -> None:
    """They vary, and drafts are accepted and rejected: otherwise the tests above could pass for no reason."""
    for name in MODELS:
        assert len(set(plain(name, "greedy")[0])) > 8
    name = "llama, tied"
    for sampling, drafter in itertools.product(SAMPLINGS, ("oracle", "duplicates", "outside the vocabulary")):
        assert drafted(name, sampling, drafter, budget=8).stats.tokens_per_step > 1.9, (sampling, drafter)
    assert drafted(name, "greedy", "always wrong", budget=8).stats.accepted_nodes == 0


def test_drafts_that_are_not_drawn_do_not_change_the_text_of_residual_either() -> None:
    name = "llama, tied"
    for sampling in ("greedy", "temperature 0.8, top-k"):
        texts = []
        for drafter, budget in (("ngram", 0), ("mixture with a script", 9), ("half right", 5)):
            engine = make_engine(
                tiny_runner(model(name)), DRAFTERS[drafter](name, (*PROMPT, *plain(name, sampling)[0])), rule=residual
            )
            texts.append(result(write(engine, PROMPT, budget, max_tokens=COUNT, seed=5, **SAMPLINGS[sampling])))
        assert texts[0] == texts[1] == texts[2]


GRAPHS = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 7)), max_size=30)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    graphs=st.lists(GRAPHS, min_size=1, max_size=4),
    budget=st.integers(1, 16),
    merge_length=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.5]),
    filters=st.fixed_dictionaries(
        {
            "top_k": st.sampled_from([0, 1, 3]),
            "top_p": st.sampled_from([1.0, 0.6]),
            "min_p": st.sampled_from([0.0, 0.3]),
            "frequency_penalty": st.sampled_from([0.0, 1.0]),
            "repetition_penalty": st.sampled_from([1.0, 1.4]),
        }
    ),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_graph_changes_the_text(
    graphs: list[list[tuple[int, int]]],
    budget: int,
    merge_length: int,
    temperature: float,
    filters: dict[str, object],
    seed: int,
) -> None:
    """Over six words, of which two ids below and two above are outside the vocabulary."""
    nodes = [[(min(parent, i), token) for i, (parent, token) in enumerate(graph)] for graph in graphs]
    drafter = ScriptDrafter(lambda context: nodes[len(context.tokens) % len(nodes)])
    texts = []
    for rows in (0, budget):
        engine = make_engine(TableRunner(hashed_logits(6), 6), drafter, merge_length=merge_length)
        options = {"max_tokens": 12, "temperature": temperature, "seed": seed, "stop": ("\x01\x02",), **filters}
        texts.append(result(write(engine, (1, 2, 3), rows, **options)))
    assert texts[0] == texts[1]
