"""Where everything of a step stands: a `StepView` in, its graph and its tree placed on shared columns out.

Turns nodes and edges into the boxes and links of `layout`, with the widths of their texts. Must never know colours or
SVG.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftgraph.draw.layout import Columns, Pill, Point, Rows, arrange, columns, place, route
from draftgraph.draw.order import Box, Link
from draftgraph.draw.text import token_width
from draftgraph.draw.view import StepView, ViewEdge
from draftgraph.types import TARGET

MARGIN = 28.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A placed graph or tree: `pills[i]` belongs to `boxes[i]`, `curves[i]` to `links[i]`."""

    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    rows: Rows
    pills: tuple[Pill, ...]
    curves: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Both panels of a view on one set of columns. The tree's last pill is the target's own token, if it wrote one."""

    graph: Panel
    tree: Panel
    grid: Columns


def lay_out(view: StepView) -> Layout:
    """Place a view's graph and tree. Does not modify the view."""
    graph_boxes = tuple(Box(n.depth, token_width(n.token, n.id != 0), i) for i, n in enumerate(view.nodes))
    graph_links = _graph_links(view)
    graph_rows = arrange(graph_boxes, graph_links)
    tree_boxes, tree_links = _tree_shape(view, graph_rows)
    tree_rows = arrange(tree_boxes, tree_links)
    shapes = [(graph_boxes, graph_links, graph_rows), (tree_boxes, tree_links, tree_rows)]
    grid = columns(shapes, left=MARGIN)
    graph, tree = (Panel(b, k, r, place(b, r, grid), route(k, b, r, grid)) for b, k, r in shapes)
    return Layout(graph, tree, grid)


def _graph_links(view: StepView) -> tuple[Link, ...]:
    spot = {node.id: index for index, node in enumerate(view.nodes)}
    return tuple(Link(spot[e.parent], spot[e.child], 0.7 if e.merged else 1.0, e.accepted) for e in drawn_order(view))


def drawn_order(view: StepView) -> list[ViewEdge]:
    """Edges with the merged ones last, so that the layout takes the others for the tree."""
    return sorted(view.edges, key=lambda edge: edge.merged)


def _tree_shape(view: StepView, graph_rows: Rows) -> tuple[tuple[Box, ...], tuple[Link, ...]]:
    """The tree's boxes and links, siblings in the graph's order, the target's own token last."""
    heights = {node.id: y for node, y in zip(view.nodes, graph_rows.boxes, strict=True)}
    boxes: list[Box] = []
    links: list[Link] = []
    for row, node in enumerate(view.tree):
        depth = boxes[node.parent].layer + 1 if row else 0
        boxes.append(Box(depth, token_width(node.token, row != 0), heights[node.node]))
        if row:
            links.append(Link(node.parent, row, level=node.accepted))
    if view.tree and view.emitted and view.emitted[-1][1] == TARGET:
        last = _last_accepted(view)
        boxes.append(Box(boxes[last].layer + 1, token_width(view.emitted[-1][0], False), boxes[last].rank))
        links.append(Link(last, len(boxes) - 1, level=True))
    return tuple(boxes), tuple(links)


def _last_accepted(view: StepView) -> int:
    return max((row for row, node in enumerate(view.tree) if node.accepted), default=0)
