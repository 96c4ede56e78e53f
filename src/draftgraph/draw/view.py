"""What a picture shows: one decoding step as plain values, checked when they are put together.

In: token texts, indices and estimates from whoever watched the step. Out: a frozen `StepView` that can be drawn. Must
never know how it is drawn, nor an engine or a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftgraph.errors import ParameterError
from draftgraph.types import TARGET

KNOWN_SOURCES = ("ngram", "suffix", "model", "recycle", "grammar")  # in the order of legends and colours


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A node of the token graph: `depth` tokens after the root, `acceptance` as estimated before the pass."""

    id: int
    token: str
    depth: int
    sources: tuple[str, ...]
    acceptance: float
    accepted: bool
    in_tree: bool


@dataclass(frozen=True, slots=True)
class ViewEdge:
    """An edge of the token graph; `merged` says that the child was first made under another parent."""

    parent: int
    child: int
    acceptance: float
    merged: bool
    accepted: bool


@dataclass(frozen=True, slots=True)
class ViewTreeNode:
    """A row of the verified tree: `parent` is an earlier index in the tree, -1 for the root in row 0."""

    parent: int
    node: int
    token: str
    path_acceptance: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class StepView:
    """One decoding step as it is drawn.

    Args:
        title: the headline.
        prompt_tail: text before the root, its end is shown.
        nodes: the graph, node 0 is the root (the last committed token); ids are distinct.
        edges: for each node but the root one first edge and any number of merged ones; no cycle.
        tree: the unrolled tree in topological order, row 0 is the root.
        emitted: (text, source) of each token the step wrote; the target's own token has source "target".
        step: the step's number in its request.
        budget: how many drafts the step was allowed to verify.
        num_drafted: nodes the drafters proposed.
        num_merged: edges that suffix merging added.
        num_rows: rows the target computed.
        num_accepted: drafts that were accepted.

    Raises:
        ParameterError: an index points nowhere or forwards, or an acceptance is not in [0, 1].
    """

    title: str
    prompt_tail: str
    nodes: tuple[ViewNode, ...]
    edges: tuple[ViewEdge, ...]
    tree: tuple[ViewTreeNode, ...]
    emitted: tuple[tuple[str, str], ...]
    step: int
    budget: int
    num_drafted: int
    num_merged: int
    num_rows: int
    num_accepted: int

    def __post_init__(self) -> None:
        ids = [node.id for node in self.nodes]
        require(ids[:1] == [0] and len(set(ids)) == len(ids), f"node ids {ids[:8]}", "distinct ids, 0 first")
        require(all(0 <= n.depth <= 512 for n in self.nodes), "a node's depth", "0 to 512")
        for edge in self.edges:
            require(edge.parent in ids and edge.child in ids, f"edge {edge.parent} to {edge.child}", "edges of nodes")
        firsts = Counter(edge.child for edge in self.edges if not edge.merged)
        require(firsts == Counter(ids[1:]), "first edges", "one edge that is not merged into each node but the root")
        require(_is_acyclic(ids, self.edges), "edges that form a cycle", "a graph without cycles")
        for row, node in enumerate(self.tree):
            require(node.node in ids, f"row {row} of node {node.node}", "rows of nodes of the graph")
            require(
                -1 < node.parent < row or node.parent == -1 == row - 1,
                f"parent {node.parent} of row {row}",
                "an earlier row, -1 for row 0 alone",
            )
        shares = [n.acceptance for n in self.nodes] + [e.acceptance for e in self.edges]
        shares += [n.path_acceptance for n in self.tree]
        require(all(0.0 <= share <= 1.0 for share in shares), "an acceptance", "a number from 0 to 1")


def sources_of(view: StepView) -> tuple[str, ...]:
    """The drafters present in a view, the usual ones first, the others by name."""
    names = {name for node in view.nodes for name in node.sources}
    return ranked(names | {source for _, source in view.emitted if source != TARGET})


def ranked(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct drafters, the usual ones first, the others by name."""
    names = set(names)
    return tuple(n for n in KNOWN_SOURCES if n in names) + tuple(sorted(names - set(KNOWN_SOURCES)))


def _is_acyclic(ids: Sequence[int], edges: Sequence[ViewEdge]) -> bool:
    """Whether all nodes can be taken away one by one, each when no edge leads to it (Kahn 1962)."""
    pending = Counter(edge.child for edge in edges)
    children: dict[int, list[int]] = {}
    for edge in edges:
        children.setdefault(edge.parent, []).append(edge.child)
    free = [node for node in ids if not pending[node]]
    for node in free:
        for child in children.get(node, []):
            pending[child] -= 1
            if not pending[child]:
                free.append(child)
    return len(free) == len(ids)


def require(holds: bool, given: str, allowed: str) -> None:
    """Raises a ParameterError about a view unless the condition holds."""
    if not holds:
        raise ParameterError(given, allowed, "build the view from one step's graph, tree and verdict")
