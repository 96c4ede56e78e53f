"""By statistics: with the real noise, over many seeds, tokens follow the exact distribution of filters and penalties.

Pass rule: a chi-square test at alpha 0.001 with N = 4000 seeds, and where it fails once more with 4000 other seeds; two
failures are a bug. For 9 cells a bias of total variation 0.05 is found with a probability of about 0.99 per test, and
0.97 for both; a right sampler fails both with odds of one in a million. Seeds are fixed, so a verdict is repeatable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from scipy.stats import chisquare

from draftgraph.config import SamplingParams
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ranking import coupled, drawn
from draftgraph.graph.budget import select
from draftgraph.graph.encode import children_by_token
from draftgraph.rng import Noise, SeededNoise
from draftgraph.runner.base import BlockUse
from draftgraph.types import Context, Drawn, MergeRule, TargetRows, TokenTree, VerifyBatch, Window
from draftgraph.verify.accept import Rule, Target, match, residual
from draftgraph.verify.distribution import SamplingContext, TargetDistribution
from support.rigs import TableRunner, make_engine, run, write

ALPHA, N = 0.001, 4000
VOCAB = 3
PROMPT = (2, 0)
_RNG = np.random.default_rng(3)
TARGET = _RNG.normal(0, 1.0, (VOCAB, VOCAB)).astype(np.float32)  # logits by the token before
DRAFT = (TARGET + _RNG.normal(0, 1.0, (VOCAB, VOCAB))).astype(np.float32)

Sampler = Callable[[int], tuple[int, ...]]  # seed -> what was drawn


def follows(sampler: Sampler, expected: dict[tuple[int, ...], float], count: int = N) -> bool:
    """The pass rule above."""
    return any(is_plausible(Counter(map(sampler, range(start, start + count))), expected) for start in (0, 1 << 40))


def is_plausible(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> bool:
    total = sum(counts.values())
    if any(text not in expected or expected[text] == 0 for text in counts):
        return False  # it wrote what has probability 0
    cells = [text for text, probability in expected.items() if probability > 0]
    if len(cells) == 1:
        return True
    return bool(chisquare([counts[t] for t in cells], [total * expected[t] for t in cells]).pvalue >= ALPHA)


def expected_probs(logits: np.ndarray, text: Sequence[int], sampling: SamplingParams) -> np.ndarray:
    """The next token's probabilities by the plainest code there is, after `text`, whose prompt is PROMPT."""
    values = [float(value) for value in logits]
    for token in range(VOCAB):
        if token in text:
            values[token] *= sampling.repetition_penalty ** (-1 if values[token] > 0 else 1)
        count = list(text[len(PROMPT) :]).count(token)
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
        values[token] += sampling.logit_bias.get(token, 0)
    weights = [np.exp(value / sampling.temperature) for value in values]
    ranked = sorted(range(VOCAB), key=lambda token: -weights[token])
    kept = ranked[: sampling.top_k or VOCAB]
    total = sum(weights[token] for token in kept)
    nucleus, mass = [], 0.0
    for token in kept:
        if mass < sampling.top_p:
            nucleus.append(token)
        mass += weights[token] / total
    nucleus = [token for token in nucleus if weights[token] >= sampling.min_p * weights[ranked[0]]]
    probs = np.array([weights[token] if token in nucleus else 0.0 for token in range(VOCAB)])
    return probs / probs.sum()


