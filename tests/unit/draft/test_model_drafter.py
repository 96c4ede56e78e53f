"""The draft model: what it computes, and no more than that; what it proposes, and how that was drawn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2

from draftgraph.config import SamplingParams
from draftgraph.draft.base import GrowToBudget, Proposals, root_graph
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ranking import Ranking, coupled, drawn
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.rng import Greedy, SeededNoise
from draftgraph.types import Context, FinishReason, MergeRule, TargetRows, Verdict, VerifyBatch, Window
from support.rigs import Logits, TableRunner, make_engine, run, write

VOCAB = 12
Text = tuple[int, ...]


def random_logits(seed: int, memory: int = 3, vocab: int = VOCAB) -> Logits:
    """Logits that depend on the last `memory` tokens."""

    def logits(text: Text) -> np.ndarray:
        return np.random.default_rng([seed, *text[-memory:]]).normal(0, 2, vocab)

    return logits


class CountingRunner(TableRunner):
    """Remembers the text of every node it computed, pass by pass, and the size of each extension."""

    def __init__(self, logits: Logits, **options: int) -> None:
        super().__init__(logits, VOCAB, **options)
        self.computed: list[Text] = []
        self.sizes: list[int] = []

    def extend(self, batch: VerifyBatch) -> TargetRows:
        before = {slot: len(self._open[slot]) for slot in batch.slots}
        rows = super().extend(batch)
        for slot, ext in zip(batch.slots, batch.extensions, strict=True):
            self.computed += self._open[slot][before[slot] :]
            self.sizes.append(len(ext.tokens))
        return rows


def context(tokens: Sequence[int], request: int = 0, *, max_depth: int = 50, merge: int = 0, seed: int = -1) -> Context:
    """Greedy, or with `seed` at temperature 1."""
    sampled = seed >= 0
    noise = SeededNoise(seed) if sampled else Greedy()
    return Context(request, tokens, noise, float(sampled), max_depth, MergeRule(merge, same_depth=sampled))


ROOT = (root_graph(context([1])), 0)


def verdict(about: Context, tokens: Sequence[int], finish: FinishReason | None = None) -> Verdict:
    (tree,) = select([root_graph(about)], [Window(np.asarray(about.tokens[-1:], np.int32), True, 0, 0, VOCAB)])
    return Verdict(tree, tuple(tokens), (-1,) * len(tokens), (0,), finish, np.zeros((1, 0), np.int32))


def propose(drafter: ModelDrafter, about: Context, budget: int = 8) -> TokenGraph:
    ((graph,),) = drafter.propose([about], [budget])
    graph.check()
    return graph


def texts(graph: TokenGraph, known: Sequence[int]) -> list[Text]:
    """Every node's text along first parents."""
    found = [tuple(known)]
    for node in range(1, len(graph)):
        found.append((*found[graph.parents[node]], graph.tokens[node]))
    return found


# What it computes


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_chain_costs_one_pass_for_each_level_and_no_pass_for_its_leaf(depth: int) -> None:
    runner = CountingRunner(random_logits(0))
    graph = propose(ModelDrafter(runner, width=1, depth=depth), context([1, 2, 3]))
    assert graph.num_drafted == depth
    assert runner.num_passes == depth
    assert runner.computed == [(1,), (1, 2), *texts(graph, [1, 2, 3])[:-1]]
    favourites = [int(np.argmax(random_logits(0)(text))) for text in texts(graph, [1, 2, 3])[:-1]]
    assert graph.tokens[1:] == favourites


