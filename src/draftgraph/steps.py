"""From a verdict to a picture's data: the token graph of a step, its tree, and what became of it.

In: one request's verdict with its graph, and its tokens from before. Out: a `StepView` for `draw` and for the server's
page. Must never know an engine, a model or how a step is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from draftgraph.draw import StepView, ViewEdge, ViewNode, ViewTreeNode
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import TARGET, Verdict

_TAIL_TOKENS = 24


def step_view(
    verdict: Verdict, tokens: Sequence[int], label: Callable[[int], str], *, model: str, step: int, budget: int
) -> StepView:
    """Returns what there is to draw of one step.

    Args:
        tokens: the request's tokens before the verdict; the last one is the root.
        label: the text a token is shown with.
        model: the model's name, for the title.
        step: the step's number in its request.
        budget: most drafts that its tree could have.
    """
    tree, graph = verdict.tree, verdict.tree.graph
    assert isinstance(graph, TokenGraph), "a step's graph is a token graph"
    taken = [tree.root, *(node for node in verdict.nodes if node >= 0)]
    accepted_nodes = {tree.graph_nodes[node] for node in taken}
    accepted_edges = {(tree.graph_nodes[a], tree.graph_nodes[b]) for a, b in pairwise(taken)}
    in_tree = set(tree.graph_nodes)
    edges = [(parent, edge) for parent, children in enumerate(graph.children) for edge in children.values()]
    estimate = {edge.child: edge.acceptance for parent, edge in edges if graph.parents[edge.child] == parent}
    sources: dict[int, tuple[str, ...]] = {0: ()}
    for _, edge in edges:
        sources[edge.child] = tuple(dict.fromkeys((*sources.get(edge.child, ()), *edge.sources)))
    return StepView(
        title=f"{model}: one step of {len(verdict.tokens)} tokens",
        prompt_tail="".join(map(label, tokens[-_TAIL_TOKENS:-1])),
        nodes=tuple(
            ViewNode(
                node, label(token), graph.depths[node], sources[node], _share(estimate.get(node, 1.0)),
                node in accepted_nodes, node in in_tree,
            )
            for node, token in enumerate(graph.tokens)
        ),
        edges=tuple(
            ViewEdge(
                parent, edge.child, _share(edge.acceptance), graph.parents[edge.child] != parent,
                (parent, edge.child) in accepted_edges,
            )
            for parent, edge in edges
        ),
        tree=tuple(
            ViewTreeNode(
                int(tree.parents[node]) - tree.root if node > tree.root else -1, tree.graph_nodes[node],
                label(int(tree.tokens[node])), _share(tree.path_acceptance[node]), node in taken,
            )
            for node in range(tree.root, len(tree.tokens))
        ),
        emitted=tuple(
            (label(token), tree.sources[node][0] if node >= 0 else TARGET)
            for token, node in zip(verdict.tokens, verdict.nodes, strict=True)
        ),
        step=step,
        budget=budget,
        num_drafted=graph.num_drafted,
        num_merged=graph.num_merged,
        num_rows=len(tree.tokens),
        num_accepted=verdict.num_accepted,
    )  # fmt: skip


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
