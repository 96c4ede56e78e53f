"""The best static tree: against every tree there is, and against best-first growth where that is as good."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

import pytest

from draftgraph.plan.static import StaticTree, best_choice, best_trees

Path = tuple[int, ...]  # ranks from the root


def all_trees(ranks: int, size: int, depth: int) -> Iterator[frozenset[Path]]:
    """Every tree of exactly `size` nodes, as the set of its paths."""
    found: set[frozenset[Path]] = {frozenset()}
    for _ in range(size):
        found = {
            tree | {(*parent, rank)}
            for tree in found
            for parent in ((), *tree)
            for rank in range(ranks)
            if len(parent) < depth and (*parent, rank) not in tree
        }
    yield from found


def worth(tree: Sequence[Path] | frozenset[Path], acceptances: Sequence[float]) -> float:
    total = 1.0
    for path in tree:
        share = 1.0
        for rank in path:
            share *= acceptances[rank]
        total += share
    return total


def paths_of(tree: StaticTree) -> list[Path]:
    paths: list[Path] = []
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        assert -1 <= parent < node
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths


CASES = {
    "falling": (0.6, 0.2, 0.1),
    "rising": (0.1, 0.2, 0.6),
    "first never": (0.0, 0.7, 0.2),
    "sure": (0.97, 0.02),
    "level": (0.25, 0.25, 0.25),
    "one rank": (0.8,),
}


@pytest.mark.parametrize("acceptances", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_tree_of_the_same_size_brings_more(acceptances: Sequence[float], depth: int) -> None:
    for size, tree in enumerate(best_trees(acceptances, 5, depth)):
        others = (tree for count in range(size + 1) for tree in all_trees(len(acceptances), count, depth))
        best = max(worth(other, acceptances) for other in others)
        assert tree.tokens == pytest.approx(best, abs=1e-12)


def test_no_tree_brings_more_whatever_the_acceptances_are() -> None:
    draw = random.Random(5)
    others = [list(all_trees(3, count, 3)) for count in range(6)]
    for _ in range(40):
        acceptances = [draw.random() ** 3 for _ in range(3)]
        for size, tree in enumerate(best_trees(acceptances, 5, 3)):
            best = max(worth(other, acceptances) for some in others[: size + 1] for other in some)
            assert tree.tokens == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("acceptances", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_tree_is_what_it_says(acceptances: Sequence[float], depth: int) -> None:
    for size, tree in enumerate(best_trees(acceptances, 12, depth)):
        paths = paths_of(tree)
        assert len(tree) <= size
        assert len(set(paths)) == len(paths), "siblings share a rank"
        assert max(tree.depths, default=0) <= depth
        assert tree.depths == [len(path) for path in paths]
        assert tree.tokens == pytest.approx(worth(paths, acceptances))


def test_where_ranks_fall_best_first_growth_is_as_good() -> None:
    draw = random.Random(3)
    for _ in range(20):
        acceptances = sorted((draw.random() / 3 for _ in range(draw.randint(1, 5))), reverse=True)
        depth = draw.randint(1, 7)
        heap, gains = [(-1.0, 0)], []
        while heap and len(gains) < 41:
            negated, level = heapq.heappop(heap)
            gains.append(-negated)
            if level < depth:
                for share in acceptances:
                    heapq.heappush(heap, (negated * share, level + 1))
        for size, tree in enumerate(best_trees(acceptances, 40, depth)):
            assert tree.tokens == pytest.approx(sum(gains[: size + 1]))


def test_a_sure_draft_makes_a_chain_and_an_unsure_one_a_wide_tree() -> None:
    sure, unsure = best_trees((0.95, 0.02, 0.02), 6, 8)[6], best_trees((0.3, 0.28, 0.27), 6, 8)[6]
    assert sure.depths == [1, 2, 3, 4, 5, 6]
    assert unsure.depths == [1, 1, 1, 2, 2, 2]


def test_levels_count_the_nodes_a_draft_model_computes() -> None:
    assert StaticTree((), (), ()).expanded == []
    assert StaticTree((-1,), (0,), (0.5,)).expanded == [1]
    assert StaticTree((-1, -1, 0, 1, 2), (0, 1, 0, 0, 0), (0.5,) * 5).expanded == [1, 2, 1]


def test_nobody_who_is_ever_right_leaves_plain_decoding() -> None:
    assert [len(tree) for tree in best_trees((), 4, 8)] == [0] * 5
    assert [len(tree) for tree in best_trees((0.0, 0.0), 4, 8)] == [0] * 5


def test_the_choice_has_most_tokens_per_second() -> None:
    trees = best_trees((0.7, 0.1), 8, 8)
    free = best_choice(trees, lambda tree: 1.0)
    dear = best_choice(trees, lambda tree: 1.0 + len(tree))
    some = best_choice(trees, lambda tree: 1.0 + 0.1 * max(len(tree) - 2, 0) ** 2)
    assert (free.count, dear.count) == (8, 0)
    assert some.rate == max(tree.tokens / (1.0 + 0.1 * max(len(tree) - 2, 0) ** 2) for tree in trees)
    assert 0 < some.count < 8
