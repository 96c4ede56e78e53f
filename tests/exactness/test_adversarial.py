"""Single faults that other engines had, each provoked where it would show.

Ties, filters and penalties inside a block, seeds, extreme parameters, graphs that merge.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ranking import drawn
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.engine.request import Request
from draftgraph.graph.budget import select
from draftgraph.graph.encode import path_to
from draftgraph.graph.token_graph import TokenGraph, merge
from draftgraph.types import MergeRule, Window
from draftgraph.verify.accept import match, residual
from support.rigs import (
    Logits,
    Script,
    ScriptDrafter,
    TableRunner,
    chain,
    follow,
    hashed_logits,
    make_engine,
    mixture,
    run,
    write,
)

VOCAB = 12


def one(
    logits: Logits, script: Script | Drafter | None, budget: int, vocab: int = VOCAB, **sampling: object
) -> Request:
    drafter = ScriptDrafter(script) if callable(script) else script
    return write(make_engine(TableRunner(logits, vocab), drafter), (0, 1), budget, **sampling)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("rule", [match, residual])
def test_a_tie_goes_to_the_lowest_id_whatever_is_drafted(gap: float, rule: object) -> None:
    """D-EX-20: the target's choice at each rank among the siblings, or absent."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        values = np.zeros(VOCAB)
        best = len(text) % 5
        values[[best, best + 3, best + 6]] = 1.0, 1.0 - gap, 1.0 - gap
        return values

    wanted = one(logits, None, 0, max_tokens=12).output
    assert wanted == [(2 + i) % 5 for i in range(12)]
    for width, shift in itertools.product(range(1, 9), range(12)):
        drafter = ScriptDrafter(
            lambda context, w=width, s=shift: [(0, (len(context.tokens) + s + i) % VOCAB) for i in range(w)]
        )
        engine = make_engine(TableRunner(logits, VOCAB), drafter, rule=rule)  # type: ignore[arg-type]
        assert write(engine, (0, 1), width, max_tokens=12).output == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("block", [1, 4, 8])
