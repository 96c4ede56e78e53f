"""Steps to draw: small and large ones, with odd tokens and merged edges that lead anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence

from draftgraph.draw import StepView, ViewEdge, ViewNode, ViewTreeNode

Draft = tuple[int, str, str, float]  # parent, token, comma-separated sources, acceptance; ids count from 1

FIBONACCI: tuple[Draft, ...] = (
    (0, " fib", "ngram,model", 0.92), (0, " n", "suffix", 0.21), (0, " self", "recycle", 0.08),
    (1, "onacci", "ngram,suffix,model", 0.97), (1, "(", "model", 0.12), (4, "(n", "ngram,model", 0.95),
    (6, " -", "ngram,suffix", 0.94), (6, "-", "model", 0.22), (7, " ", "suffix,model", 0.9),
    (9, "1", "ngram,model", 0.93), (9, "2", "suffix", 0.25), (8, "1", "model", 0.7), (2, " +", "suffix", 0.3),
    (5, "n", "model", 0.6), (10, ")", "ngram,suffix", 0.9),
)  # fmt: skip
ODD = (" <b>&amp;", "\"'", "]]>", "\n\n", "\t", "\x00\u200b", "日本語", "🙂", "👨‍👩‍👧", "\u0301", "", "\ud800",
       "\ufffe", " internationalisation")  # fmt: skip


def view_of(
    drafts: Sequence[Draft],
    accepted: Sequence[int] = (),
    own: str = " +",
    *,
    root: str = " return",
    merged: Sequence[tuple[int, int, float]] = (),
    budget: int = 16,
) -> StepView:
    """A step over these drafts: the tree is unrolled breadth first, `accepted` names the path that was taken."""
    edges = [(p, i, a, False) for i, (p, _, _, a) in enumerate(drafts, 1)] + [(u, w, a, True) for u, w, a in merged]
    taken = set(zip((0, *accepted), accepted, strict=False))
    tree = [ViewTreeNode(-1, 0, root, 1.0, True)]
    depths = [0]
    for row, above in enumerate(tree):
        for parent, child, acceptance, _ in edges:
            if parent == above.node and len(tree) <= budget:
                goes_on = above.accepted and accepted[depths[row] : depths[row] + 1] == [child]
                share = above.path_acceptance * acceptance
                tree.append(ViewTreeNode(row, child, drafts[child - 1][1], share, goes_on))
                depths.append(depths[row] + 1)
    nodes = [ViewNode(0, root, 0, (), 1.0, True, True)]
    rows = {node.node for node in tree}
    for i, (parent, token, sources, acceptance) in enumerate(drafts, 1):
        names = tuple(sources.split(","))
        nodes.append(ViewNode(i, token, nodes[parent].depth + 1, names, acceptance, i in accepted, i in rows))
    num_accepted = sum(node.accepted for node in tree) - 1
    emitted = [(nodes[i].token, nodes[i].sources[0]) for i in list(accepted)[:num_accepted]] + [(own, "target")]
    return StepView(
        "Eight tokens from one pass", "def fibonacci(n):\n    if n < 2:\n        return n\n   ", tuple(nodes),
        tuple(ViewEdge(u, w, a, m, (u, w) in taken) for u, w, a, m in edges), tuple(tree), tuple(emitted),
        step=12, budget=budget, num_drafted=len(drafts), num_merged=len(merged), num_rows=len(tree),
        num_accepted=num_accepted,
    )  # fmt: skip


def random_view(seed: int, num_nodes: int = 40) -> StepView:
    """A graph of depth at most 8 whose merged edges lead to any layer, backwards too, without a cycle."""
    draw = random.Random(seed)
    drafts: list[Draft] = []
    depths, reach = [0], {0: {0}}
    for i in range(1, num_nodes):
        parent = draw.choice([j for j in range(i) if depths[j] < 8])
        drafts.append((parent, draw.choice([" the", ")", *ODD]), draw.choice(["ngram", "model,heads"]), draw.random()))
        depths.append(depths[parent] + 1)
        reach[i] = {i}
    after: dict[int, set[int]] = {i: set() for i in range(num_nodes)}
    for i, (parent, *_) in enumerate(drafts, 1):
        after[parent].add(i)
    merged: list[tuple[int, int, float]] = []
    for _ in range(num_nodes // 4):
        u, w = draw.sample(range(1, num_nodes), 2)
        if u not in _descendants(after, w) and w not in after[u]:
            after[u].add(w)
            merged.append((u, w, draw.random()))
    path = [0]
    while after[path[-1]]:
        path.append(draw.choice(sorted(after[path[-1]])))
    return view_of(drafts, path[1 : draw.randint(1, 6)], merged=merged, budget=draw.randint(1, 48))


def _descendants(after: dict[int, set[int]], node: int) -> set[int]:
    found, stack = {node}, [node]
    while stack:
        fresh = after[stack.pop()] - found
        found |= fresh
        stack += fresh
    return found


README = view_of(FIBONACCI, [1, 4, 6, 7, 9, 10, 15], merged=[(12, 15, 0.8), (11, 15, 0.85), (14, 7, 0.5)],
                 budget=20)  # fmt: skip
VIEWS = {
    "plain decoding": view_of([], [], budget=0),
    "six nodes": view_of(FIBONACCI[:6], [1, 4], budget=5),
    "readme": README,
    "accepted through a merged edge": view_of(FIBONACCI, [1, 5, 14, 7, 9], merged=[(14, 7, 0.5), (9, 3, 0.5)]),
    "twelve siblings and odd tokens": view_of([(0, t, "suffix,eagle", 0.1) for t in ODD], [7], own="中"),
    "forty nodes": random_view(4),
}
