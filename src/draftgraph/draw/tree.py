"""A static tree of candidates, with what trees of other sizes would bring.

In: parents, ranks and path acceptances, and plots. Out: SVG text that refers to nothing outside itself and follows
light and dark. Must never know how the tree was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draw.chart import MARGIN, WIDTH, Lines, picture, plot_panel
from draftgraph.draw.layout import arrange, columns, place, route
from draftgraph.draw.marks import curve_mark, legend_entry, pill_mark, text_mark
from draftgraph.draw.order import Box, Link
from draftgraph.draw.style import NUM_COLOURS
from draftgraph.draw.text import px, token_width
from draftgraph.errors import ParameterError

_ROOT = "text"
_TOP = 73.0  # centre of the topmost pill


def render_tree(
    title: str,
    facts: str,
    parents: Sequence[int],
    ranks: Sequence[int],
    acceptances: Sequence[float],
    plots: Sequence[Lines] = (),
) -> str:
    """One picture of a tree, every node with its rank and its path's acceptance, and plots below it.

    Args:
        parents: [n] index of each node's parent, below its own; -1 for the root.
        ranks: [n] from 0.
        acceptances: [n] from 0 to 1.

    Raises:
        ParameterError: a parent that is no earlier node, or lists of different lengths.
    """
    nodes = range(len(parents))
    fitting = len(parents) == len(ranks) == len(acceptances) and all(-1 <= parents[node] < node for node in nodes)
    if not fitting or not all(0 <= share <= 1 for share in acceptances):
        raise ParameterError(
            "a tree that contradicts itself", "a parent before each node, shares from 0 to 1", "mend it"
        )
    present = sorted(set(ranks))
    entries = [legend_entry(f"legend-source s{_colour(rank)}", f"candidate {rank + 1}", "source") for rank in present]
    panel, height, width = _panel(parents, ranks, acceptances)
    return picture(title, facts, entries, [(panel, height), *map(plot_panel, plots)], width)


def _panel(parents: Sequence[int], ranks: Sequence[int], acceptances: Sequence[float]) -> tuple[str, float, float]:
    """The marks of the tree, its height and the width it needs."""
    labels = [str(rank + 1) for rank in ranks]
    boxes = [Box(0, token_width(_ROOT, False))]
    for parent, rank, label in zip(parents, ranks, labels, strict=True):
        boxes.append(Box(boxes[parent + 1].layer + 1, token_width(label, True), rank))
    links = [Link(parent + 1, node) for node, parent in enumerate(parents, start=1)]
    rows = arrange(boxes, links)
    grid = columns([(boxes, links, rows)], left=MARGIN)
    pills = place(boxes, rows, grid)
    curves = zip(route(links, boxes, rows, grid), acceptances, strict=True)
    marks = [curve_mark(curve, share, merged=False, accepted=False, faded=False) for curve, share in curves]
    marks.append(pill_mark(pills[0], _ROOT, "root", "what is written so far", node=0))
    for node, (label, rank, share) in enumerate(zip(labels, ranks, acceptances, strict=True), start=1):
        tip = f"candidate {label}\npath acceptance {share:.3f}"
        caps = (_colour(rank),)
        marks.append(pill_mark(pills[node], label, "plain", tip, node=node, caps=caps, number=share))
    drafts = len(parents)
    head = text_mark(MARGIN, 27, f"the best tree: {drafts} draft{'' if drafts == 1 else 's'}", "head")
    ticks = [text_mark(left + 2, 46, f"+{layer}", "tick") for layer, left in enumerate(grid.lefts) if layer]
    body = head + "".join(ticks) + f'<g transform="translate(0 {px(_TOP)})">{"".join(marks)}</g>'
    return body, _TOP + rows.height + 26, max([WIDTH, *(pill.right + MARGIN + 12 for pill in pills)])


def _colour(number: int) -> int:
    return number % NUM_COLOURS
