"""The one encoding of a tree: what is derived from the parent array equals what a search of the tree finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftgraph.graph.encode import children_by_token, encode_tree, path_to
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import MergeRule, TokenTree, Window


def random_tree(seed: int) -> tuple[TokenTree, list[int], list[int]]:
    """A tree of some known tokens and drafts, with the drafts' tokens and parents as they were given."""
    rng = random.Random(seed)
    num_known, num_drafts = rng.randint(1, 5), rng.randint(0, 20)
    parents = [rng.randint(-1, node - 1) for node in range(num_drafts)]
    tokens = list(range(100, 100 + num_drafts))
    rng.shuffle(tokens)
    window = Window(np.arange(num_known, dtype=np.int32), True, 100, 100, 200)
    graph = TokenGraph([num_known - 1], MergeRule())
    estimates = [rng.random() for _ in tokens]
    tree = encode_tree(window, graph, tokens, parents, [("a",)] * num_drafts, [None] * num_drafts, estimates, tokens)
    return tree, tokens, parents


def ancestors(parents: list[int], node: int) -> list[int]:
    """From the top down, the node itself last: by following parents."""
    return [] if node < 0 else [*ancestors(parents, parents[node]), node]


@pytest.mark.parametrize("seed", range(30))
def test_known_tokens_form_a_chain_and_drafts_hang_below_its_end(seed: int) -> None:
    tree, tokens, parents = random_tree(seed)
    known = tree.num_known
    assert tree.root == known - 1
    assert tree.num_drafts == len(tokens)
    assert tree.tokens.tolist() == [*range(known), *tokens]
    assert tree.parents.tolist() == [*range(-1, known - 1), *(p + known if p >= 0 else known - 1 for p in parents)]
    assert all(parent < node for node, parent in enumerate(tree.parents.tolist()))
    assert tree.tokens.dtype == tree.parents.dtype == np.int32
    size = len(tree.tokens)
    assert {len(tree.sources), len(tree.draws), len(tree.path_acceptance), len(tree.graph_nodes)} == {size}
    assert tree.graph_nodes[:known] == (*[-1] * (known - 1), 0)


@pytest.mark.parametrize("seed", range(30))
def test_paths_and_children_equal_a_search(seed: int) -> None:
    tree, _, _ = random_tree(seed)
    parents = tree.parents.tolist()
    lines = [ancestors(parents, node) for node in range(len(parents))]
    assert [path_to(tree.parents, node) for node in range(len(parents))] == lines
    assert [path_to(parents, node) for node in range(len(parents))] == lines
    children = [
        {int(tree.tokens[child]): child for child in range(len(parents)) if parents[child] == node}
        for node in range(len(parents))
    ]
    assert children_by_token(tree) == children
    assert [list(found) for found in children_by_token(tree)] == [list(found) for found in children]


def test_no_node_has_no_path() -> None:
    assert path_to(np.array([-1, -1, 0, 1, 2], np.int32), -1) == []


def test_rows_start_at_the_root_and_none_are_asked_of_an_unfinished_prompt() -> None:
    graph = TokenGraph([3], MergeRule())
    known = np.array([1, 2, 3], np.int32)
    done = encode_tree(Window(known, True, 0, 0, 9), graph, [], [], [], [], [], [])
    assert (done.first_row, done.draws_next) == (2, True)
    more = encode_tree(Window(known, False, 0, 0, 9), graph, [], [], [], [], [], [])
    assert (more.first_row, more.draws_next) == (3, False)


def test_two_siblings_with_one_token_are_a_broken_invariant() -> None:
    graph = TokenGraph([3], MergeRule())
    window = Window(np.array([3], np.int32), True, 2, 2, 9)
    tree = encode_tree(window, graph, [5, 5], [-1, -1], [("a",)] * 2, [None] * 2, [0.5, 0.5], [1, 2])
    with pytest.raises(AssertionError, match="siblings"):
        children_by_token(tree)
