"""The token graph: many guesses at the continuation of one text, merged into one DAG (GSD, arXiv 2407.16207).

In: proposals, child by child, from any number of drafters. Out: a graph in which no guess is written twice. It lives
for one step and has one owner at a time: the drafter that grows it, then `merge`, then `select`, which only reads it.
It never sees tensors, caches or requests, and what it merges never relaxes verification: `select` unrolls it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftgraph.types import Drawn, MergeRule


@dataclass(slots=True)
class Edge:
    """ "`child` may follow": how likely each source that says so finds it, and how it was drawn (None: it was not)."""

    child: int
    votes: dict[str, float]  # source -> its estimate
    acceptance: float  # the largest of them, or a draw's own
    draw: Drawn | None

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.votes)


class TokenGraph:
    """A directed acyclic graph of tokens below one root.

    Node 0 is the root, the last known token. Parallel lists are indexed by node.

    Args:
        context: the known tokens; the last one becomes the root. Only the tail that merging looks at is kept.
        rule: when two hypotheses may share a node.
    """

    def __init__(self, context: Sequence[int], rule: MergeRule) -> None:
        self.rule = rule
        self.tokens: list[int] = [context[-1]]
        self.depths: list[int] = [0]
        self.parents: list[int] = [-1]  # first parents: a path of first parents ends at the root
        self.children: list[dict[int, Edge]] = [{}]  # token -> edge, in the order of insertion
        self._ancestors: list[int] = [1]  # bit sets over node ids, each node included
        self._tail = tuple(context[max(0, len(context) - rule.length) : -1])
        self._by_key: dict[tuple[int, ...], list[int]] = {}
        self.num_merged = 0  # edges made by suffix merging

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        return len(self.tokens) - 1

    def add(self, parent: int, token: int, source: str, acceptance: float, draw: Drawn | None = None) -> int:
        """Says that `token` may follow `parent` and returns its node: the child that is there already (prefix merging),
        a node with the same last tokens elsewhere (suffix merging), or a new one, whose id is then the highest.

        Args:
            acceptance: estimated probability that the target takes this child, given that it took the parent.
            draw: how the child was sampled, if it was.
        """
        edge = self.children[parent].get(token)
        if edge is not None:
            self._prefix_merge(edge, source, acceptance, draw)
            return edge.child
        key = self._key(parent, token)
        child = self._find_mergeable(parent, key)
        if child is None:
            child = self._new_node(parent, token, key)
        else:
            self.num_merged += 1
            self._inherit(child, self._ancestors[parent])
        self.children[parent][token] = Edge(child, {source: acceptance}, acceptance, draw)
        return child

    def absorb(self, other: TokenGraph) -> None:
        """Adds every hypothesis of `other`, which has the same root. Does not modify `other`."""
        pending = [(0, 0)]
        seen = set(pending)
        while pending:
            theirs, ours = pending.pop()
            for token, edge in other.children[theirs].items():
                for source, vote in edge.votes.items():
                    child = self.add(ours, token, source, vote if edge.draw is None else edge.acceptance, edge.draw)
                if (edge.child, child) not in seen:
                    seen.add((edge.child, child))
                    pending.append((edge.child, child))

    def is_ancestor(self, node: int, of: int) -> bool:
        """Whether a path leads from `node` to `of`; a node is its own ancestor."""
        return bool(self._ancestors[of] >> node & 1)

    def check(self) -> None:
        """Asserts the invariants: acyclic, siblings distinct, ancestor sets and first parents right."""
        order = self._topological_order()
        assert len(order) == len(self), "the token graph has a cycle or an unreachable node"
        reached = [0] * len(self)
        reached[0] = 1
        for node in order:
            for token, edge in self.children[node].items():
                assert self.tokens[edge.child] == token, "an edge is filed under another token"
                reached[edge.child] |= reached[node] | 1 << edge.child
        assert reached == self._ancestors, "ancestor sets are stale"
        for node in range(1, len(self)):
            parent = self.parents[node]
            assert self.children[parent][self.tokens[node]].child == node, "a first parent has no edge to its child"
            assert self.depths[node] == self.depths[parent] + 1, "a depth is not its first parent's plus one"

    def _prefix_merge(self, edge: Edge, source: str, acceptance: float, draw: Drawn | None) -> None:
        edge.votes[source] = max(edge.votes.get(source, 0.0), acceptance)
        if edge.draw is not None:
            return  # NOTE: the fate of a drawn child must not depend on its token, so nothing may raise its estimate
        edge.draw = draw
        edge.acceptance = acceptance if draw is not None else max(edge.acceptance, acceptance)

    def _new_node(self, parent: int, token: int, key: tuple[int, ...]) -> int:
        node = len(self.tokens)
        self.tokens.append(token)
        self.depths.append(self.depths[parent] + 1)
        self.parents.append(parent)
        self.children.append({})
        self._ancestors.append(self._ancestors[parent] | 1 << node)
        self._by_key.setdefault(key, []).append(node)
        return node

    def _key(self, parent: int, token: int) -> tuple[int, ...]:
        """The last `rule.length` tokens of the path of first parents, ending in `token`."""
        key = [token]
        while len(key) < self.rule.length and parent >= 0:
            key.append(self.tokens[parent])
            parent = self.parents[parent]
        missing = self.rule.length - len(key)
        if missing > 0:
            key.extend(reversed(self._tail[-missing:]))
        return tuple(reversed(key))

    def _find_mergeable(self, parent: int, key: tuple[int, ...]) -> int | None:
        if self.rule.length == 0:
            return None
        for node in self._by_key.get(key, ()):
            same_depth = self.depths[node] == self.depths[parent] + 1
            if not self.is_ancestor(node, of=parent) and (same_depth or not self.rule.same_depth):
                return node
        return None

    def _inherit(self, node: int, ancestors: int) -> None:
        """Adds `ancestors` to those of `node` and of all its descendants."""
        pending = [node]
        while pending:
            current = pending.pop()
            if self._ancestors[current] | ancestors != self._ancestors[current]:
                self._ancestors[current] |= ancestors
                pending.extend(edge.child for edge in self.children[current].values())

    def _topological_order(self) -> list[int]:
        waiting = [0] * len(self)
        for edges in self.children:
            for edge in edges.values():
                waiting[edge.child] += 1
        order = [node for node, count in enumerate(waiting) if count == 0]
        for node in order:
            for edge in self.children[node].values():
                waiting[edge.child] -= 1
                if waiting[edge.child] == 0:
                    order.append(edge.child)
        return order


def merge(drafts: Sequence[Sequence[TokenGraph]]) -> list[TokenGraph]:
    """Merges each request's drafts into one graph: the first is kept and absorbs the rest, which are not modified."""
    for first, *others in drafts:
        for other in others:
            first.absorb(other)
    return [graphs[0] for graphs in drafts]
