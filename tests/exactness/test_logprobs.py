"""Log-probabilities belong to each token's own path: the same with and without drafts, and those of a re-scoring."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

import draftgraph as dg
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.engine.request import Request
from draftgraph.types import TokenLogprobs
from draftgraph.verify.accept import residual
from support.rigs import ScriptDrafter, make_engine, oracle_logits, scripts, small_model, tiny_runner, write
from support.tiny import tiny_config, write_gguf

MODEL = small_model("qwen2", tied=False, seed=1)
PROMPT = tuple(int(token) for token in np.random.default_rng(1).integers(0, 96, 9)) * 2
COUNT = 20
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "temperature 1.5, everything": {
        "temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.4, "logit_bias": {3: 1.0, 5: -2.0},
    },
}  # fmt: skip


def answer(sampling: str, drafter: str = "always wrong", budget: int = 0, **more: object) -> Request:
    text = (*PROMPT, *plain(sampling).output) if budget else PROMPT
    engine = make_engine(tiny_runner(MODEL), ScriptDrafter(scripts(text, 96)[drafter]))
    return write(engine, PROMPT, budget, max_tokens=COUNT, seed=5, logprobs=3, **SAMPLINGS[sampling], **more)


@functools.cache
def plain(sampling: str) -> Request:
    return answer(sampling)


@pytest.mark.parametrize("drafter", list(scripts((0,), 96)))
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_draft_changes_a_logprob(sampling: str, drafter: str) -> None:
    for budget in (1, 4, 16):
        request = answer(sampling, drafter, budget)
        assert request.output == plain(sampling).output
        assert request.logprobs == plain(sampling).logprobs
    if drafter == "oracle":
        assert request.stats.tokens_per_step > 3, "no token was accepted as a draft"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_logprob_is_that_of_a_naive_rescoring_of_the_text(sampling: str) -> None:
    """Raw ones: neither temperature nor filters, penalties or biases are in them."""
    request = answer(sampling, "half right", 8)
    assert request.logprobs is not None
    assert len(request.logprobs) == COUNT
    for i, found in enumerate(request.logprobs):
        expected = log_softmax(oracle_logits(MODEL, [*PROMPT, *request.output[:i]]))
        assert found.token == request.output[i]
        assert found.logprob == pytest.approx(expected[found.token], abs=1e-4)
        assert [token for token, _ in found.top] == np.argsort(-expected)[:3].tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(np.sort(expected)[::-1][:3], abs=1e-4)


def test_greedy_tokens_are_the_likeliest_ones() -> None:
    for found in plain("greedy").logprobs or ():
        assert found.top[0] == (found.token, found.logprob)


def test_residual_acceptance_reports_them_too() -> None:
    drafter = ModelDrafter(tiny_runner(small_model("qwen2", tied=False, seed=0)), 2, 4)
    request = write(
        make_engine(tiny_runner(MODEL), drafter, rule=residual), PROMPT, 6, max_tokens=COUNT, seed=5, logprobs=0,
        temperature=1.0,
    )  # fmt: skip
    for i, found in enumerate(request.logprobs or ()):
        expected = log_softmax(oracle_logits(MODEL, [*PROMPT, *request.output[:i]]))
        assert found.logprob == pytest.approx(expected[request.output[i]], abs=1e-4)
    assert len(request.logprobs or ()) == COUNT


def test_they_end_with_the_ids_at_a_stop_inside_an_accepted_block() -> None:
    """Wherever in the block it stands; and each delta has as many as it has ids."""
    output = plain("greedy").output
    for at in range(8):
        stop = "".join(chr(token) for token in output[at : at + 2])
        request = answer("greedy", "oracle", 6, stop=(stop,))
        assert request.logprobs == (plain("greedy").logprobs or [])[: len(request.output)]
        assert len(request.output) <= at + 2
        deltas = list(request.deltas)
        assert [len(delta.logprobs or ()) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
        assert [one for delta in deltas for one in delta.logprobs or ()] == request.logprobs


def test_nothing_is_reported_or_computed_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> TokenLogprobs:
        raise AssertionError("a log-probability was computed")

    monkeypatch.setattr("draftgraph.verify.distribution.token_logprobs", refuse)
    request = write(make_engine(tiny_runner(MODEL)), PROMPT, 0, max_tokens=3)
    assert request.logprobs is None
    assert all(delta.logprobs is None for delta in request.deltas)


# The native core: bit for bit


def results(path: Path, prompts: Sequence[str], budget: int, **options: object) -> list[tuple[object, ...]]:
    sampling = {"max_tokens": 24, "ignore_eos": True, "logprobs": 5, "seed": 3, "temperature": 0.7}
    with dg.load(path, **options) as llm:  # type: ignore[arg-type]
        return [(done.token_ids, done.logprobs) for done in llm.generate(prompts, budget=budget, **sampling)]


def test_they_are_the_same_bits_at_any_budget_batch_and_number_of_threads(tmp_path: Path) -> None:
    pytest.importorskip("draftgraph._native", reason="the extension is not built")
    wide = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "rope_dim": 64,
    }
    path = write_gguf(tmp_path / "tiny.gguf", quant="Q4_K", config=tiny_config(**wide))
    prompts = ["hello hello hello", "the other one", "and a third, and a third"]
    expected = [results(path, [prompt], 0, threads=1)[0] for prompt in prompts]
    for budget, threads, chunk in ((0, 2, 3), (1, 1, 64), (8, 2, 2), (16, 3, 64)):
        assert results(path, prompts, budget, threads=threads, prefill_chunk=chunk) == expected


def test_a_mixture_of_drafters_in_one_batch_changes_no_logprob() -> None:
    model = ModelDrafter(tiny_runner(MODEL), 2, 4)
    drafter = MixtureDrafter({"ngram": NgramDrafter(8), "recycle": RecycleDrafter(8), "model": model})
    engine = make_engine(tiny_runner(MODEL), drafter)
    for sampling, parameters in SAMPLINGS.items():
        request = write(engine, PROMPT, 8, max_tokens=COUNT, seed=5, logprobs=3, **parameters)
        assert request.logprobs == plain(sampling).logprobs
