"""By enumeration: over all draws and all acceptance outcomes, in fractions, the text has the target's distribution.

The second half plants faults that other systems had, each in the smallest form, and shows that the same comparison
catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from draftgraph.graph.encode import children_by_token
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.rng import Noise
from draftgraph.types import Drawn, MergeRule, TokenTree
from draftgraph.verify.accept import Rule, Target, match, residual
from support.enumeration import (
    Branches,
    BranchingNoise,
    Grow,
    Table,
    TableTarget,
    decode,
    draw_children,
    graph_text,
    outcomes,
    random_table,
    text_distribution,
)

MERGE = MergeRule(length=1, same_depth=True)


def drawn(width: int) -> Grow:
    """Draws `width` children at every node, level by level; merged nodes are not expanded twice."""

    def grow(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
        frontier = [0]
        for _ in range(depth):
            fresh = []
            for node in frontier:
                fresh += draw_children(graph, node, draft[(*text, *graph_text(graph, node))], width, branches)
            frontier = fresh

    return grow


def ranked(width: int) -> Grow:
    """Proposes the `width` likeliest children at every node: nothing is drawn."""

    def grow(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
        frontier = [0]
        for _ in range(depth):
            fresh = []
            for node in frontier:
                probs = draft[(*text, *graph_text(graph, node))]
                for token in sorted(range(len(probs)), key=lambda token: -probs[token])[:width]:
                    known = len(graph)
                    child = graph.add(node, token, "ranked", float(probs[token]))
                    fresh += [child] if child == known else []
            frontier = fresh

    return grow


def drawn_and_ranked(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
    """One draw and the likeliest token at every node: a mixture of two drafters."""
    drawn(1)(graph, draft, text, depth, branches)
    ranked(1)(graph, draft, text, depth, branches)


def is_exact(
    rule: Rule, grow: Grow, vocab: int, length: int, seed: int, *, budget: int = 100, merge: MergeRule | None = None,
    make_target: Callable[[Table, tuple[int, ...], TokenTree], TableTarget] = TableTarget,
) -> bool:  # fmt: skip
    target, draft = random_table(vocab, length, seed), random_table(vocab, length, seed + 1000)
    found = outcomes(
        lambda branches: decode(
            branches, rule, grow, target, draft, length, budget=budget, merge=merge, make_target=make_target
        )
    )
    return found == text_distribution(target, length)


SHAPES: dict[str, tuple[int, MergeRule | None, int, int]] = {
    # name: children per node, merging, vocabulary, length of the text
    "chain": (1, None, 3, 3),
    "tree": (2, None, 2, 3),
    "wide tree": (3, None, 4, 2),
    "merged graph": (2, MERGE, 2, 3),
    "merged graph of three": (2, MERGE, 3, 3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_match_is_exact_with_ranked_drafts(shape: str, seed: int) -> None:
    width, merge, vocab, length = SHAPES[shape]
    assert is_exact(match, ranked(width), vocab, length, seed, merge=merge)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_match_is_exact_with_drawn_drafts(shape: str, seed: int) -> None:
    width, merge, vocab, length = SHAPES[shape]
    assert is_exact(match, drawn(width), vocab, min(length, 3 if vocab < 3 else 2), seed, merge=merge)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_residual_is_exact_with_drawn_drafts(shape: str, seed: int) -> None:
    width, merge, vocab, length = SHAPES[shape]
    length = length if vocab < 3 or width == 1 else 2
    assert is_exact(residual, drawn(width), vocab, length, seed, merge=merge)


@pytest.mark.parametrize("seed", range(4))
def test_residual_is_exact_on_a_merged_graph_of_depth_three(seed: int) -> None:
    assert is_exact(residual, drawn(2), 2, 4, seed, merge=MERGE, budget=6)


@pytest.mark.parametrize("seed", range(4))
def test_residual_is_exact_with_ranked_drafts_which_it_may_only_match(seed: int) -> None:
    assert is_exact(residual, ranked(2), 3, 3, seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("merge", [None, MERGE])
def test_residual_is_exact_when_drawn_and_ranked_drafts_share_a_graph(seed: int, merge: MergeRule | None) -> None:
    assert is_exact(residual, drawn_and_ranked, 3, 3, seed, merge=merge)


@pytest.mark.parametrize("rule", [match, residual])
@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_selection_to_any_budget_keeps_the_text_exact(rule: Rule, budget: int) -> None:
    assert is_exact(rule, drawn(2), 2, 3, seed=5, budget=budget, merge=MERGE)


def test_merging_does_happen_in_these_graphs() -> None:
    graph = TokenGraph((0,), MERGE)
    ranked(2)(graph, random_table(2, 3, 7), (), 2, Branches([]))
    assert graph.num_merged == 2


# Planted faults. Each must be caught for at least one of the seeds; in fact for most.


def is_caught(rule: Rule, grow: Grow, **options: object) -> bool:
    return any(not is_exact(rule, grow, 3, 2, seed, **options) for seed in range(6))  # type: ignore[arg-type]


def walk_with(choose_token: Callable[[TokenTree, dict[int, int], Target, list[int], Noise], int]) -> Rule:
    """A rule from a (faulty) choice of the next token at a node."""

    def rule(tree: TokenTree, target: Target, noise: Noise) -> list[tuple[int, int]]:
        children = children_by_token(tree)
        walk, path, node = [], [], tree.root
        while node >= 0:
            token = choose_token(tree, children[node], target, path, noise)
            node = children[node].get(token, -1)
            walk.append((token, node))
            path = [*path, node]
        return walk

    return rule


def draws_of(tree: TokenTree, children: dict[int, int]) -> list[tuple[int, Drawn]]:
    pairs = [(token, draw) for token, node in children.items() if (draw := tree.draws[node]) is not None]
    return sorted(pairs, key=lambda pair: pair[1].order)


def test_a_draft_pruned_after_it_was_drawn_is_caught() -> None:
    def grow(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
        if depth:
            probs = draft[text]
            token = branches.choose(list(probs))
            if probs[token] > Fraction(1, 3):  # the fault: its own value decides whether it stays
                graph.add(0, token, "drawn", 0.9, Drawn(probs, 0))

    assert is_caught(residual, grow)


def test_a_selection_that_ranks_draws_by_their_own_probability_is_caught() -> None:
    def grow(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
        if depth:
            graph.add(0, 0, "ranked", 0.4)  # competes for the only row
            probs = draft[text]
            token = branches.choose(list(probs))
            if token != 0:
                graph.add(0, token, "drawn", float(probs[token]), Drawn(probs, 0))  # the fault: the estimate

    assert is_caught(residual, grow, budget=1)


def test_a_residual_that_is_not_updated_after_a_rejection_is_caught() -> None:
    def stale(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        target_prob = target.probs(path)
        for attempt, (token, draw) in enumerate(draws_of(tree, children)):
            if noise.coin(target_prob[token] / draw.draft_prob[token], 0, attempt):
                return token
        return noise.choose(target_prob, 0)

    assert is_caught(walk_with(stale), drawn(1))
    assert is_caught(walk_with(stale), drawn(2))


def test_a_draft_distribution_that_keeps_the_rejected_token_is_caught() -> None:
    def unrenormalised(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        target_prob = target.probs(path)
        for attempt, (token, draw) in enumerate(draws_of(tree, children)):
            if noise.coin(target_prob[token] / draw.draft_prob[token], 0, attempt):
                return token
            rest = np.maximum(target_prob - draw.draft_prob, 0)
            target_prob = rest / rest.sum() if rest.sum() else target_prob
        return noise.choose(target_prob, 0)

    assert is_caught(walk_with(unrenormalised), drawn(2))


def test_a_draft_probability_taken_as_one_beside_the_real_residual_is_caught() -> None:
    def taken_as_one(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        target_prob = target.probs(path)
        for attempt, (token, draw) in enumerate(draws_of(tree, children)):
            if noise.coin(target_prob[token], 0, attempt):
                return token
            rest = np.maximum(target_prob - draw.draft_prob, 0)
            target_prob = rest / rest.sum() if rest.sum() else target_prob
        return noise.choose(target_prob, 0)

    assert is_caught(walk_with(taken_as_one), drawn(1))
    assert is_caught(walk_with(taken_as_one), drawn(2))


def test_a_draft_probability_taken_as_one_throughout_is_exact_for_draws_too() -> None:
    """Accepting any x with target_prob(x) and removing it afterwards is the target's own draw in several moves."""

    def one_hot(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        target_prob = target.probs(path)
        for attempt, (token, _) in enumerate(draws_of(tree, children)):
            if noise.coin(target_prob[token], 0, attempt):
                return token
            rest = target_prob.copy()
            rest[token] = 0
            target_prob = rest / rest.sum()
        return noise.choose(target_prob, 0)

    assert not is_caught(walk_with(one_hot), drawn(1))
    assert not is_caught(walk_with(one_hot), drawn(2))


def test_a_ranked_child_scored_with_a_soft_probability_is_caught() -> None:
    def soft(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        target_prob = target.probs(path)
        draft_prob = np.array([Fraction(8, 10), Fraction(1, 10), Fraction(1, 10)], dtype=object)
        for attempt, token in enumerate(children):
            if noise.coin(target_prob[token] / draft_prob[token], 0, attempt):
                return token
            rest = np.maximum(target_prob - draft_prob, 0)
            target_prob = rest / rest.sum() if rest.sum() else target_prob
        return noise.choose(target_prob, 0)

    assert is_caught(walk_with(soft), ranked(1))


def test_a_fresh_draw_after_a_mismatch_is_caught() -> None:
    def fresh(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        token = noise.pick(target.scores(path), 0)
        return token if token in children or not children else noise.pick(target.scores(path), 0)

    assert is_caught(walk_with(fresh), ranked(1))


def test_a_target_draw_of_its_own_for_each_sibling_is_caught() -> None:
    def per_child(tree: TokenTree, children: dict[int, int], target: Target, path: list[int], noise: Noise) -> int:
        for token in children:
            if noise.pick(target.scores(path), 0) == token:
                return token
        return noise.pick(target.scores(path), 0)

    assert is_caught(walk_with(per_child), ranked(2))


class FirstParentsRow(TableTarget):
    """The fault: a merged node has one row, computed under its first parent, for all of its prefixes."""

    def probs(self, path: Sequence[int]) -> np.ndarray:
        graph = self._tree.graph
        assert isinstance(graph, TokenGraph)
        if not path:
            return super().probs(path)
        return self._table[(*self._text, *graph_text(graph, self._tree.graph_nodes[path[-1]]))]


@pytest.mark.parametrize("rule", [match, residual])
def test_one_row_for_two_prefixes_is_caught(rule: Rule) -> None:
    grow = ranked(2) if rule is match else drawn(2)
    assert any(not is_exact(rule, grow, 2, 3, seed, merge=MERGE, make_target=FirstParentsRow) for seed in range(4))


def test_a_missing_draw_is_a_broken_invariant() -> None:
    def grow(graph: TokenGraph, draft: Table, text: tuple[int, ...], depth: int, branches: Branches) -> None:
        if depth:
            graph.add(0, 0, "drawn", 0.9, Drawn(draft[text], 1))

    with pytest.raises(AssertionError, match="pruned after they were drawn"):
        is_exact(residual, grow, 3, 2, 0)


def test_branching_noise_agrees_with_the_weights_it_is_given() -> None:
    weights = [Fraction(1, 4), Fraction(0), Fraction(3, 4)]
    assert outcomes(lambda branches: BranchingNoise(branches).pick(np.array(weights, dtype=object), 0)) == {
        0: Fraction(1, 4),
        2: Fraction(3, 4),
    }
