"""The best static tree: one shape for every step, from how often each rank of the draft's candidates is right.

In: acceptances by rank, and what a step with a tree costs. Out: for every number of drafts the tree that brings most
expected tokens, and the number with most tokens per second. Never sees tokens, graphs or tensors.

The dynamic programme is Sequoia's (arXiv 2402.12374, section 3.1), here with a limit to the depth. Let P[k] be the
probability that the k-th candidate after a token is what the target writes there; candidates exclude each other. Then
a tree brings 1 + Σ over its nodes of Π P[rank] over the node's path, and with

    V(n, d)     the most that n drafts below a node bring once that node is taken, no path longer than d,
    C(n, k, d)  the same if only candidates from rank k on may be used,

    V(n, d)    = C(n, 0, d),  V(0, d) = V(n, 0) = 0
    C(n, k, d) = max over s in 0..n of  [s > 0] · P[k] · (1 + V(s - 1, d - 1)) + C(n - s, k + 1, d),  C(n, K, d) = 0:

s drafts go to candidate k and the subtree below it, the others to later candidates. O(n² · K · d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftgraph.plan.cost import Choice


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree of ranks below a root.

    Args:
        parents: [n] index of each draft's parent, smaller than its own; -1 for the root.
        ranks: [n] which candidate after its parent a draft is, from 0.
        acceptances: [n] probability that the path to it is taken.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    acceptances: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def tokens(self) -> float:
        """Expected tokens per step, the target's own included."""
        return 1.0 + sum(self.acceptances)

    @property
    def depths(self) -> list[int]:
        """[n] depth below the root, from 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def expanded(self) -> list[int]:
        """[deepest] how many nodes of each depth, from 0, have children: a draft model's rows, level by level."""
        inner = set(self.parents)
        depths = [0, *self.depths]
        return [
            sum(depths[node + 1] == level and node in inner for node in range(-1, len(self)))
            for level in range(max(depths))
        ]


def best_trees(acceptances: Sequence[float], most: int, depth: int) -> list[StaticTree]:
    """Returns the best tree of at most n drafts for every n from 0 to `most`.

    Args:
        acceptances: [ranks] P, by rank.
        depth: longest path.
    """
    tables = _Tables(acceptances, most, depth)
    return [tables.tree(count) for count in range(most + 1)]


def best_choice(trees: Sequence[StaticTree], seconds_of: Callable[[StaticTree], float]) -> Choice:
    """Returns what the tree with most expected tokens per second promises; its `count` is the tree's index."""
    choices = [Choice(tree.tokens, seconds_of(tree), index) for index, tree in enumerate(trees)]
    return max(choices, key=lambda choice: choice.rate)


class _Tables:
    """V and C of the recurrence, and for each C the s that reaches it."""

    def __init__(self, acceptances: Sequence[float], most: int, depth: int) -> None:
        self._acceptances = acceptances
        self._depth = depth
        self._shares: list[list[list[int]]] = [[]]  # [d][k][n]
        values = [0.0] * (most + 1)  # V(·, d)
        for _ in range(depth):
            below, rest, shares = values, [0.0] * (most + 1), []
            for acceptance in reversed(acceptances):
                best = [self._best(acceptance, below, rest, count) for count in range(most + 1)]
                rest = [value for value, _ in best]
                shares.append([share for _, share in best])
            values = rest
            self._shares.append(shares[::-1])

    @staticmethod
    def _best(acceptance: float, below: Sequence[float], rest: Sequence[float], count: int) -> tuple[float, int]:
        """Returns C(count, k, d) and the smallest s that reaches it, from V(·, d - 1) and C(·, k + 1, d)."""
        best, chosen = rest[count], 0
        for share in range(1, count + 1):
            value = acceptance * (1 + below[share - 1]) + rest[count - share]
            if value > best:
                best, chosen = value, share
        return best, chosen

    def tree(self, count: int) -> StaticTree:
        """Returns the tree that reaches V(count, depth), in order of depth, parents and ranks."""
        parents, ranks, paths = [], [], []
        pending = [(-1, 1.0, count, self._depth)]  # (node, its path's acceptance, drafts below it, depth below it)
        for node, path, below, depth in pending:
            for rank in range(len(self._acceptances) if depth else 0):
                share = self._shares[depth][rank][below]
                below -= share
                if share:
                    parents.append(node)
                    ranks.append(rank)
                    paths.append(path * self._acceptances[rank])
                    pending.append((len(parents) - 1, paths[-1], share - 1, depth - 1))
        return StaticTree(tuple(parents), tuple(ranks), tuple(paths))
