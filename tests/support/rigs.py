"""Targets, drafters and engines whose truth is known, for the whole test suite.

`TableRunner` computes logits from a function of the text; `ScriptDrafter` proposes exactly what a test says; `oracle`
is a naive decoder that shares no code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter, NoDrafter, Proposals, root_graph
from draftgraph.draft.mixture import MixtureDrafter
from draftgraph.engine.engine import Engine
from draftgraph.engine.request import Request, Vocabulary
from draftgraph.errors import CapacityError
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.runner import kv, paged
from draftgraph.runner.base import BlockUse, Runner
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Context, TargetRows, Verdict, VerifyBatch
from draftgraph.verify.accept import Rule, match
from draftgraph.verify.grammar import Grammars
from support.tiny import random_weights, tiny_config

Logits = Callable[[tuple[int, ...]], np.ndarray]  # text -> [vocabulary]


class TableRunner:
    """A runner whose logits are a function of the whole text before each node. Its memory is never short."""

    blocks = BlockUse(total=0, used=0, cached=0)

    def __init__(self, logits: Logits, vocab_size: int, *, context_length: int = 256, num_slots: int = 8) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._logits = logits
        self._num_slots = num_slots
        self.texts: dict[int, tuple[int, ...]] = {}
        self._open: dict[int, list[tuple[int, ...]]] = {}
        self.num_passes = 0

    @property
    def num_free_slots(self) -> int:
        return self._num_slots - len(self.texts)

    def open(self, cache_salt: bytes = b"") -> int:
        if not self.num_free_slots:
            raise CapacityError("all slots", "fewer requests", "wait")
        slot = min(set(range(self._num_slots)) - set(self.texts))
        self.texts[slot], self._open[slot] = (), []
        return slot

    def blocks_needed(self, slot: int, num_nodes: int) -> int:
        return 0

    def reuse(self, slot: int, tokens: Sequence[int]) -> int:
        assert not self.texts[slot]
        return 0

    def extend(self, batch: VerifyBatch) -> TargetRows:
        self.num_passes += 1
        rows = []
        for slot, ext in zip(batch.slots, batch.extensions, strict=True):
            nodes = self._open[slot]
            first = len(nodes)
            for token, parent in zip(ext.tokens.tolist(), ext.parents.tolist(), strict=True):
                assert 0 <= token < self.vocab_size
                nodes.append((*(self.texts[slot] if parent < 0 else nodes[parent]), token))
                assert len(nodes[-1]) <= self.context_length, "a node lies beyond the context"
            wanted = nodes[first + ext.first_row :]
            rows.append(np.array([self._logits(text) for text in wanted], np.float32).reshape(-1, self.vocab_size))
        return TargetRows(tuple(rows))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        for node in path:
            assert self._open[slot][node][:-1] == self.texts[slot], "the committed nodes are not a path"
            self.texts[slot] = self._open[slot][node]
        self._open[slot].clear()

    def release(self, slot: int) -> None:
        del self.texts[slot], self._open[slot]

    def reset(self) -> None:
        self.texts.clear()
        self._open.clear()


# What to propose after a text: nodes as (parent, token), parent 0 being the root, 1 the first node, …
Script = Callable[[Context], Sequence[tuple[int, int]]]


class ScriptDrafter:
    """Proposes what the script says, whatever the budget is."""

    name = "script"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.ended: list[int] = []

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._graph(context),) for context in contexts]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        self.ended += [c.request for c, verdict in zip(contexts, verdicts, strict=True) if verdict.finish is not None]

    def restart(self) -> None:
        pass

    def _graph(self, context: Context) -> TokenGraph:
        graph = root_graph(context)
        nodes = [0]
        for parent, token in self._script(context):
            nodes.append(graph.add(nodes[parent], token, "script", 0.9))
        return graph


def chain(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """A script's answer that proposes these tokens one after the other."""
    return list(enumerate(tokens))


def follow(text: Sequence[int], length: int) -> Script:
    """The oracle: the next `length` tokens of a text known in advance."""
    return lambda context: chain(text[len(context.tokens) : len(context.tokens) + length])


BYTES = Vocabulary(256, frozenset(), lambda token: bytes([token]))  # R-BYTE