def test_filters_and_biases_hold_at_every_drafted_position(block: int, temperature: float) -> None:
    """D-EX-10: a banned token that the drafter keeps proposing, one that is forced, filters on a nearly flat target."""
    target = hashed_logits(VOCAB, spread=0.5)
    banned = ScriptDrafter(lambda context: chain([4] * block))
    request = one(target, banned, 8, max_tokens=40, temperature=temperature, seed=1, logit_bias={4: -100.0})
    assert 4 not in request.output
    assert len(set(request.output)) > 4
    forced = one(target, banned, block, max_tokens=40, temperature=temperature, seed=1, logit_bias={4: 100.0})
    assert forced.output == [4] * 40
    assert forced.stats.target_passes == -(-39 // (block + 1))
    for options in ({"min_p": 0.8}, {"top_k": 2}, {"top_p": 0.3}):
        plain = one(target, None, 0, max_tokens=40, temperature=temperature, seed=1, **options).output
        drafted = one(
            target, follow((0, 1, *plain), block), block, max_tokens=40, temperature=temperature, seed=1, **options
        )
        assert drafted.output == plain
        assert drafted.stats.target_passes <= -(-39 // (block + 1)), "blocks are accepted whole"
        for i, token in enumerate(plain if temperature else ()):
            logits = np.float32(target((0, 1, *plain[:i])))
            rank = sorted(logits, reverse=True).index(logits[token])
            assert rank < 2 or "top_k" not in options
            assert np.exp(logits[token] - logits.max()) >= 0.8 - 1e-6 or "min_p" not in options


@pytest.mark.parametrize("options", [
    {"frequency_penalty": 1.0}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.3}, {"frequency_penalty": -1.0},
    {"frequency_penalty": 0.3, "presence_penalty": 0.2, "repetition_penalty": 1.1},
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_count_every_token_of_a_block(options: dict[str, object], temperature: float) -> None:
    """D-EX-11: fully accepted blocks of 1, 4 and 8 write what single tokens write, and what the definition says."""
    ramp = np.linspace(1, 0.4, VOCAB)

    def penalised(tokens: list[int]) -> np.ndarray:
        values = ramp.astype(np.float32).astype(float)
        for token in range(VOCAB):
            if token in tokens:
                values[token] /= float(options.get("repetition_penalty", 1.0))  # type: ignore[arg-type]
            count = tokens[2:].count(token)
            values[token] -= count * float(options.get("frequency_penalty", 0.0))  # type: ignore[arg-type]
            values[token] -= (count > 0) * float(options.get("presence_penalty", 0.0))  # type: ignore[arg-type]
        return values

    common = {"max_tokens": 36, "temperature": temperature, "seed": 3, **options}
    plain = one(lambda text: ramp, None, 0, **common)
    if temperature == 0 and "repetition_penalty" not in options:
        tokens = [0, 1]
        for _ in range(36):
            tokens.append(int(np.argmax(penalised(tokens))))
        assert plain.tokens == tokens
    for block in (1, 4, 8):
        drafted = one(lambda text: ramp, follow(plain.tokens, block), block, **common)
        assert drafted.output == plain.output
        assert drafted.stats.target_passes <= -(-35 // (block + 1))


def test_siblings_do_not_count_in_each_other_s_penalties() -> None:
    """Two branches hold different tokens; only a path's own ancestors count on it."""
    ramp = np.linspace(1, 0.4, VOCAB)
    options = {"max_tokens": 30, "frequency_penalty": 0.35, "presence_penalty": 0.1}
    plain = one(lambda text: ramp, None, 0, **options)

    def bushy(context: object) -> list[tuple[int, int]]:
        right = plain.tokens[len(context.tokens) :][:4]  # type: ignore[attr-defined]
        nodes: list[tuple[int, int]] = []
        parent = 0
        for token in right:
            nodes += [(parent, (token + 1) % VOCAB), (parent, token), (len(nodes) + 1, token), (len(nodes) + 1, 5)]
            parent = len(nodes) - 2
        return nodes

    assert one(lambda text: ramp, bushy, 16, **options).output == plain.output


def test_a_seed_gives_one_text_and_another_seed_another() -> None:
    """D-EX-12: alone, with neighbours, in a new engine; at temperature 2."""
    drafter = functools.partial(RecycleDrafter, 6)
    texts = set()
    for neighbours, _ in itertools.product((0, 3), range(3)):
        engine = make_engine(TableRunner(hashed_logits(VOCAB), VOCAB), drafter())
        for i in range(neighbours):
            engine.submit((i, 2), SamplingParams(max_tokens=9, temperature=2.0), 4)
        request = engine.submit((0, 1), SamplingParams(max_tokens=24, temperature=2.0, seed=42), 5)
        run(engine)
        texts.add(tuple(request.output))
    assert len(texts) == 1
    others = {
        tuple(one(hashed_logits(VOCAB), None, 0, max_tokens=24, temperature=2.0, seed=s).output) for s in range(20)
    }
    assert len(others) == 20
    for seed in (0, 2**63 - 1):
        assert len(set(one(hashed_logits(VOCAB), None, 0, max_tokens=24, temperature=2.0, seed=seed).output)) > 3


def test_no_noise_is_used_twice_in_a_text() -> None:
    """A flat target writes the noise itself: with one draw for a block, or per step, its tokens would repeat."""
    plain = one(lambda text: np.zeros(64), None, 0, vocab=64, max_tokens=120, temperature=1.0, seed=0).output
    assert len(set(plain)) > 45
    drafted = one(
        lambda text: np.zeros(64), follow((0, 1, *plain), 7), 7, vocab=64, max_tokens=120, temperature=1.0, seed=0
    )
    assert drafted.output == plain
    assert drafted.stats.target_passes == 15


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-300, 5e-324])
@pytest.mark.parametrize("rule", [match, residual])
def test_a_temperature_close_to_zero_is_greedy(temperature: float, rule: object) -> None:
    greedy = one(hashed_logits(VOCAB), None, 0, max_tokens=20).output
    for budget in (0, 6):
        drafter = mixture(
            RecycleDrafter(4),
            ModelDrafter(
                TableRunner(hashed_logits(VOCAB), VOCAB), 2, 3, **({} if rule is match else {"ranking": drawn})
            ),
        )
        engine = make_engine(TableRunner(hashed_logits(VOCAB), VOCAB), drafter, rule=rule)  # type: ignore[arg-type]
        assert write(engine, (0, 1), budget, max_tokens=20, temperature=temperature, seed=1).output == greedy


EXTREMES: list[dict[str, object]] = [
    {"temperature": 100.0},
    {"temperature": 1.0, "top_p": 1e-12},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 10**9},
    {"temperature": 1.0, "logit_bias": dict.fromkeys(range(VOCAB), -1000.0)},
    {"temperature": 1.0, "frequency_penalty": 100.0, "presence_penalty": -100.0},
    {"temperature": 1.0, "repetition_penalty": 1e-3},
    {"temperature": 0.01, "logit_bias": {0: 1000.0, 1: -1000.0}},
]


@pytest.mark.parametrize("rule", [match, residual])
@pytest.mark.parametrize("options", EXTREMES)
def test_extreme_parameters_are_taken_at_their_word(options: dict[str, object], rule: object) -> None:
    texts = []
    for budget in (0, 6):
        drafter = mixture(RecycleDrafter(4), ScriptDrafter(lambda context: chain([3, 3, 3])))
        engine = make_engine(TableRunner(hashed_logits(VOCAB), VOCAB), drafter, rule=rule)  # type: ignore[arg-type]
        texts.append(write(engine, (0, 1), budget, max_tokens=20, seed=1, **options).output)
    assert texts[0] == texts[1]
    if {"top_k": 1}.items() <= options.items() or "top_p" in options or options.get("min_p") == 1.0:
        assert texts[0] == one(hashed_logits(VOCAB), None, 0, max_tokens=20).output


@pytest.mark.parametrize("ranking", ["coupled", "drawn"])
def test_a_draft_model_that_is_sure_of_one_token_does_no_harm(ranking: str) -> None:
    """Its other candidates have a probability of 0 in float64, or close to it."""

    def sure(text: tuple[int, ...]) -> np.ndarray:
        return np.where(np.arange(VOCAB) == len(text) % VOCAB, 800.0, -np.arange(VOCAB, dtype=float))

    for seed in range(20):
        options = {"ranking": drawn} if ranking == "drawn" else {}
        engine = make_engine(
            TableRunner(hashed_logits(VOCAB), VOCAB), ModelDrafter(TableRunner(sure, VOCAB), 4, 3, **options),
            rule=residual if ranking == "drawn" else match,
        )  # fmt: skip
        request = write(engine, (0, 1), 8, max_tokens=12, temperature=1.0, seed=seed)
        assert request.num_written == 12


NODES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.floats(0.01, 1)), max_size=20)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    graphs=st.lists(NODES, min_size=1, max_size=3),
    length=st.integers(0, 3),
    same_depth=st.booleans(),
    budget=st.integers(0, 30),
)
def test_a_graph_is_unrolled_into_its_own_paths(
    graphs: list[list[tuple[int, int, float]]], length: int, same_depth: bool, budget: int
) -> None:
    """Whatever merges: the graph stays acyclic and keeps every proposed path; the tree holds paths of it, each once."""
    built, proposed = [], set()
    for nodes in graphs:
        graph, ids, paths = TokenGraph((1, 0), MergeRule(length, same_depth)), [0], [()]
        for parent, token, acceptance in nodes:
            parent %= len(ids)
            ids.append(graph.add(ids[parent], token, "script", acceptance))
            paths.append((*paths[parent], token))
        proposed |= set(paths)
        built.append(graph)
    (merged,) = merge([built])
    merged.check()
    for path in proposed:
        node = 0
        for token in path:
            node = merged.children[node][token].child
    (tree,) = select([merged], [Window(np.zeros(1, np.int32), True, budget, 5, 3)])
    assert tree.num_drafts <= budget
    texts = [tuple(tree.tokens[path_to(tree.parents, node)].tolist()) for node in range(len(tree.tokens))]
    assert len(set(texts)) == len(texts)
    assert all(len(text) <= 6 for text in texts)
    assert list(tree.path_acceptance) == sorted(tree.path_acceptance, reverse=True)
    for node in range(1, len(tree.tokens)):
        up = tree.graph_nodes[int(tree.parents[node])]
        assert merged.children[up][int(tree.tokens[node])].child == tree.graph_nodes[node]