def test_many_requests_share_each_pass_and_do_not_disturb_each_other() -> None:
    alone = [propose(ModelDrafter(CountingRunner(random_logits(0)), 2, 4), context([1, n])) for n in range(3)]
    runner = CountingRunner(random_logits(0))
    together = ModelDrafter(runner, 2, 4).propose([context([1, n], request=n) for n in range(3)], [8, 8, 8])
    assert runner.num_passes == 4
    for one, (other,) in zip(alone, together, strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("merge", [0, 1])
def test_no_more_nodes_are_computed_than_can_be_verified(budget: int, width: int, merge: int) -> None:
    for seed in range(5):
        runner = CountingRunner(random_logits(seed))
        graph = propose(ModelDrafter(runner, width, depth=6), context([1, 2], merge=merge), budget)
        assert len(runner.computed) - 1 <= budget  # the known token before the root is not a node
        assert len(set(runner.computed)) == len(runner.computed)
        assert set(runner.computed[1:]) <= set(texts(graph, [1, 2]))


def test_a_budget_of_nothing_costs_nothing() -> None:
    runner = CountingRunner(random_logits(0))
    assert propose(ModelDrafter(runner, 2, 4), context([1, 2]), budget=0).num_drafted == 0
    assert runner.num_passes == 0
    assert propose(ModelDrafter(runner, 2, 4), context([1, 2], max_depth=0)).num_drafted == 0
    assert not runner.texts, "a slot was opened for nothing"


def test_a_hypothesis_that_merges_costs_no_forward_pass() -> None:
    def logits(text: Text) -> np.ndarray:
        row = np.full(VOCAB, -20.0)
        row[{1: [2, 3], 2: [4, 5], 3: [4, 5]}.get(text[-1], [6])] = 0.0  # 2 and 3 are followed by the same tokens
        return row

    counts = {}
    for merge in (0, 1):
        runner = CountingRunner(logits)
        graph = propose(ModelDrafter(runner, width=2, depth=3), context([1], merge=merge), budget=30)
        counts[merge] = len(runner.computed)
        if merge:
            assert graph.num_merged >= 2
            assert [text[-1] for text in runner.computed].count(4) == 1
            assert [text[-1] for text in runner.computed].count(5) == 1
            (left, right) = (graph.children[0][token].child for token in (2, 3))
            assert graph.children[left][4].child == graph.children[right][4].child
    assert counts == {0: 1 + 2 + 4, 1: 1 + 2 + 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("merge_length", [0, 1, 2])
def test_nothing_that_was_accepted_is_computed_again(temperature: float, merge_length: int) -> None:
    """Only the last token of a step is: its row is needed for the next graph. Other texts are never read twice."""
    target = random_logits(3)
    runner = CountingRunner(lambda text: target(text) + np.random.default_rng(list(text[-2:])).normal(0, 0.5, VOCAB))
    engine = make_engine(TableRunner(target, VOCAB), ModelDrafter(runner, 2, 4), merge_length=merge_length)
    roots: list[int] = []
    engine.observer = lambda verdicts: roots.append(len(verdicts[0].path))
    request = write(engine, [1, 2, 3], max_tokens=60, temperature=temperature, seed=5)
    assert request.stats.accepted_nodes > 10
    length, ends = 0, set()
    for num_committed in roots:
        length += num_committed
        ends.add(length + 1)
    whole = tuple(request.tokens)
    known = Counter(text for text in runner.computed if whole[: len(text)] == text and len(text) not in ends)
    assert known
    assert max(known.values()) == 1


def test_what_a_rejected_draft_left_behind_is_not_part_of_the_text() -> None:
    runner = CountingRunner(random_logits(1))
    drafter = ModelDrafter(runner, width=2, depth=3)
    about = context([1, 2])
    graph = propose(drafter, about)
    other = next(token for token in range(VOCAB) if token not in graph.children[0])
    drafter.observe([about], [verdict(about, [other])])
    assert list(runner.texts.values()) == [(1, 2)]
    fresh = propose(drafter, context([1, 2, other]))
    expected = propose(ModelDrafter(CountingRunner(random_logits(1)), 2, 3), context([1, 2, other]))
    assert (fresh.tokens, fresh.parents) == (expected.tokens, expected.parents)


def test_a_path_through_a_merged_edge_keeps_only_what_was_computed_along_it() -> None:
    def logits(text: Text) -> np.ndarray:
        row = np.full(VOCAB, -20.0)
        row[{1: [2, 3], 2: [4], 3: [4], 4: [5], 5: [6]}.get(text[-1], [7])] = [0.0, -0.5][: 2 if text[-1] == 1 else 1]
        return row

    runner = CountingRunner(logits)
    drafter = ModelDrafter(runner, width=2, depth=4)
    about = context([1], merge=1)
    graph = propose(drafter, about, budget=20)
    assert graph.num_merged >= 1
    drafter.observe([about], [verdict(about, [3, 4, 5])])  # 4 was computed below 2
    assert list(runner.texts.values()) == [(1, 3)]
    runner.computed.clear()
    propose(drafter, context([1, 3, 4, 5], merge=1))
    assert runner.computed[:2] == [(1, 3, 4), (1, 3, 4, 5)]


def test_a_slot_is_released_when_its_request_ends() -> None:
    runner = CountingRunner(random_logits(0), num_slots=2)
    drafter = ModelDrafter(runner, 2, 3)
    for request, finish in enumerate([FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED]):
        about = context([1, 2], request)
        assert propose(drafter, about).num_drafted > 0
        assert runner.num_free_slots == 1
        drafter.observe([about], [verdict(about, [3], finish)])
        assert runner.num_free_slots == 2
    stranger = context([1], request=99)
    drafter.observe([stranger], [verdict(stranger, [3], FinishReason.STOP)])
    assert not any(kept for kept in vars(drafter).values() if isinstance(kept, dict))


def test_more_requests_than_slots_get_bare_graphs_until_a_slot_is_free() -> None:
    runner = CountingRunner(random_logits(0), num_slots=2)
    drafter = ModelDrafter(runner, 2, 3)
    contexts = [context([1, n], request=n) for n in range(4)]
    graphs = drafter.propose(contexts, [8] * 4)
    assert [graph.num_drafted > 0 for (graph,) in graphs] == [True, True, False, False]
    ends = [FinishReason.STOP, None, None, None]
    drafter.observe(contexts, [verdict(about, [3], end) for about, end in zip(contexts, ends, strict=True)])
    contexts = [context([1, n, 3], request=n) for n in (1, 2, 3)]
    graphs = drafter.propose(contexts, [8] * 3)
    assert [graph.num_drafted > 0 for (graph,) in graphs] == [True, True, False]


def test_the_growth_policy_is_asked_about_no_request_that_cannot_have_drafts() -> None:
    """It keeps account of those it let grow, level by level."""

    class Counting(GrowToBudget):
        asked: Sequence[Context] = ()

        def start(self, contexts: Sequence[Context], behind: Sequence[int], earlier: Proposals) -> list[bool]:
            self.asked = contexts
            return [True] * len(contexts)

        def next_level(self, beliefs: Sequence[Sequence[float]], leaves: Sequence[Sequence[float]]) -> Sequence[int]:
            assert len(beliefs) == len(leaves) == len(self.asked)
            return super().next_level(beliefs, leaves)

    policy = Counting()
    drafter = ModelDrafter(CountingRunner(random_logits(0), num_slots=2, context_length=9), 2, 3, growth=policy)
    contexts = [context([1] * 12, 0), context([1, 2], 1), context([3], 2), context([4], 3), context([5], 4)]
    graphs = drafter.propose(contexts, [8, 0, 8, 8, 8])  # too long, no budget, two slots, none left
    assert [about.request for about in policy.asked] == [2, 3]
    assert [graph.num_drafted > 0 for (graph,) in graphs] == [False, False, True, True, False]


@pytest.mark.parametrize("num_known", range(1, 16))
def test_the_draft_models_own_context_is_never_left(num_known: int) -> None:
    runner = CountingRunner(random_logits(0), context_length=10)  # asserts that nodes stay within
    drafter = ModelDrafter(runner, width=2, depth=4)
    tokens = [n % VOCAB for n in range(num_known)]
    graph = propose(drafter, context(tokens))
    assert max(graph.depths) == max(0, min(4, 10 - num_known + 1))


def test_a_text_that_outgrows_the_draft_model_goes_on_without_it() -> None:
    target = random_logits(2)
    runner = CountingRunner(target, context_length=20)
    engine = make_engine(TableRunner(target, VOCAB), ModelDrafter(runner, 2, 4))
    request = write(engine, [1, 2, 3], max_tokens=60)
    assert request.output == write(make_engine(TableRunner(target, VOCAB)), [1, 2, 3], max_tokens=60).output
    assert request.stats.accepted_nodes > 0
    assert runner.num_free_slots == 8


@pytest.mark.parametrize("num_known", [1, 64, 65, 66, 128, 129, 130, 200])
def test_a_long_prompt_is_read_once_in_chunks(num_known: int) -> None:
    runner = CountingRunner(random_logits(0))
    tokens = [n % VOCAB for n in range(num_known)]
    drafter = ModelDrafter(runner, width=1, depth=1)
    graph = propose(drafter, context(tokens))
    assert sorted(map(len, runner.computed)) == list(range(1, num_known + 1))
    assert max(runner.sizes) <= 65
    assert graph.tokens[1] == int(np.argmax(random_logits(0)(tuple(tokens))))


def test_steps_without_a_budget_are_caught_up_later() -> None:
    runner = CountingRunner(random_logits(0))
    drafter = ModelDrafter(runner, width=2, depth=3)
    tokens = [1, 2]
    for budget in (8, 0, 0, 8, 1):
        about = context(tuple(tokens))
        graph = propose(drafter, about, budget)
        expected = propose(ModelDrafter(CountingRunner(random_logits(0)), 2, 3), about, budget)
        assert (graph.tokens, graph.parents) == (expected.tokens, expected.parents)
        drafter.observe([about], [verdict(about, [4, 5])])
        tokens += [4, 5]


def test_a_mixed_batch_of_requests_writes_what_plain_decoding_writes() -> None:
    target = random_logits(4)
    drafter = ModelDrafter(CountingRunner(random_logits(5), num_slots=2), 3, 4)
    engine = make_engine(TableRunner(target, VOCAB), drafter)
    prompts = [[1], [2, 3] * 40, [4, 5, 6], [7]]
    requests = [
        engine.submit(prompt, SamplingParams(max_tokens=20, temperature=n % 2, seed=n), 8)
        for n, prompt in enumerate(prompts)
    ]
    outputs = run(engine, *requests)
    for n, prompt in enumerate(prompts):
        plain = write(make_engine(TableRunner(target, VOCAB)), prompt, max_tokens=20, temperature=n % 2, seed=n)
        assert outputs[n] == plain.output


# What it proposes


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum()


@pytest.mark.parametrize("ranking", [coupled, drawn])
def test_without_temperature_the_likeliest_tokens_are_proposed_with_their_probability(ranking: Ranking) -> None:
    for seed in range(20):
        logits = random_logits(seed)((1,)).astype(np.float32)
        found = ranking(context([1]), *ROOT, logits, 4)
        probs = probabilities(logits)
        assert [one.token for one in found] == np.argsort(-probs)[:4].tolist()
        assert np.allclose([one.acceptance for one in found], probs[[one.token for one in found]])
        assert all(one.draw is None for one in found)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_a_coupled_draft_equal_to_the_target_proposes_the_targets_draw_first(temperature: float) -> None:
    for seed in range(200):
        noise = SeededNoise(seed)
        about = Context(0, [1], noise, temperature, 9, MergeRule())
        logits = random_logits(seed)((1,)).astype(np.float32)
        graph = root_graph(about)
        for node in range(6):
            graph.add(node, 0, "model", 0.5)
        found = coupled(about, graph, 6, logits, 3)
        scores = logits.astype(np.float64) / temperature
        _, perturbed = noise.contenders(scores, 7, np.inf)
        best = np.argsort(-perturbed)[:3].tolist()
        assert found[0].token == noise.pick(scores, 7)
        assert [one.token for one in found] == [token for token in best if perturbed[token] > perturbed.max() - 10]
        estimates = [one.acceptance for one in found]
        assert 1 >= estimates[0] > 0
        assert estimates == sorted(estimates, reverse=True)
        weights = np.exp(perturbed - perturbed.max())
        assert np.allclose(estimates, (weights / weights.sum())[[one.token for one in found]], rtol=1e-3)
        assert all(one.draw is None for one in found)


def test_a_draft_equal_to_the_target_is_accepted_whole_at_any_temperature() -> None:
    logits = random_logits(0)
    engine = make_engine(TableRunner(logits, VOCAB), ModelDrafter(TableRunner(logits, VOCAB), 1, 4))
    request = write(engine, [1], budget=4, max_tokens=41, temperature=1.3, seed=11)
    assert request.stats.accepted_nodes >= 32  # all but the first token and one bonus in five


@pytest.mark.parametrize("width", [1, 3, 50])
@pytest.mark.parametrize("ranking", [coupled, drawn])
def test_no_more_candidates_than_tokens_and_none_twice(ranking: Ranking, width: int) -> None:
    logits = random_logits(0)((1,)).astype(np.float32)
    about = context([1], seed=3)
    found = ranking(about, *ROOT, logits, width)
    worth = VOCAB
    if ranking is coupled:  # leaves out what lost by more than 10 nats
        worth = len(about.noise.contenders(logits.astype(np.float64), 1, 10.0)[0])
    assert len({one.token for one in found}) == len(found) == min(width, worth)
    logits[3] = -np.inf  # cannot be drawn
    assert (3 in {one.token for one in drawn(context([1], seed=3), *ROOT, logits, VOCAB)}) is False


def test_draws_follow_sampling_without_replacement() -> None:
    """Ordered pairs of draws against draft_prob(a) · draft_prob(b) / (1 - draft_prob(a)), chi-square.

    alpha 0.001 on fixed seeds: the odds of a false alarm were 1 in 1000 when the test was written, and are none since.
    """
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    probs = probabilities(logits)
    num_draws = 20_000
    counts: Counter[tuple[int, int]] = Counter()
    for seed in range(num_draws):
        first, second = drawn(context([1], seed=seed), *ROOT, logits, 2)
        counts[first.token, second.token] += 1
    expected = {
        (a, b): num_draws * probs[a] * probs[b] / (1 - probs[a]) for a, b in itertools.permutations(range(4), 2)
    }
    statistic = sum((counts[pair] - value) ** 2 / value for pair, value in expected.items())
    assert statistic < chi2.isf(0.001, len(expected) - 1)


def test_draws_carry_one_distribution_their_order_and_an_estimate_that_does_not_depend_on_their_value() -> None:
    logits = random_logits(0)((1,)).astype(np.float32)
    probs = probabilities(logits)
    for seed in range(50):
        found = drawn(context([1], seed=seed), *ROOT, logits, 4)
        assert [one.draw.order for one in found if one.draw] == [0, 1, 2, 3]
        assert len({id(one.draw.draft_prob) for one in found if one.draw}) == 1
        assert found[0].draw is not None
        assert np.allclose(found[0].draw.draft_prob, probs)
        assert np.allclose([one.acceptance for one in found], np.sort(probs)[::-1][:4])


def test_siblings_below_one_root_draw_independently_of_each_other() -> None:
    """Two nodes of one depth must not share their draws' noise: whether one's draft fits into the budget depends on the
    other's value, and with shared noise on its own, which biases the residual rule. Chi-square for independence of the
    first draws below two siblings with equal distributions; alpha 0.001, fixed seeds.
    """

    def logits(text: Text) -> np.ndarray:
        row = np.full(VOCAB, -30.0)
        row[:2] = 0.0
        return row

    pairs: Counter[tuple[int, ...]] = Counter()
    for seed in range(400):
        graph = propose(ModelDrafter(CountingRunner(logits), 2, 2, drawn), context([5], seed=seed), budget=20)
        below = [next(iter(graph.children[edge.child])) for edge in graph.children[0].values()]
        pairs[tuple(below)] += 1
    statistic = sum((pairs[pair] - 100) ** 2 / 100 for pair in itertools.product(range(2), repeat=2))
    assert statistic < chi2.isf(0.001, 3)