def make_engine(
    runner: Runner,
    drafter: Drafter | None = None,
    *,
    rule: Rule = match,
    end_ids: Sequence[int] = (),
    token_bytes: Callable[[int], bytes] = lambda token: bytes([token % 256]),
    prefill_chunk: int = 64,
    merge_length: int = 2,
    encode: Callable[[str], list[int]] = lambda text: list(text.encode()),
) -> Engine:
    grammars = Grammars(runner.vocab_size, end_ids, token_bytes, encode)
    vocabulary = Vocabulary(runner.vocab_size, frozenset(end_ids), token_bytes, grammars.constrain)
    return Engine(
        runner, drafter or NoDrafter(), rule, vocabulary, merge_length=merge_length, prefill_chunk=prefill_chunk
    )


def run(engine: Engine, *requests: Request) -> list[list[int]]:
    """Steps the engine until all its work is done. Returns what each request wrote."""
    while engine.scheduler.has_work:
        engine.step()
        engine.scheduler.check()
    return [request.output for request in requests]


def write(engine: Engine, prompt: Sequence[int], budget: int = 8, **sampling: object) -> Request:
    """Runs one request to its end and returns it."""
    request = engine.submit(prompt, SamplingParams(**sampling), budget)  # type: ignore[arg-type]
    run(engine, request)
    return request


def tiny_model(seed: int = 0, **overrides: object) -> tuple[ModelConfig, ModelWeights]:
    """R-TINY: a random two-layer model."""
    config = tiny_config(**overrides)  # type: ignore[arg-type]
    return config, random_weights(config, seed=seed)


def tiny_runner(
    model: tuple[ModelConfig, ModelWeights], *, context_length: int = 256, num_slots: int = 8, num_cells: int = 0
) -> ReferenceRunner:
    config, weights = model
    return ReferenceRunner(
        config,
        weights,
        vocab_size=config.vocab_rows,
        context_length=context_length,
        num_slots=num_slots,
        max_open=640,
        num_cells=num_cells,
    )


def set_block(patch: pytest.MonkeyPatch, size: int) -> None:
    """Makes blocks of `size` cells, so that short texts have many."""
    for module in (kv, paged):
        patch.setattr(module, "BLOCK", size)


def oracle_logits(model: tuple[ModelConfig, ModelWeights], tokens: Sequence[int]) -> np.ndarray:
    """The logits after `tokens`, by a naive float64 forward pass over the whole text: no cache, no shared kernels."""
    config, weights = model
    x = weights.embedding.astype(np.float64)[list(tokens)] * config.embedding_scale
    n, half = len(tokens), config.rope_dim // 2
    distance = np.subtract.outer(np.arange(n), np.arange(n))

    def norm(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        if weight is None:
            return values
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + config.norm_eps) * weight

    def rotate(values: np.ndarray, base: float) -> np.ndarray:
        angle = np.outer(np.arange(n), base ** (-np.arange(half) * 2 / config.rope_dim))
        turn = np.exp(1j * angle)[:, None, :]
        if config.rope_interleaved:
            turned = (values[..., 0::2] + 1j * values[..., 1::2]) * turn
            return np.stack([turned.real, turned.imag], -1).reshape(values.shape)
        turned = (values[..., :half] + 1j * values[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], -1)

    def bias(value: np.ndarray | None) -> np.ndarray | float:
        return 0.0 if value is None else value

    def gate(values: np.ndarray) -> np.ndarray:
        """SiLU, or GELU in its tanh form; (1 + tanh(z)) / 2 is the logistic function of 2z."""
        z = values if config.activation == "silu" else math.sqrt(8 / math.pi) * (values + 0.044715 * values**3)
        return values / (1 + np.exp(-z))

    for index, layer in enumerate(weights.layers):
        span = config.windows[index] if config.windows else 0
        base = config.local_rope_base if span and config.local_rope_base else config.rope_base
        h = norm(x, layer.attn_norm)
        q = (h @ layer.q.T + bias(layer.q_bias)).reshape(n, config.num_heads, -1)
        k = (h @ layer.k.T + bias(layer.k_bias)).reshape(n, config.num_kv_heads, -1)
        q, k = rotate(norm(q, layer.q_norm), base), rotate(norm(k, layer.k_norm), base)
        v = (h @ layer.v.T + bias(layer.v_bias)).reshape(n, config.num_kv_heads, -1)
        group = config.num_heads // config.num_kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) * (config.attention_scale or 1 / math.sqrt(config.head_dim))
        scores[:, (distance < 0) | (distance >= (span or n))] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + norm(np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1) @ layer.o.T, layer.post_attn_norm)
        h = norm(x, layer.ffn_norm)
        x = x + norm((gate(h @ layer.gate.T) * (h @ layer.up.T)) @ layer.down.T, layer.post_ffn_norm)
    return norm(x, weights.final_norm)[-1] @ weights.head.T.astype(np.float64)


