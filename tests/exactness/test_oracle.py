"""Against independent truth: a naive decoder without cache, and each node's own path run alone, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.runner.base import Runner
from draftgraph.types import Extension, FloatArray, VerifyBatch
from support.rigs import (
    ScriptDrafter,
    make_engine,
    oracle_greedy,
    oracle_logits,
    scripts,
    small_model,
    tiny_runner,
    write,
)
from support.tiny import random_weights, tiny_config

PROMPT = (5, 9, 33, 5, 9, 70, 2, 5, 9)


@functools.cache
def model(name: str) -> tuple[ModelConfig, ModelWeights]:
    if name == "interleaved":
        config = tiny_config(hidden_size=32, intermediate_size=48, head_dim=8, vocab_rows=96, rope_interleaved=True)
        return config, random_weights(config, seed=4)
    if name == "half rotated":
        config = tiny_config(
            hidden_size=32, intermediate_size=48, head_dim=8, vocab_rows=96, rope_dim=4, num_kv_heads=4
        )
        return config, random_weights(config, seed=5, tied=False)
    if name == "scaled scores":
        config = tiny_config(
            "gemma3", hidden_size=32, intermediate_size=48, head_dim=8, vocab_rows=96, attention_scale=0.25
        )
        return config, random_weights(config, seed=4)
    return small_model(name, tied=name == "llama", seed=1)


NAMES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "interleaved", "scaled scores"]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_ids_are_those_of_a_decoder_without_cache(name: str) -> None:
    truth = oracle_greedy(model(name), PROMPT, 24)
    assert len(set(truth)) > 4, "a text of one token tests little"
    plain = write(make_engine(tiny_runner(model(name))), PROMPT, 0, max_tokens=24)
    assert plain.output == truth
    for script in scripts((*PROMPT, *truth), 96).values():
        engine = make_engine(tiny_runner(model(name)), ScriptDrafter(script), prefill_chunk=4)
        assert write(engine, PROMPT, 8, max_tokens=24).output == truth


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_a_naive_forward_pass_up_to_rounding(name: str) -> None:
    rows = alone(tiny_runner(model(name)), PROMPT)
    for length in range(1, len(PROMPT) + 1):
        np.testing.assert_allclose(rows[length - 1], oracle_logits(model(name), PROMPT[:length]), atol=2e-4, rtol=1e-4)


def extension(tokens: Sequence[int], parents: Sequence[int], first_row: int = 0) -> Extension:
    return Extension(np.asarray(tokens, np.int32), np.asarray(parents, np.int32), first_row)


def alone(runner: Runner, tokens: Sequence[int]) -> FloatArray:
    """The logits after every token of a text that is fed one token at a time into a slot of its own."""
    slot, rows = runner.open(), []
    for token in tokens:
        rows.append(runner.extend(VerifyBatch((slot,), [extension([token], [-1])])).rows[0][0])
        runner.commit(slot, [0])
    runner.release(slot)
    return np.array(rows)


def text_of(tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    text: list[int] = []
    while node >= 0:
        text.insert(0, tokens[node])
        node = parents[node]
    return text


TREES = st.lists(st.tuples(st.integers(0, 95), st.integers(0, 100)), min_size=1, max_size=14).map(
    lambda nodes: ([token for token, _ in nodes], [pick % (i + 1) - 1 for i, (_, pick) in enumerate(nodes)])
)
TEXTS = st.lists(st.integers(0, 95), max_size=20)


@pytest.mark.parametrize("name", [*NAMES, "half rotated"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    trees=st.lists(TREES, min_size=1, max_size=4), texts=st.lists(TEXTS, min_size=4, max_size=4), cut=st.integers(0, 14)
)
def test_every_node_s_logits_are_those_of_its_own_path_alone_bit_for_bit(
    name: str, trees: list[tuple[list[int], list[int]]], texts: list[list[int]], cut: int
) -> None:
    """Several slots with texts of several lengths, whole trees in one call, and the same trees in two calls."""
    runner = tiny_runner(model(name))
    slots = [runner.open() for _ in trees]
    for slot, text in zip(slots, texts, strict=False):
        if text:
            runner.extend(VerifyBatch((slot,), [extension(text, range(-1, len(text) - 1), len(text))]))
            runner.commit(slot, range(len(text)))
    whole = runner.extend(VerifyBatch(tuple(slots), [extension(*tree) for tree in trees])).rows
    for slot in slots:
        runner.commit(slot, [])
    halves: list[list[FloatArray]] = [[] for _ in trees]
    for start, end in ((0, cut), (cut, 99)):
        part = [(i, t[start:end], p[start:end]) for i, (t, p) in enumerate(trees) if t[start:end]]
        if part:
            batch = VerifyBatch(tuple(slots[i] for i, _, _ in part), [extension(t, p) for _, t, p in part])
            for (i, _, _), rows in zip(part, runner.extend(batch).rows, strict=True):
                halves[i].append(rows)
    reference = tiny_runner(model(name))
    for i, (tokens, parents) in enumerate(trees):
        np.testing.assert_array_equal(np.concatenate(halves[i]), whole[i])
        for node in range(len(tokens)):
            path = [*texts[i], *text_of(tokens, parents, node)]
            np.testing.assert_array_equal(alone(reference, path)[-1], whole[i][node])


def test_siblings_and_cousins_are_invisible() -> None:
    runner = tiny_runner(model("qwen2"))
    slot = runner.open()
    tokens, parents = [7, 8, 9, 10, 11, 12], [-1, 0, 0, 1, 2, 3]  # 7 → (8 → 10 → 12, 9 → 11)
    rows = runner.extend(VerifyBatch((slot,), [extension(tokens, parents)])).rows[0]
    runner.commit(slot, [])
    changed = runner.extend(VerifyBatch((slot,), [extension([7, 8, 50, 10, 51, 12], parents)])).rows[0]
    for node in (0, 1, 3, 5):
        np.testing.assert_array_equal(rows[node], changed[node])
    assert not np.array_equal(rows[2], changed[2])


def test_a_position_is_the_committed_length_plus_the_depth() -> None:
    """The last of eight siblings stands where the first one stands, not seven places further."""
    runner = tiny_runner(model("llama"))
    slot = runner.open()
    rows = runner.extend(VerifyBatch((slot,), [extension([3] * 8, [-1] * 8)])).rows[0]
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])
    runner.commit(slot, [0])
    after = runner.extend(VerifyBatch((slot,), [extension([4, 5, 4, 5], [-1, 0, -1, 2])])).rows[0]
    np.testing.assert_array_equal(after[1], after[3])
    np.testing.assert_array_equal(after[1], alone(tiny_runner(model("llama")), [3, 4, 5])[-1])


def test_rows_do_not_depend_on_how_many_are_computed_together() -> None:
    runner = tiny_runner(model("qwen2"))
    slot = runner.open()
    chain = [int(token) for token in np.random.default_rng(0).integers(0, 96, 64)]
    together = runner.extend(VerifyBatch((slot,), [extension(chain, range(-1, 63))])).rows[0]
    np.testing.assert_array_equal(together, alone(tiny_runner(model("qwen2")), chain))
    for first_row in (1, 63, 64):
        runner.commit(slot, [])
        rows = runner.extend(VerifyBatch((slot,), [extension(chain, range(-1, 63), first_row)])).rows[0]
        np.testing.assert_array_equal(rows, together[first_row:])
