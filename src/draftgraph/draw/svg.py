"""One step as an SVG: header, legend, the graph, the tree, and what the step wrote, one below the other.

In: a `StepView`, and the colour number of each drafter. Out: SVG text that refers to nothing outside itself. Must never
know an engine or a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from draftgraph.draw.layout import PILL_HEIGHT, Pill
from draftgraph.draw.marks import curve_mark, legend_entry, pill_mark, states, text_mark
from draftgraph.draw.panels import MARGIN, Layout, Panel, drawn_order, lay_out
from draftgraph.draw.style import LIGHT, LIGHT_SOURCES, NUM_COLOURS, css
from draftgraph.draw.text import (
    CAP,
    COLUMN,
    clean,
    escape,
    label_width,
    marked,
    px,
    tail_of,
    text_columns,
    token_width,
    visible,
)
from draftgraph.draw.view import KNOWN_SOURCES, StepView, ViewNode, ranked, sources_of
from draftgraph.types import TARGET

MIN_WIDTH = 800.0
PANEL_TOP = 73.0  # centre of a panel's topmost pill


def render_svg(view: StepView) -> str:
    """One step as a self-contained SVG on a light background. Does not modify the view."""
    return draw_step(view, palette_of([view]), style=f"<style>{css(LIGHT, LIGHT_SOURCES)}</style>")


def palette_of(views: Iterable[StepView]) -> dict[str, int]:
    """A colour number for each source, the same in every picture for the usual drafters."""
    present = ranked(name for view in views for name in sources_of(view))
    others = [name for name in present if name not in KNOWN_SOURCES]
    spare = NUM_COLOURS - len(KNOWN_SOURCES)
    numbers = {name: index for index, name in enumerate(KNOWN_SOURCES)}
    return numbers | {name: len(KNOWN_SOURCES) + index % spare for index, name in enumerate(others)}


def draw_step(view: StepView, palette: dict[str, int], *, style: str) -> str:
    """One step as an SVG element that opens with `style`. Does not modify the view."""
    layout = lay_out(view)
    pills = layout.graph.pills + layout.tree.pills
    width = max([MIN_WIDTH, *(pill.right + MARGIN + 12 for pill in pills)])
    parts = []
    y = 0.0
    for draw in (_header, _legend, _graph_panel, _tree_panel, _footer):
        body, height = draw(view, layout, palette, width)
        parts.append(f'<g transform="translate(0 {px(y)})">{body}</g>')
        y += height
    label = f"{clean(view.title)}: step {view.step}, {view.num_accepted} of {view.num_drafted} drafts accepted"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dg" width="{px(width)}" height="{px(y)}" '
        f'viewBox="0 0 {px(width)} {px(y)}" role="img" aria-label="{escape(label)}">{style}'
        f'<rect class="bg" x="0.5" y="0.5" width="{px(width - 1)}" height="{px(y - 1)}" rx="12"/>\n'
        + "\n".join(parts)
        + "</svg>"
    )


def _header(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    facts = f"step {view.step}  ·  budget {view.budget}"
    title = clean(" ".join(view.title[:240].split()))
    while label_width(title) * 20 > width - 2 * MARGIN - 160:
        title = title.rstrip("…")[:-1] + "…"
    body = text_mark(MARGIN, 42, escape(title), "title")
    body += text_mark(width - MARGIN, 42, escape(facts), "mute end")
    root = view.nodes[0].token
    room = (width - 2 * MARGIN - token_width(root, False)) / COLUMN - 2
    tail = tail_of(view.prompt_tail, room)
    root_x = MARGIN + text_columns(tail) * COLUMN + (8 if tail else 0)
    length = f' textLength="{px(text_columns(tail) * COLUMN)}"' if len(tail) > 1 else ""
    body += text_mark(MARGIN, 72.5, marked(tail), "mono tail", length)
    body += pill_mark(Pill(root_x, 68, token_width(root, False)), root, "root", _root_tip(root))
    return body, 96.0


def _legend(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    entries = [legend_entry(f"legend-source s{palette[name]}", name, "source") for name in sources_of(view)]
    if any(len(node.sources) > 1 for node in view.nodes):
        entries.append(legend_entry("legend-split", "several", "split"))
    if any(node.accepted for node in view.nodes[1:]):
        entries.append(legend_entry("legend-accepted", "accepted", "accepted"))
    if any(edge.merged for edge in view.edges):
        entries.append(legend_entry("legend-merged", "merged edge", "merged"))
    if any(not node.in_tree for node in view.nodes):
        entries.append(legend_entry("legend-left-out", "not verified", "faded"))
    if view.emitted and view.emitted[-1][1] == TARGET:
        entries.append(legend_entry("legend-target", "target's own token", "target"))
    if len(view.nodes) > 1:
        entries.append(legend_entry("legend-number", "acceptance", "number"))
    body, x, y = "", MARGIN, 8.0
    for entry, entry_width in entries:
        if x > MARGIN and x + entry_width > width - MARGIN:
            x, y = MARGIN, y + 22
        body += f'<g transform="translate({px(x)} {px(y)})">{entry}</g>'
        x += entry_width + 20
    return body, y + 24


def _graph_panel(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    spot = {node.id: node for node in view.nodes}
    copies = Counter(node.node for node in view.tree)
    edges = []
    for edge, curve in zip(drawn_order(view), layout.graph.curves, strict=True):
        shown = spot[edge.parent].in_tree and spot[edge.child].in_tree
        drawn = curve_mark(curve, edge.acceptance, merged=edge.merged, accepted=edge.accepted, faded=not shown)
        edges.append((edge.accepted, edge.merged, drawn))
    pills = []
    for node, pill in zip(view.nodes, layout.graph.pills, strict=True):
        if node.id == 0:
            pills.append(pill_mark(pill, node.token, "root", _root_tip(node.token), node=0))
            continue
        badge = f"×{copies[node.id]}" if copies[node.id] > 1 else ""
        classes = states(accepted=node.accepted, faded=not node.in_tree)
        tip = _tip(node, f"estimated acceptance {node.acceptance:.3f}", _fate(node.accepted, node.in_tree))
        caps = tuple(palette[name] for name in node.sources)
        drawn = pill_mark(pill, node.token, classes, tip, node=node.id, caps=caps, number=node.acceptance, badge=badge)
        pills.append(drawn)
    facts = _count(len(view.nodes) - 1, "node") if len(view.nodes) > 1 else "nothing drafted"
    merged = sum(edge.merged for edge in view.edges)
    facts += f", {_count(merged, 'merged edge')}" if merged else ""
    marks = [mark for *_, mark in sorted(edges)] + pills
    return _framed("token graph", facts, layout.graph, layout, marks, width)


def _tree_panel(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    spot = {node.id: node for node in view.nodes}
    merged = {(edge.parent, edge.child) for edge in view.edges if edge.merged}
    numbers = _copy_numbers(view, layout.tree.pills)
    edges = []
    for curve, node in zip(layout.tree.curves, view.tree[1:], strict=False):
        is_merged = (view.tree[node.parent].node, node.node) in merged
        drawn = curve_mark(curve, node.path_acceptance, merged=is_merged, accepted=node.accepted, faded=False)
        edges.append((node.accepted, is_merged, drawn))
    pills = []
    for row, (pill, node) in enumerate(zip(layout.tree.pills, view.tree, strict=False)):
        if row == 0:
            pills.append(pill_mark(pill, node.token, "root", _root_tip(node.token), node=node.node))
            continue
        share, badge = node.path_acceptance, numbers[row]
        tip = _tip(spot[node.node], f"path acceptance {share:.3f}", _fate(node.accepted, True))
        caps = tuple(palette[name] for name in spot[node.node].sources)
        classes = states(accepted=node.accepted, faded=False)
        drawn = pill_mark(pill, node.token, classes, tip, node=node.node, caps=caps, number=share, badge=badge)
        pills.append(drawn)
    if len(layout.tree.pills) > len(view.tree):
        edges.append((True, False, curve_mark(layout.tree.curves[-1], 1.0, merged=False, accepted=True, faded=False)))
        token = view.emitted[-1][0]
        pills.append(pill_mark(layout.tree.pills[-1], token, "own", f"{visible(token)}\nthe target's own token"))
    facts = _count(view.num_rows, "row") + (", numbers for the whole path" if len(view.tree) > 1 else "")
    marks = [mark for *_, mark in sorted(edges)] + pills
    return _framed("unrolled tree, verified in one pass", facts, layout.tree, layout, marks, width)


def _copy_numbers(view: StepView, pills: Sequence[Pill]) -> list[str]:
    """For each row of a node that was unrolled more than once its number from the top, as "2/3", else ""."""
    rows: dict[int, list[int]] = {}
    for row, node in enumerate(view.tree):
        rows.setdefault(node.node, []).append(row)
    numbers = [""] * len(view.tree)
    for copies in rows.values():
        for place_, row in enumerate(sorted(copies, key=lambda row: (pills[row].y, pills[row].x)), 1):
            numbers[row] = f"{place_}/{len(copies)}" if len(copies) > 1 else ""
    return numbers


def _framed(title: str, facts: str, panel: Panel, layout: Layout, marks: list[str], width: float) -> tuple[str, float]:
    """A panel with its headline, position ticks and marks, curves below pills."""
    height = PANEL_TOP + panel.rows.height + 26
    body = f'<rect class="panel" x="12" y="4" width="{px(width - 24)}" height="{px(height - 12)}" rx="8"/>'
    body += text_mark(MARGIN, 27, escape(title), "head") + text_mark(width - MARGIN, 27, escape(facts), "mute end")
    deepest = max((box.layer for box in panel.boxes), default=0)
    for layer in range(deepest + 1):
        tick = f"+{layer}" if layer else "root"
        body += text_mark(layout.grid.lefts[layer] + 2, 46, tick, "tick")
    return body + f'<g transform="translate(0 {px(PANEL_TOP)})">{"".join(marks)}</g>', height


def _footer(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    body = text_mark(MARGIN, 24, "written by this step", "head")
    x, y = MARGIN, 52.0
    for (text, source), names in zip(view.emitted, _emitted_sources(view), strict=True):
        pill_width = token_width(text, False) + (CAP - 2 if names else 0)
        if x > MARGIN and x + pill_width > width - MARGIN:
            x, y = MARGIN, y + PILL_HEIGHT + 8
        caps = tuple(palette[name] for name in names)
        classes = "chip accepted" if names else "own"
        body += pill_mark(Pill(x, y, pill_width), text, classes, f"{visible(text)}\n{clean(source)}", caps=caps)
        x += pill_width + 6
    if not view.emitted:
        body += text_mark(MARGIN, y + 4, "nothing: the prompt is still being read", "mute")
    numbers = (
        (view.num_drafted, "drafted"),
        (view.num_merged, "merged edges" if view.num_merged != 1 else "merged edge"),
        (view.num_rows, "rows verified" if view.num_rows != 1 else "row verified"),
        (view.num_accepted, "accepted"),
        (len(view.emitted), "tokens this pass" if len(view.emitted) != 1 else "token this pass"),
    )
    stats = "".join(
        f'<tspan class="num" dx="{18 if i else 0}">{value}</tspan><tspan dx="5">{label}</tspan>'
        for i, (value, label) in enumerate(numbers)
    )
    body += text_mark(MARGIN, y + 48, stats, "stats")
    return body, y + 70


def _emitted_sources(view: StepView) -> list[tuple[str, ...]]:
    """For each emitted token everyone who proposed it; () for the target's own."""
    sources = {node.id: node.sources for node in view.nodes}
    path = [sources[node.node] for node in view.tree[1:] if node.accepted]
    found: list[tuple[str, ...]] = []
    for index, (_, source) in enumerate(view.emitted):
        names = path[index] if index < len(path) and source in path[index] else (source,)
        found.append(() if source == TARGET else names)
    return found


def _fate(accepted: bool, in_tree: bool) -> str:
    return "accepted" if accepted else "verified, not accepted" if in_tree else "not verified: outside the budget"


def _tip(node: ViewNode, number: str, fate: str) -> str:
    who = clean(", ".join(node.sources) or "no drafter")
    return f"{visible(node.token)}\nproposed by {who}\n{number}\n{fate}"


def _root_tip(token: str) -> str:
    return f"{visible(token)}\nthe last committed token"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