def expected_pairs(sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    first = expected_probs(TARGET[PROMPT[-1]], PROMPT, sampling)
    return {
        (a, b): float(first[a] * expected_probs(TARGET[a], (*PROMPT, a), sampling)[b])
        for a in range(VOCAB)
        for b in range(VOCAB)
    }


class LastTokenRunner:
    """A draft model whose logits depend on the token before alone; it has nothing to remember."""

    vocab_size, context_length, num_free_slots = VOCAB, 64, 1
    blocks = BlockUse(total=0, used=0, cached=0)

    def open(self, cache_salt: bytes = b"") -> int:
        return 0

    def blocks_needed(self, slot: int, num_nodes: int) -> int:
        return 0

    def reuse(self, slot: int, tokens: Sequence[int]) -> int:
        return 0

    def extend(self, batch: VerifyBatch) -> TargetRows:
        return TargetRows(tuple(DRAFT[ext.tokens[ext.first_row :]] for ext in batch.extensions))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        pass

    def release(self, slot: int) -> None:
        pass


def pair(
    seed: int, *, rule: Rule, sampling: SamplingParams, ranking: Callable[..., list] = coupled, width: int = 2,
    budget: int = 6, noise_of: Callable[[int], Noise] = SeededNoise,
) -> tuple[int, ...]:  # fmt: skip
    """Writes two tokens by draft, select and accept, step by step, as the engine does."""
    noise, text = noise_of(seed), PROMPT
    while len(text) < len(PROMPT) + 2:
        depth = len(PROMPT) + 1 - len(text)
        context = Context(0, text, noise, sampling.temperature, depth, MergeRule(0, same_depth=True))
        ((graph,),) = ModelDrafter(LastTokenRunner(), width, 8, ranking).propose([context], [budget])
        (tree,) = select([graph], [Window(np.array(text[-1:], np.int32), True, budget, depth, VOCAB)])
        target = TargetDistribution(TARGET[tree.tokens], tree, SamplingContext(text, len(PROMPT), sampling))
        text = (*text, *(token for token, _ in rule(tree, target, noise)))
    return text[len(PROMPT) :]


SAMPLINGS: dict[str, dict[str, object]] = {
    "temperature": {"temperature": 1.5},
    "top-k": {"temperature": 1.0, "top_k": 2},
    "top-p": {"temperature": 1.3, "top_p": 0.8},
    "min-p": {"temperature": 0.8, "min_p": 0.25},
    "repetition penalty": {"temperature": 1.0, "repetition_penalty": 1.6},
    "presence and frequency penalties": {"temperature": 1.0, "presence_penalty": 0.8, "frequency_penalty": 0.6},
    "a bias": {"temperature": 1.0, "logit_bias": {0: 0.7, 2: -100.0}},
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("rule", "ranking"), [(match, coupled), (residual, drawn)])
def test_two_tokens_follow_the_target(rule: Rule, ranking: Callable[..., list], name: str) -> None:
    sampling = SamplingParams(**SAMPLINGS[name])  # type: ignore[arg-type]
    assert follows(partial(pair, rule=rule, ranking=ranking, sampling=sampling), expected_pairs(sampling))


@pytest.mark.parametrize(("width", "budget"), [(1, 1), (1, 2), (2, 2), (3, 3), (3, 12)])
def test_draws_of_any_number_follow_the_target(width: int, budget: int) -> None:
    sampling = SamplingParams(temperature=1.0)
    sampler = partial(pair, rule=residual, ranking=drawn, sampling=sampling, width=width, budget=budget)
    assert follows(sampler, expected_pairs(sampling))


def test_the_draws_of_two_branches_do_not_decide_over_each_other() -> None:
    """Below 1 the first draw is 0 in 60% of cases, and what the draft model then expects pushes the draw below 0 out of
    the budget. If both were drawn with one noise, that draw would be kept only where it is 1.

    N = 1500; (0, 1) would have a probability of 0.35 instead of 0.25.
    """
    draft = {(): (0.51, 0.49), (0,): (0.51, 0.49), (1,): (0.6, 0.4), (1, 0): (1.0, 0.0), (0, 0): (1.0, 0.0)}

    def logits(text: tuple[int, ...]) -> np.ndarray:
        return np.log(np.maximum(draft.get(text[2:], (0.5, 0.5)), 1e-20))

    def sampler(seed: int) -> tuple[int, ...]:
        drafter = ModelDrafter(TableRunner(logits, 2), 2, 3, drawn)
        engine = make_engine(TableRunner(lambda text: np.zeros(2), 2), drafter, rule=residual, merge_length=0)
        request = engine.submit((0,), SamplingParams(max_tokens=5, temperature=1.0, seed=seed), 4)
        request.noise = AtFirst(seed)
        while request.num_written < 3:
            engine.step()
        return tuple(request.output[1:3])

    assert follows(sampler, {(a, b): 0.25 for a in (0, 1) for b in (0, 1)}, count=1500)


class AtFirst(SeededNoise):
    """The token at position 1 is always 0; all else is drawn as usual."""

    def choose(self, probs: np.ndarray, position: int) -> int:
        return 0 if position == 1 else super().choose(probs, position)


def test_requests_without_a_seed_draw_afresh() -> None:
    """D-EX-13, 2000 requests over 4 tokens, seeded by the system: the odds of a false alarm are one in a million."""
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    engine = make_engine(TableRunner(lambda text: np.log(probs), 4))

    def sampler(_: int) -> tuple[int, ...]:
        return tuple(write(engine, (0,), 0, max_tokens=1, temperature=1.0).output)

    assert follows(sampler, {(i,): float(p) for i, p in enumerate(probs)}, count=2000)
    serial = [write(engine, (0,), 0, max_tokens=16, temperature=1.0) for _ in range(20)]
    parallel = [engine.submit((0,), SamplingParams(max_tokens=16, temperature=1.0), 0) for _ in range(20)]
    run(engine)
    for requests in (serial, parallel):
        assert len({tuple(request.output) for request in requests}) >= 19
        assert len({request.seed for request in requests}) == 20


# Planted faults. Each must be caught.


def is_caught(rule: Rule = match, ranking: Callable[..., list] = coupled, **options: object) -> bool:
    sampling = SamplingParams(temperature=1.0)
    return not follows(
        partial(pair, rule=rule, ranking=ranking, sampling=sampling, **options), expected_pairs(sampling)
    )  # type: ignore[arg-type]


class OneLane(SeededNoise):
    """The fault: coins, drafts' draws and residual draws at a position share their randomness."""

    def _key(self, position: int, lane: int) -> np.uint64:
        return super()._key(position, 0)


class OneCoin(SeededNoise):
    """The fault: the coin of the second attempt is that of the first."""

    def coin(self, probability: float, position: int, attempt: int) -> bool:
        return super().coin(probability, position, 0)


class SamePosition(SeededNoise):
    """The fault: noise that does not depend on the position."""

    def _key(self, position: int, lane: int) -> np.uint64:
        return super()._key(0, lane)


def taken_as_one(tree: TokenTree, target: Target, noise: Noise) -> list[tuple[int, int]]:
    """The fault: a drawn child is accepted with target_prob alone, and the rest is max(target - draft, 0)."""
    children, walk, path, node = children_by_token(tree), [], [], tree.root
    while node >= 0:
        position, probs = target.position + len(path), target.probs(path)
        for token, child in children[node].items():
            draw = tree.draws[child]
            assert isinstance(draw, Drawn)
            if noise.coin(probs[token], position, draw.order):
                break
            rest = np.maximum(probs - draw.draft_prob, 0)
            probs = rest / rest.sum()
        else:
            token = noise.choose(probs, position)
        node = children[node].get(token, -1)
        walk.append((token, node))
        path.append(node)
    return walk


def test_faulty_samplers_are_caught() -> None:
    assert is_caught(noise_of=SamePosition)
    assert is_caught(residual, drawn, noise_of=OneLane)
    assert is_caught(residual, drawn, noise_of=OneCoin, width=3)
    assert is_caught(taken_as_one, drawn)
    assert is_caught(residual, drawn_from_another, width=1)


def drawn_from_another(*arguments: object) -> list:
    """The fault: a draw that carries another distribution than it was made from."""
    return [type(c)(c.token, c.acceptance, Drawn(np.full(VOCAB, 1 / VOCAB), c.draw.order)) for c in drawn(*arguments)]  # type: ignore[arg-type]


def test_the_gate_itself_rejects_a_bias_of_one_twentieth() -> None:
    expected = {(i,): 1 / 9 for i in range(9)}
    biased = np.full(9, 1 / 9) + np.array([1, -1] * 4 + [0]) * 0.0125
    rejected = sum(
        not follows(lambda seed, s=start: (int(np.random.default_rng([s, seed]).choice(9, p=biased)),), expected, 4000)
        for start in range(3)
    )
    assert rejected == 3
