"""Under a grammar too the text with drafts is the text without: each node is masked after its own ancestors."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import regex
from scipy.stats import chisquare

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.grammar import GrammarDrafter
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.ranking import drawn
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request
from draftgraph.errors import ParameterError
from draftgraph.rng import SeededNoise
from draftgraph.types import FinishReason
from draftgraph.verify.accept import Rule, match, residual
from draftgraph.verify.distribution import TargetDistribution
from draftgraph.verify.grammar import GrammarConstraint
from support.rigs import (
    ScriptDrafter,
    TableRunner,
    hashed_logits,
    make_engine,
    oracle_logits,
    run,
    scripts,
    tiny_runner,
    write,
)
from support.tiny import random_weights, tiny_config

ENDS = (128, 129)  # after the 128 characters
VOCAB = 130
COUNT = 24
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "vocab_rows": VOCAB}
CONFIG = tiny_config("qwen2", **SHAPE)
MODEL = (CONFIG, random_weights(CONFIG, seed=1))
OTHER = (CONFIG, random_weights(CONFIG, seed=2))
PROMPT = tuple(b'{"kind": bird, "n": x}, {"kind": bird, "n": x}, ')
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bat", "bird", "cat"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["kind", "n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
CONSTRAINTS: dict[str, dict[str, str]] = {
    "a regex": {"regex": "[A-Z][a-z]{2,9}( [a-z]{1,5}){1,3}[.!?]"},
    "a regex with an end inside": {"regex": "[a-f]{3,}"},
    "a schema": {"json_schema": json.dumps(SCHEMA)},
    "any JSON": {"json_schema": "{}"},
    "what begins at a marker": {"regex": '[^@{]{0,7}@\\{"n":[0-9]{1,3}\\}'},
    "brackets": {"grammar": 'start: "(" inner* ")"\ninner: start | /[ab]/'},
}
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "temperature 1.5, filters": {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "temperature 0.8, penalties": {
        "temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.6, "logit_bias": {97: 2.0, 66: 50.0},
    },
}  # fmt: skip
SCRIPTS = tuple(scripts((0,), VOCAB))


def token_bytes(token: int) -> bytes:
    return bytes([token]) if token < 128 else b""


def engine_of(drafter: Drafter | None = None, rule: Rule = match, chunk: int = 64, num_slots: int = 8) -> Engine:
    runner = tiny_runner(MODEL, num_slots=num_slots)
    return make_engine(runner, drafter, rule=rule, end_ids=ENDS, token_bytes=token_bytes, prefill_chunk=chunk)


def result(request: Request) -> tuple[object, ...]:
    return request.output, request.text, request.finish_reason, request.logprobs


def options(asked: str, sampling: str) -> dict[str, object]:
    return {"max_tokens": COUNT, "seed": 5, "logprobs": 2, **CONSTRAINTS[asked], **SAMPLINGS[sampling]}


@functools.cache
def plain(asked: str, sampling: str) -> Request:
    return write(engine_of(), PROMPT, 0, **options(asked, sampling))


def mixture() -> MixtureDrafter:
    model = ModelDrafter(tiny_runner(OTHER), 3, 5)
    lookups = {"ngram": NgramDrafter(8), "suffix": SuffixDrafter(8), "recycle": RecycleDrafter(8)}
    return MixtureDrafter({"grammar": GrammarDrafter(8), **lookups, "model": model})


def script(name: str, asked: str, sampling: str) -> ScriptDrafter:
    return ScriptDrafter(scripts((*PROMPT, *plain(asked, sampling).output), VOCAB)[name])


def expect_plain(asked: str, sampling: str, drafter: Drafter, budget: int) -> Request:
    request = write(engine_of(drafter), PROMPT, budget, **options(asked, sampling))
    assert result(request) == result(plain(asked, sampling)), (asked, sampling, budget)
    return request


# By identity


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_draft_changes_the_text(name: str) -> None:
    for asked in CONSTRAINTS:
        for sampling, budget in zip(SAMPLINGS, (8, 3, 16), strict=True):
            expect_plain(asked, sampling, script(name, asked, sampling), budget)


@pytest.mark.parametrize("asked", CONSTRAINTS)
def test_no_drafter_changes_the_text(asked: str) -> None:
    for sampling, budget in zip(SAMPLINGS, (8, 3, 16), strict=True):
        expect_plain(asked, sampling, mixture(), budget)


@pytest.mark.parametrize(("size", "chunk"), [(3, 7), (8, 64)])
def test_neighbours_with_other_grammars_or_none_change_nothing(size: int, chunk: int) -> None:
    cases = [(asked, sampling) for asked in CONSTRAINTS for sampling in SAMPLINGS]
    engine = engine_of(mixture(), chunk=chunk, num_slots=size)
    requests = {}
    for i, case in enumerate(cases):
        requests[case] = engine.submit(PROMPT, SamplingParams(**options(*case)), i % 9)  # type: ignore[arg-type]
        engine.submit(PROMPT[i:], SamplingParams(max_tokens=5 + i, temperature=1.0), 4)
        engine.step()  # they arrive one by one
    run(engine)
    for case, request in requests.items():
        assert result(request) == result(plain(*case)), case


def test_these_texts_are_worth_testing() -> None:
    """They satisfy their grammars, they end in every way, and drafts of them are accepted and rejected."""
    for asked, given in CONSTRAINTS.items():
        for sampling in SAMPLINGS:
            done = plain(asked, sampling)
            if "regex" in given:
                assert regex.fullmatch(given["regex"], done.text, partial=done.finish_reason is not FinishReason.STOP)
            elif done.finish_reason is FinishReason.STOP and "json_schema" in given:
                json.loads(done.text)
            assert expect_plain(asked, sampling, script("oracle", asked, sampling), 8).stats.tokens_per_step > 1.9
            assert expect_plain(asked, sampling, script("half right", asked, sampling), 8).stats.accepted_nodes > 0
    reasons = Counter(plain(asked, sampling).finish_reason for asked in CONSTRAINTS for sampling in SAMPLINGS)
    assert reasons[FinishReason.STOP] > 4
    assert reasons[FinishReason.LENGTH] > 1


def test_drafts_that_the_grammar_forbids_cost_no_row() -> None:
    asked = "a regex"
    request = expect_plain(asked, "greedy", ScriptDrafter(lambda context: [(0, 1), (0, 2), (1, 65)]), 8)
    assert request.stats.verified_rows == request.stats.target_passes


def test_what_the_grammar_forces_is_drafted_and_always_taken() -> None:
    request = expect_plain("a schema", "greedy", GrammarDrafter(8), 8)
    counts = request.stats.by_source["grammar"]
    assert counts.accepted == counts.proposed > 8
    assert request.stats.tokens_per_step > 1.5


# By an oracle that shares nothing with the engine but the noise


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("asked", ["a regex", "a regex with an end inside", "what begins at a marker"])
def test_the_text_is_that_of_naive_masked_decoding(asked: str, temperature: float) -> None:
    pattern = CONSTRAINTS[asked]["regex"]
    noise = SeededNoise(5)
    text: list[int] = []
    while len(text) < COUNT:
        logits = oracle_logits(MODEL, [*PROMPT, *text])
        so_far = bytes(text).decode()
        for token in range(VOCAB):
            if token in ENDS:
                possible = regex.fullmatch(pattern, so_far) is not None
            else:
                possible = regex.fullmatch(pattern, so_far + chr(token), partial=True) is not None
            logits[token] = logits[token] if possible else -math.inf
        if np.isinf(logits[:128]).all():
            break
        if temperature:
            logits += noise.contenders(np.zeros(VOCAB), len(PROMPT) + len(text), np.inf)[1]
        text.append(int(np.argmax(logits)))
        if text[-1] in ENDS:
            break
    sampling = {"temperature": temperature, "max_tokens": COUNT, "seed": 5, **CONSTRAINTS[asked]}
    for drafter, budget in ((None, 0), (mixture(), 8)):
        assert write(engine_of(drafter), PROMPT, budget, **sampling).output == text


# Speculative sampling


def test_residual_acceptance_keeps_the_distribution_under_a_grammar() -> None:
    """Texts of two letters, of which the second depends on the first: chi-square on 800 runs, false alarm 0.001."""
    pattern, runs = "a[bcd]|b[cd]|c[a-d]", 800
    logits, other = hashed_logits(VOCAB, 1.0, 1), hashed_logits(VOCAB, 1.0, 2)
    exact: dict[str, float] = {}
    for first in "abc":
        for second in "abcd":
            if regex.fullmatch(pattern, first + second):
                exact[first + second] = share(logits((1,)), first, "abc") * share(
                    logits((1, ord(first))), second, [c for c in "abcd" if regex.fullmatch(pattern, first + c)]
                )
    drafter = ModelDrafter(TableRunner(other, VOCAB), 3, 3, drawn)
    engine = make_engine(TableRunner(logits, VOCAB), drafter, rule=residual, end_ids=ENDS, token_bytes=token_bytes)
    counts = Counter(
        write(engine, (1,), 3, max_tokens=5, temperature=1.0, seed=seed, regex=pattern).text for seed in range(runs)
    )
    assert counts.keys() <= exact.keys()
    assert chisquare([counts[text] for text in exact], [runs * p for p in exact.values()]).pvalue > 0.001


def share(logits: np.ndarray, letter: str, among: Sequence[str]) -> float:
    weights = {other: math.exp(logits[ord(other)]) for other in among}
    return weights[letter] / sum(weights.values())


def test_residual_acceptance_at_temperature_0_writes_the_plain_text() -> None:
    for asked in CONSTRAINTS:
        drafter = ModelDrafter(tiny_runner(OTHER), 3, 5, drawn)
        request = write(engine_of(drafter, residual), PROMPT, 8, **options(asked, "greedy"))
        assert result(request) == result(plain(asked, "greedy"))


# Ends and refusals


def test_a_text_ends_with_its_grammar_without_an_end_token_even_where_the_model_has_none() -> None:
    for ends in (ENDS, ()):
        engine = make_engine(tiny_runner(MODEL), end_ids=ends, token_bytes=token_bytes)
        for limit, reason in ((3, FinishReason.STOP), (2, FinishReason.LENGTH)):
            request = write(engine, PROMPT, 0, max_tokens=limit, regex="[a-z]{3}")
            assert (len(request.output), request.finish_reason) == (limit, reason)
            assert request.text == bytes(request.output).decode()


def test_a_dead_end_ends_the_request_and_says_so_and_harms_no_neighbour() -> None:
    """The grammar asks for a control token, which no text has."""
    grammar = 'start: /[a-z]/ <[129]> "x"'
    engine = make_engine(tiny_runner(MODEL), mixture(), end_ids=(128,), token_bytes=token_bytes)
    other = engine.submit(PROMPT, SamplingParams(max_tokens=9), 4)
    request = engine.submit(PROMPT, SamplingParams(max_tokens=9, grammar=grammar), 4)
    run(engine)
    assert (len(request.output), request.finish_reason) == (1, FinishReason.GRAMMAR)
    assert (len(other.output), other.finish_reason) == (9, FinishReason.LENGTH)


def test_a_refused_schema_leaves_nothing_behind_and_the_rest_goes_on() -> None:
    engine = engine_of(mixture())
    other = engine.submit(PROMPT, SamplingParams(max_tokens=9), 4)
    engine.step()
    for asked in ({"json_schema": "{"}, {"regex": "("}, {"json_schema": '{"$ref": "#"}'}):
        with pytest.raises(ParameterError):
            engine.submit(PROMPT, SamplingParams(**asked), 4)
    run(engine)
    assert other.finish_reason is FinishReason.LENGTH
    assert not engine.scheduler.has_work


def test_twenty_schema_requests_with_baited_drafts_write_valid_json() -> None:
    """The prompt repeats what the schema forbids, where lookup finds it."""
    engine = engine_of(mixture(), num_slots=4)
    sampling = {"max_tokens": 60, "temperature": 0.7, **CONSTRAINTS["a schema"]}
    requests = [engine.submit(PROMPT, SamplingParams(seed=seed, **sampling), 6) for seed in range(20)]  # type: ignore[arg-type]
    run(engine)
    for request in requests:
        assert request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if request.finish_reason is FinishReason.STOP:
            value = json.loads(request.text)
            assert value["kind"] in ("bat", "bird", "cat")
            assert isinstance(value["n"], int)
    assert sum(request.finish_reason is FinishReason.STOP for request in requests) > 10


# Planted faults


def mask_of_the_root(self: TargetDistribution, logits: np.ndarray, path: Sequence[int]) -> None:
    CONSTRAIN(self, logits, ())


def mask_of_the_parent(self: TargetDistribution, logits: np.ndarray, path: Sequence[int]) -> None:
    CONSTRAIN(self, logits, path[:-1])


def never_back(self: GrammarConstraint, path: tuple[int, ...]) -> object:
    """Walks with the state itself: after a question it stands where the question led."""
    return None if self._matcher.try_consume_tokens(list(path)) != len(path) else self._matcher


def never_forward(self: GrammarConstraint, tokens: Sequence[int]) -> None:
    """Keeps the masks of the step before."""
    places = self._places
    ADVANCE(self, tokens)
    self._places = places


CONSTRAIN = TargetDistribution._constrain
ADVANCE = GrammarConstraint.advance
FAULTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "the root's mask for every node": (TargetDistribution, "_constrain", mask_of_the_root),
    "the parent's mask": (TargetDistribution, "_constrain", mask_of_the_parent),
    "a state that is not rolled back": (GrammarConstraint, "_walk", never_back),
    "masks of the step before": (GrammarConstraint, "advance", never_forward),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(asked, sampling, plain(asked, sampling)) for asked in CONSTRAINTS for sampling in SAMPLINGS]
    monkeypatch.setattr(*FAULTS[fault])
    caught = 0
    for asked, sampling, expected in cases:
        for name in ("oracle", "random graphs", "right, then wrong"):
            try:
                request = write(engine_of(script(name, asked, sampling)), PROMPT, 8, **options(asked, sampling))
                caught += result(request) != result(expected)
            except AssertionError:
                caught += 1
    assert caught > 3
