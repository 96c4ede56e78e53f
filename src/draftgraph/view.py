"""From a verdict to a picture's data: the token graph of a step, its tree, and what became of it.

In: the verdicts of one request's steps, with their graphs. Out: `StepView`s for `draw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from draftgraph.draw import StepView, ViewEdge, ViewNode, ViewTreeNode
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.llm import LLM
from draftgraph.types import TARGET, Verdict

_TAIL_TOKENS = 24


def record_steps(llm: LLM, prompt: object, max_steps: int | None, **sampling: object) -> list[StepView]:
    """Writes a prompt's continuation and returns a view of each decoding step, at most `max_steps`."""
    views: list[StepView] = []
    stream = llm.stream(prompt, **sampling)  # type: ignore[arg-type]
    request = stream.request

    def observe(verdicts: Sequence[Verdict]) -> None:
        (verdict,) = verdicts
        if request.num_written:  # the first token comes from the prompt's own pass
            views.append(_view(llm, verdict, request.tokens, len(views) + 1, request.budget))

    llm.engine.observer = observe
    try:
        while max_steps is None or len(views) < max_steps:
            if next(stream, None) is None:
                break
    finally:
        llm.engine.observer = lambda verdicts: None
        stream.close()
    return views


def most_telling(views: Sequence[StepView]) -> int:
    """Returns the index of the step that shows most: accepted and merged nodes in a graph that is still legible."""

    def worth(view: StepView) -> float:
        crowded = max(0, len(view.nodes) - 24)
        return (
            3 * view.num_accepted
            + 2 * min(view.num_merged, 4)
            + len({s for n in view.nodes for s in n.sources})
            - crowded
        )

    return max(range(len(views)), key=lambda index: worth(views[index]))


def _view(llm: LLM, verdict: Verdict, tokens: Sequence[int], step: int, budget: int) -> StepView:
    tree, graph = verdict.tree, verdict.tree.graph
    assert isinstance(graph, TokenGraph), "a step's graph is a token graph"
    label = llm.model.tokenizer.token_label
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
        title=f"{llm.name}: one step of {len(verdict.tokens)} tokens",
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