def oracle_greedy(model: tuple[ModelConfig, ModelWeights], prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding by `oracle_logits`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(oracle_logits(model, tokens))))
    return tokens[len(prompt) :]


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def small_model(family: str = "llama", *, tied: bool = True, seed: int = 0) -> tuple[ModelConfig, ModelWeights]:
    """A random two-layer model of 96 tokens, small enough for hundreds of runs."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "vocab_rows": 96}
    config = tiny_config(family, **shape)
    return config, random_weights(config, seed=seed, tied=tied)


def hashed_logits(vocab_size: int, spread: float = 2.0, seed: int = 0) -> Logits:
    """Logits that look random and depend on every token of the text."""
    return lambda text: np.random.default_rng([seed, *text]).normal(0, spread, vocab_size)


def scripts(text: Sequence[int], vocab_size: int) -> dict[str, Script]:
    """Drafters of every kind for a text known in advance, prompt included, by name."""

    def right(position: int) -> int:
        return text[position] if position < len(text) else 0

    def wrong(position: int) -> int:
        return (right(position) + 1) % vocab_size

    def line(token_at: Callable[[int], int], length: int) -> Script:
        return lambda context: chain([token_at(len(context.tokens) + i) for i in range(length)])

    def outside(context: Context) -> list[tuple[int, int]]:
        here = len(context.tokens)
        return [
            (0, vocab_size),
            (0, -1),
            (0, 2**40),
            (0, right(here)),
            (4, vocab_size),
            (4, right(here + 1)),
            (1, right(here + 1)),
        ]

    def doubled(context: Context) -> list[tuple[int, int]]:
        here = len(context.tokens)
        return [
            (0, right(here)),
            (0, right(here)),
            (0, wrong(here)),
            (1, right(here + 1)),
            (2, right(here + 1)),
            (2, 0),
        ]

    def random_graph(context: Context) -> list[tuple[int, int]]:
        rng, here = np.random.default_rng(len(context.tokens)), len(context.tokens)
        tokens = [right(here + int(rng.integers(5))) if rng.random() < 0.7 else int(rng.integers(4)) for _ in range(24)]
        return [(int(rng.integers(max(0, i - 6), i + 1)), token) for i, token in enumerate(tokens)]

    return {
        "oracle": line(right, 6),
        "always wrong": line(wrong, 6),
        "half right": line(lambda position: right(position) if position % 2 else wrong(position), 6),
        "right, then wrong": lambda context: chain([right(len(context.tokens)), *[wrong(len(context.tokens) + 1)] * 3]),
        "text of another prompt": line(lambda position: right(position * 7 % len(text)), 6),
        "one token repeated": line(lambda position: right(len(text) - 1), 6),
        "duplicates": doubled,
        "outside the vocabulary": outside,
        "longer than any budget": line(right, 60),
        "random graphs": random_graph,
    }


def mixture(*members: Drafter) -> MixtureDrafter:
    """All of these, always asked."""
    return MixtureDrafter({f"{i} {type(member).__name__}": member for i, member in enumerate(members)})


def looks_at_neighbours(extend: Callable[[ReferenceRunner, VerifyBatch], TargetRows]) -> Callable[..., TargetRows]:
    """A fault to plant: `extend`, but the rows of a tree of several depend on how many there are."""

    def faulty(self: ReferenceRunner, batch: VerifyBatch) -> TargetRows:
        rows = extend(self, batch).rows
        return TargetRows(tuple(part if len(part) < 2 else part[:, ::-1].copy() for part in rows))

    return faulty
