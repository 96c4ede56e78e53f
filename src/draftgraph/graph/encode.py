"""The one encoding of a tree: a topologically ordered parent array with token ids.

In: a parent array. Out: everything that can be derived from it, and nothing is derived anywhere else. A node's absolute
position is the committed length plus its depth, never its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgraph.types import Drafted, Drawn, IntArray, TokenTree, Window


def encode_tree(
    window: Window,
    graph: Drafted,
    tokens: Sequence[int],
    parents: Sequence[int],
    sources: Sequence[tuple[str, ...]],
    draws: Sequence[Drawn | None],
    path_acceptance: Sequence[float],
    graph_nodes: Sequence[int],
) -> TokenTree:
    """Returns the tree of the known tokens followed by drafts, given in topological order.

    Args:
        parents: [drafts] index of the parent among the drafts, -1 for the root.
    """
    num_known = len(window.known)
    root = num_known - 1
    chain = np.arange(-1, root, dtype=np.int32)
    offsets = [root if parent < 0 else parent + num_known for parent in parents]
    return TokenTree(
        tokens=_joined(window.known, tokens),
        parents=_joined(chain, offsets),
        first_row=root if window.complete else num_known,
        num_known=num_known,
        sources=((),) * num_known + tuple(sources),
        draws=(None,) * num_known + tuple(draws),
        path_acceptance=(1.0,) * num_known + tuple(path_acceptance),
        graph_nodes=(-1,) * root + (0,) + tuple(graph_nodes),
        graph=graph,
    )


def _joined(known: IntArray, drafts: Sequence[int]) -> IntArray:
    return np.concatenate([known, np.asarray(drafts, np.int32)]) if drafts else known


def bare_tree(window: Window, graph: Drafted) -> TokenTree:
    """Returns the tree of the known tokens alone."""
    return encode_tree(window, graph, [], [], [], [], [], [])


def path_to(parents: Sequence[int] | IntArray, node: int) -> list[int]:
    """Returns the nodes from the top of the tree down to `node`, both included."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]


def children_by_token(tree: TokenTree) -> list[dict[int, int]]:
    """Returns for each node its children as token -> node, in row order."""
    children: list[dict[int, int]] = [{} for _ in tree.tokens]
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if parent >= 0:
            assert token not in children[parent], "two siblings share a token"
            children[parent][token] = node
    return children
