"""Pictures of one decoding step: a `StepView` of plain values in, an SVG or an HTML page out.

Above, the token graph with everything the drafters proposed; below, the tree unrolled from it that the target verified
in one pass; at the foot, what the step wrote. Pure functions: the same view gives the same bytes. Token text is made
visible and always escaped; the output refers to nothing outside itself. Must never know an engine or a model.
"""

from __future__ import annotations

import html
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftgraph.draw_layout import (
    PILL_HEIGHT,
    Box,
    Columns,
    Link,
    Pill,
    Point,
    Rows,
    arrange,
    columns,
    place,
    route,
)
from draftgraph.errors import ParameterError

TARGET = "target"  # the source of the target's own token in `emitted`

MARGIN = 28.0
MIN_WIDTH = 800.0
MAX_TOKEN_COLUMNS = 15.0
MONO = 13.0  # font size of tokens, pixels
COLUMN = 0.61 * MONO  # advance of one narrow character
CAP = 13.0  # width of a pill's coloured end
PANEL_TOP = 73.0  # centre of a panel's topmost pill
KNOWN_SOURCES = ("ngram", "suffix", "model", "recycle", "heads")
LIGHT_SOURCES = ("#3f7fd1", "#e5a50a", "#c8553d", "#3aa6b0", "#b679b8", "#7d8590", "#8a6d3b", "#94b447")
DARK_SOURCES = ("#5b9bea", "#edb62e", "#e2745c", "#4fc0ca", "#cc92ce", "#98a1ac", "#b59458", "#a9c95f")


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
        _require(ids[:1] == [0] and len(set(ids)) == len(ids), f"node ids {ids[:8]}", "distinct ids, 0 first")
        _require(all(0 <= n.depth <= 512 for n in self.nodes), "a node's depth", "0 to 512")
        for edge in self.edges:
            _require(edge.parent in ids and edge.child in ids, f"edge {edge.parent} to {edge.child}", "edges of nodes")
        firsts = Counter(edge.child for edge in self.edges if not edge.merged)
        _require(firsts == Counter(ids[1:]), "first edges", "one edge that is not merged into each node but the root")
        _require(_is_acyclic(ids, self.edges), "edges that form a cycle", "a graph without cycles")
        for row, node in enumerate(self.tree):
            _require(node.node in ids, f"row {row} of node {node.node}", "rows of nodes of the graph")
            _require(
                -1 < node.parent < row or node.parent == -1 == row - 1,
                f"parent {node.parent} of row {row}",
                "an earlier row, -1 for row 0 alone",
            )
        shares = [n.acceptance for n in self.nodes] + [e.acceptance for e in self.edges]
        shares += [n.path_acceptance for n in self.tree]
        _require(all(0.0 <= share <= 1.0 for share in shares), "an acceptance", "a number from 0 to 1")


def visible(text: str) -> str:
    """Token text with every character visible: '·' a space, '⏎' a newline, '⇥' a tab, code points as '⟨200B⟩'."""
    if not text:
        return "∅"
    shown = "".join(_visible_character(text, index) for index in range(len(text)))
    return "◌" + shown if unicodedata.category(text[0]) in ("Mn", "Me") else shown


def sources_of(view: StepView) -> tuple[str, ...]:
    """The drafters present in a view, the usual ones first, the others by name."""
    names = {name for node in view.nodes for name in node.sources}
    return _ranked(names | {source for _, source in view.emitted if source != TARGET})


def render_svg(view: StepView) -> str:
    """One step as a self-contained SVG on a light background. Does not modify the view."""
    return _svg(view, _palette([view]), style=f"<style>{_css(LIGHT, LIGHT_SOURCES)}</style>")


def render_html(views: StepView | Sequence[StepView]) -> str:
    """A self-contained page: one step, or several to walk through with the arrow keys. Follows light and dark.

    Raises:
        ParameterError: there is no view to draw.
    """
    views = [views] if isinstance(views, StepView) else list(views)
    _require(bool(views), "no view", "one view or more")
    palette = _palette(views)
    steps = "\n".join(f'<section class="step">{_svg(view, palette, style="")}</section>' for view in views)
    walk = "" if len(views) == 1 else WALK
    style = _css(LIGHT, LIGHT_SOURCES) + PAGE_CSS % LIGHT
    dark = _css(DARK, DARK_SOURCES) + PAGE_CSS % DARK
    return PAGE % {
        "title": _escape(_clean(views[0].title)),
        "style": f"{style}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}",
        "walk": walk,
        "steps": steps,
        "script": SCRIPT,
    }


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
    graph_boxes = tuple(Box(n.depth, _pill_width(n.token, n.id != 0), i) for i, n in enumerate(view.nodes))
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
    return tuple(Link(spot[e.parent], spot[e.child], 0.7 if e.merged else 1.0, e.accepted) for e in _drawn_order(view))


def _drawn_order(view: StepView) -> list[ViewEdge]:
    """Edges with the merged ones last, so that the layout takes the others for the tree."""
    return sorted(view.edges, key=lambda edge: edge.merged)


def _tree_shape(view: StepView, graph_rows: Rows) -> tuple[tuple[Box, ...], tuple[Link, ...]]:
    """The tree's boxes and links, siblings in the graph's order, the target's own token last."""
    heights = {node.id: y for node, y in zip(view.nodes, graph_rows.boxes, strict=True)}
    boxes: list[Box] = []
    links: list[Link] = []
    for row, node in enumerate(view.tree):
        depth = boxes[node.parent].layer + 1 if row else 0
        boxes.append(Box(depth, _pill_width(node.token, row != 0), heights[node.node]))
        if row:
            links.append(Link(node.parent, row, level=node.accepted))
    if view.tree and view.emitted and view.emitted[-1][1] == TARGET:
        last = _last_accepted(view)
        boxes.append(Box(boxes[last].layer + 1, _pill_width(view.emitted[-1][0], False), boxes[last].rank))
        links.append(Link(last, len(boxes) - 1, level=True))
    return tuple(boxes), tuple(links)


def _last_accepted(view: StepView) -> int:
    return max((row for row, node in enumerate(view.tree) if node.accepted), default=0)


def _svg(view: StepView, palette: dict[str, int], *, style: str) -> str:
    layout = lay_out(view)
    pills = layout.graph.pills + layout.tree.pills
    width = max([MIN_WIDTH, *(pill.right + MARGIN + 12 for pill in pills)])
    parts = []
    y = 0.0
    for draw in (_header, _legend, _graph_panel, _tree_panel, _footer):
        body, height = draw(view, layout, palette, width)
        parts.append(f'<g transform="translate(0 {_n(y)})">{body}</g>')
        y += height
    label = f"{_clean(view.title)}: step {view.step}, {view.num_accepted} of {view.num_drafted} drafts accepted"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dg" width="{_n(width)}" height="{_n(y)}" '
        f'viewBox="0 0 {_n(width)} {_n(y)}" role="img" aria-label="{_escape(label)}">{style}'
        f'<rect class="bg" x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(y - 1)}" rx="12"/>\n'
        + "\n".join(parts)
        + "</svg>"
    )


def _header(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    facts = f"step {view.step}  ·  budget {view.budget}"
    title = _clean(" ".join(view.title[:240].split()))
    while _label_width(title) * 20 > width - 2 * MARGIN - 160:
        title = title.rstrip("…")[:-1] + "…"
    body = _text(MARGIN, 42, _escape(title), "title")
    body += _text(width - MARGIN, 42, _escape(facts), "mute end")
    root = view.nodes[0].token
    room = (width - 2 * MARGIN - _pill_width(root, False)) / COLUMN - 2
    tail = _tail(view.prompt_tail, room)
    root_x = MARGIN + _columns(tail) * COLUMN + (8 if tail else 0)
    length = f' textLength="{_n(_columns(tail) * COLUMN)}"' if len(tail) > 1 else ""
    body += _text(MARGIN, 72.5, _marked(tail), "mono tail", length)
    body += _pill(Pill(root_x, 68, _pill_width(root, False)), root, "root", _root_tip(root))
    return body, 96.0


def _legend(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    entries = [_legend_entry(f"legend-source s{palette[name]}", name, "source") for name in sources_of(view)]
    if any(len(node.sources) > 1 for node in view.nodes):
        entries.append(_legend_entry("legend-split", "several", "split"))
    if any(node.accepted for node in view.nodes[1:]):
        entries.append(_legend_entry("legend-accepted", "accepted", "accepted"))
    if any(edge.merged for edge in view.edges):
        entries.append(_legend_entry("legend-merged", "merged edge", "merged"))
    if any(not node.in_tree for node in view.nodes):
        entries.append(_legend_entry("legend-left-out", "not verified", "faded"))
    if view.emitted and view.emitted[-1][1] == TARGET:
        entries.append(_legend_entry("legend-target", "target's own token", "target"))
    if len(view.nodes) > 1:
        entries.append(_legend_entry("legend-number", "acceptance", "number"))
    body, x, y = "", MARGIN, 8.0
    for entry, entry_width in entries:
        if x > MARGIN and x + entry_width > width - MARGIN:
            x, y = MARGIN, y + 22
        body += f'<g transform="translate({_n(x)} {_n(y)})">{entry}</g>'
        x += entry_width + 20
    return body, y + 24


def _legend_entry(name: str, label: str, kind: str) -> tuple[str, float]:
    sample, sample_width = LEGEND_SAMPLES[kind]
    text = _text(sample_width + 6, 4, _escape(_clean(label)), "small")
    return f'<g class="{name}">{sample}{text}</g>', sample_width + 6 + _label_width(label) * 12


def _graph_panel(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    spot = {node.id: node for node in view.nodes}
    copies = Counter(node.node for node in view.tree)
    edges = []
    for edge, curve in zip(_drawn_order(view), layout.graph.curves, strict=True):
        shown = spot[edge.parent].in_tree and spot[edge.child].in_tree
        drawn = _curve(curve, edge.acceptance, merged=edge.merged, accepted=edge.accepted, faded=not shown)
        edges.append((edge.accepted, edge.merged, drawn))
    pills = []
    for node, pill in zip(view.nodes, layout.graph.pills, strict=True):
        if node.id == 0:
            pills.append(_pill(pill, node.token, "root", _root_tip(node.token), node=0))
            continue
        badge = f"×{copies[node.id]}" if copies[node.id] > 1 else ""
        classes = _states(accepted=node.accepted, faded=not node.in_tree)
        tip = _tip(node, f"estimated acceptance {node.acceptance:.3f}", _fate(node.accepted, node.in_tree))
        caps = tuple(palette[name] for name in node.sources)
        drawn = _pill(pill, node.token, classes, tip, node=node.id, caps=caps, number=node.acceptance, badge=badge)
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
        drawn = _curve(curve, node.path_acceptance, merged=is_merged, accepted=node.accepted, faded=False)
        edges.append((node.accepted, is_merged, drawn))
    pills = []
    for row, (pill, node) in enumerate(zip(layout.tree.pills, view.tree, strict=False)):
        if row == 0:
            pills.append(_pill(pill, node.token, "root", _root_tip(node.token), node=node.node))
            continue
        share, badge = node.path_acceptance, numbers[row]
        tip = _tip(spot[node.node], f"path acceptance {share:.3f}", _fate(node.accepted, True))
        caps = tuple(palette[name] for name in spot[node.node].sources)
        classes = _states(accepted=node.accepted, faded=False)
        drawn = _pill(pill, node.token, classes, tip, node=node.node, caps=caps, number=share, badge=badge)
        pills.append(drawn)
    if len(layout.tree.pills) > len(view.tree):
        edges.append((True, False, _curve(layout.tree.curves[-1], 1.0, merged=False, accepted=True, faded=False)))
        token = view.emitted[-1][0]
        pills.append(_pill(layout.tree.pills[-1], token, "own", f"{visible(token)}\nthe target's own token"))
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
    body = f'<rect class="panel" x="12" y="4" width="{_n(width - 24)}" height="{_n(height - 12)}" rx="8"/>'
    body += _text(MARGIN, 27, _escape(title), "head") + _text(width - MARGIN, 27, _escape(facts), "mute end")
    deepest = max((box.layer for box in panel.boxes), default=0)
    for layer in range(deepest + 1):
        tick = f"+{layer}" if layer else "root"
        body += _text(layout.grid.lefts[layer] + 2, 46, tick, "tick")
    return body + f'<g transform="translate(0 {_n(PANEL_TOP)})">{"".join(marks)}</g>', height


def _footer(view: StepView, layout: Layout, palette: dict[str, int], width: float) -> tuple[str, float]:
    body = _text(MARGIN, 24, "written by this step", "head")
    x, y = MARGIN, 52.0
    for (text, source), names in zip(view.emitted, _emitted_sources(view), strict=True):
        pill_width = _pill_width(text, False) + (CAP - 2 if names else 0)
        if x > MARGIN and x + pill_width > width - MARGIN:
            x, y = MARGIN, y + PILL_HEIGHT + 8
        caps = tuple(palette[name] for name in names)
        classes = "chip accepted" if names else "own"
        body += _pill(Pill(x, y, pill_width), text, classes, f"{visible(text)}\n{_clean(source)}", caps=caps)
        x += pill_width + 6
    if not view.emitted:
        body += _text(MARGIN, y + 4, "nothing: the prompt is still being read", "mute")
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
    body += _text(MARGIN, y + 48, stats, "stats")
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


def _pill(
    pill: Pill,
    token: str,
    classes: str,
    tip: str,
    *,
    node: int | None = None,
    caps: tuple[int, ...] = (),
    number: float | None = None,
    badge: str = "",
) -> str:
    """A token: its text, one slice of the coloured cap per source, its number at the right, a badge at the corner."""
    radius = PILL_HEIGHT / 2
    top = pill.y - radius
    tint = f" s{caps[0]}" if caps else ""
    mark = "" if node is None else f' data-node="{node}"'
    body = f"<title>{_escape(tip)}</title>"
    shape = f'x="{_n(pill.x)}" y="{_n(top)}" width="{_n(pill.width)}" height="{_n(PILL_HEIGHT)}" rx="{_n(radius)}"'
    body += f'<rect class="base" {shape}/><rect class="body{tint}" {shape}/>'
    body += "".join(_cap_slice(pill, index, len(caps), source) for index, source in enumerate(caps))
    body += f'<rect class="rim{tint}" {shape}/>'
    text = _shortened(visible(token), MAX_TOKEN_COLUMNS)
    body += _text(pill.x + (CAP + 6 if caps else 11), pill.y + 4.5, _marked(text), "mono")
    if number is not None:
        body += _text(pill.right - 10, pill.y + 3.8, _share(number), "share end")
    if badge:
        size = 8 + 6.0 * len(badge)
        shape = f'x="{_n(pill.right - size)}" y="{_n(top - 7)}" width="{_n(size)}" height="13" rx="6.5"'
        body += f'<rect class="badge" {shape}/>'
        body += _text(pill.right - size / 2, top + 2.6, badge, "badge-text")
    return f'<g class="pill {classes}"{mark}>{body}</g>'


def _cap_slice(pill: Pill, index: int, count: int, source: int) -> str:
    """A horizontal slice of the half disc at a pill's left end."""
    radius = PILL_HEIGHT / 2
    top, bottom = (-radius + PILL_HEIGHT * i / count for i in (index, index + 1))
    edge = pill.x + CAP
    a, b = (pill.x + radius - (radius * radius - y * y) ** 0.5 for y in (top, bottom))
    return (
        f'<path class="cap s{source}" d="M{_n(edge)} {_n(pill.y + top)}L{_n(a)} {_n(pill.y + top)}'
        f'A{_n(radius)} {_n(radius)} 0 0 0 {_n(b)} {_n(pill.y + bottom)}L{_n(edge)} {_n(pill.y + bottom)}Z"/>'
    )


def _curve(points: Sequence[Point], acceptance: float, *, merged: bool, accepted: bool, faded: bool) -> str:
    triples = zip(points[1::3], points[2::3], points[3::3], strict=True)
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    path += "".join("C" + " ".join(f"{_n(x)} {_n(y)}" for x, y in triple) for triple in triples)
    kind = ("merged " if merged else "") + _states(accepted=accepted, faded=faded)
    stroke = "" if accepted else f' stroke-width="{_n(1.1 + 1.3 * acceptance)}"'
    x, y = points[-1]
    arrow = f'<path class="arrow" d="M{_n(x)} {_n(y)}l-7 -3.6v7.2z"/>' if merged else ""
    mark = "merged" if merged else "first"
    return f'<g class="edge {kind}" data-edge="{mark}"><path class="line" d="{path}"{stroke}/>{arrow}</g>'


def _states(*, accepted: bool, faded: bool) -> str:
    return "accepted" if accepted else "faded" if faded else "plain"


def _fate(accepted: bool, in_tree: bool) -> str:
    return "accepted" if accepted else "verified, not accepted" if in_tree else "not verified: outside the budget"


def _tip(node: ViewNode, number: str, fate: str) -> str:
    who = _clean(", ".join(node.sources) or "no drafter")
    return f"{visible(node.token)}\nproposed by {who}\n{number}\n{fate}"


def _root_tip(token: str) -> str:
    return f"{visible(token)}\nthe last committed token"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _share(number: float) -> str:
    if 0.0 < number < 0.005:
        return "&lt;.01"
    return "1.0" if number >= 0.995 else f"{number:.2f}"[1:]


def _text(x: float, y: float, content: str, classes: str, attributes: str = "") -> str:
    return f'<text class="{classes}" x="{_n(x)}" y="{_n(y)}"{attributes}>{content}</text>'


def _marked(text: str) -> str:
    """Escaped text with its whitespace marks in lighter ink."""
    if all(character in "·⏎⇥" for character in text):
        return text
    parts = [f'<tspan class="ws">{c}</tspan>' if c in "·⏎⇥…" else _escape(c) for c in text]
    return "".join(parts).replace('</tspan><tspan class="ws">', "")


def _visible_character(text: str, index: int) -> str:
    character = text[index]
    if character in MARKS:
        return MARKS[character]
    category = unicodedata.category(character)
    if character == JOINER and 0 < index < len(text) - 1:
        return character
    if category[0] in "CZ":
        return f"⟨{ord(character):02X}⟩"
    return character


def _columns(text: str) -> float:
    """Width in narrow characters."""
    return sum(_character_columns(c) for c, before in zip(text, " " + text, strict=False) if before != JOINER)


def _label_width(text: str) -> float:
    """Width of interface text, in font sizes."""
    return sum(0.31 if c in NARROW else 0.86 if c in WIDE else 0.575 for c in text)


def _character_columns(character: str) -> float:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 2.15 if category == "So" else 1.7
    return 1.3 if category in ("So", "Sm") else 1.0


def _shortened(text: str, room: float) -> str:
    """At most `room` columns, the end cut off."""
    if len(text) <= 4 * room and _columns(text) <= room:
        return text
    kept = ""
    for character in text:
        if _columns(kept + character) > room - 1.0 or len(kept) > 4 * room:
            break
        kept += character
    return kept + "…"


def _tail(text: str, room: float) -> str:
    """The visible end of a text, at most `room` columns."""
    text = visible(text[-256:]) if text else ""
    return text if _columns(text) <= room else _shortened(text[::-1], room)[::-1]


def _pill_width(token: str, has_number: bool) -> float:
    text = _columns(_shortened(visible(token), MAX_TOKEN_COLUMNS)) * COLUMN
    return round(max(CAP + 6 + text + 8 + 20 + 10 if has_number else 22 + text, 34.0), 1)


def _clean(text: str) -> str:
    """Text of one line, without characters that an SVG may not hold."""
    return visible(text).replace("·", " ")


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _ranked(names: Iterable[str]) -> tuple[str, ...]:
    names = set(names)
    return tuple(n for n in KNOWN_SOURCES if n in names) + tuple(sorted(names - set(KNOWN_SOURCES)))


def _palette(views: Iterable[StepView]) -> dict[str, int]:
    """A colour number for each source, the same in every picture for the usual drafters."""
    present = _ranked(name for view in views for name in sources_of(view))
    others = [name for name in present if name not in KNOWN_SOURCES]
    spare = len(LIGHT_SOURCES) - len(KNOWN_SOURCES)
    numbers = {name: index for index, name in enumerate(KNOWN_SOURCES)}
    return numbers | {name: len(KNOWN_SOURCES) + index % spare for index, name in enumerate(others)}


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


def _require(holds: bool, given: str, allowed: str) -> None:
    if not holds:
        raise ParameterError(given, allowed, "build the view from one step's graph, tree and verdict")


JOINER = "\u200d"  # joins emoji into one
MARKS = {" ": "·", "\n": "⏎", "\t": "⇥"}
NARROW, WIDE = frozenset("fijlrtI.,:;'!|()[] "), frozenset("mwMW%@")
_LINE = '<path class="line" d="M0 0H26"/>'
LEGEND_SAMPLES = {
    "source": ('<rect class="swatch" x="0" y="-5" width="14" height="10" rx="5"/>', 14.0),
    "split": (
        '<rect class="half" x="0" y="-5" width="14" height="5"/><rect class="other-half" x="0" y="0" width="14" '
        'height="5"/>',
        14.0,
    ),
    "accepted": (f'<g class="edge accepted">{_LINE}</g>', 26.0),
    "merged": (f'<g class="edge merged">{_LINE}<path class="arrow" d="M29 0l-7 -3.6v7.2z"/></g>', 29.0),
    "faded": ('<g class="pill faded"><rect class="rim" x="0" y="-5" width="18" height="10" rx="5"/></g>', 18.0),
    "target": ('<g class="pill own"><rect class="body" x="0" y="-5" width="18" height="10" rx="5"/></g>', 18.0),
    "number": (_text(0, 3.5, ".87", "share"), 18.0),
}
LIGHT = {
    "bg": "#ffffff", "panel": "#f7f9fb", "line": "#d9e0e7", "ink": "#1f2933", "mute": "#5f6b78", "ws": "#8d9aa8",
    "edge": "#b3bfcb", "merged": "#7c4dcf", "accepted": "#14804a", "own": "#1f2933", "own_ink": "#ffffff",
    "tint": "0.13",
}  # fmt: skip
DARK = {
    "bg": "#0e131a", "panel": "#151c25", "line": "#2b3643", "ink": "#e6edf3", "mute": "#93a1b0", "ws": "#748394",
    "edge": "#4a5868", "merged": "#b294f5", "accepted": "#3fc27f", "own": "#e6edf3", "own_ink": "#0e131a",
    "tint": "0.2",
}  # fmt: skip
SVG_CSS = """
.dg text { font: 13px -apple-system, BlinkMacSystemFont, "Segoe UI", Helvetica, Arial, sans-serif; fill: %(ink)s; }
.dg text.mono { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono",
  monospace; }
.dg text.title { font-size: 20px; font-weight: 650; letter-spacing: -0.2px; }
.dg text.head { font-size: 13.5px; font-weight: 600; }
.dg text.mute, .dg text.stats { fill: %(mute)s; font-size: 12.5px; }
.dg text.tick { fill: %(mute)s; font-size: 10.5px; }
.dg text.small { fill: %(mute)s; font-size: 12px; }
.dg text.tail { fill: %(mute)s; }
.dg text.share { fill: %(mute)s; font-size: 10.5px; }
.dg text.badge-text { fill: %(bg)s; font-size: 9.5px; font-weight: 700; text-anchor: middle; }
.dg text.end { text-anchor: end; }
.dg .num { fill: %(ink)s; font-size: 17px; font-weight: 650; }
.dg .ws { fill: %(ws)s; }
.dg .bg { fill: %(bg)s; stroke: %(line)s; }
.dg .panel { fill: %(panel)s; stroke: none; }
.dg .line { fill: none; stroke: %(edge)s; stroke-width: 1.5; }
.dg .merged .line { stroke: %(merged)s; stroke-dasharray: 5 3.5; }
.dg .arrow { fill: %(merged)s; }
.dg .accepted .line { stroke: %(accepted)s; stroke-width: 3; }
.dg .accepted.merged .line { stroke-dasharray: 7 4; }
.dg .accepted .arrow { fill: %(accepted)s; }
.dg .edge.faded { opacity: 0.6; }
.dg .base { fill: %(bg)s; }
.dg .body { fill: %(bg)s; fill-opacity: %(tint)s; }
.dg .rim { fill: none; stroke: %(edge)s; stroke-width: 1.2; }
.dg .accepted .rim { stroke: %(accepted)s; stroke-width: 2.6; }
.dg .pill.faded { opacity: 0.5; }
.dg .faded .rim { stroke: %(mute)s; stroke-dasharray: 2.5 2.5; }
.dg .root .rim { stroke: %(ink)s; stroke-width: 1.6; }
.dg .own .body { fill: %(own)s; fill-opacity: 1; }
.dg .own .rim { stroke: %(own)s; }
.dg .own text, .dg .own .ws { fill: %(own_ink)s; }
.dg .own .ws { opacity: 0.6; }
.dg .badge { fill: %(merged)s; stroke: %(panel)s; stroke-width: 1.5; }
.dg .half { fill: %(half)s; }
.dg .other-half { fill: %(other_half)s; }
"""
SOURCE_CSS = """.dg .body.s{0}, .dg .cap.s{0}, .dg .s{0} .swatch {{ fill: {1}; }}
.dg .plain .rim.s{0} {{ stroke: {1}; }}
"""
PAGE_CSS = """
body { background: %(bg)s; color: %(ink)s; }
button { color: %(ink)s; background: %(panel)s; border-color: %(line)s; }
#tip { color: %(ink)s; background: %(bg)s; border-color: %(line)s; }
#where, kbd { color: %(mute)s; }
"""
WALK = """<nav><button id="back" aria-label="previous step">&#8592;</button><span id="where"></span>
<button id="on" aria-label="next step">&#8594;</button></nav>"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>%(title)s</title>
<style>
body { margin: 0; padding: 24px; font: 14px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
main { width: fit-content; max-width: 100%%; margin: 0 auto; }
.step { overflow-x: auto; margin-bottom: 24px; }
.walking .step { display: none; }
.walking .step.current { display: block; }
svg { display: block; }
nav { display: none; gap: 12px; align-items: center; justify-content: center; margin-bottom: 16px; }
.walking nav { display: flex; }
button { font: inherit; padding: 4px 14px; border: 1px solid; border-radius: 8px; cursor: pointer; }
button:disabled { opacity: 0.4; cursor: default; }
#where { min-width: 7em; text-align: center; font-variant-numeric: tabular-nums; }
#tip { position: fixed; padding: 8px 12px; border: 1px solid; border-radius: 8px; white-space: pre; line-height: 1.5;
  pointer-events: none; box-shadow: 0 4px 16px rgb(0 0 0 / 0.18); font-size: 12.5px; }
#tip::first-line { font-family: ui-monospace, Menlo, Consolas, monospace; font-weight: 700; }
.pill, .edge { transition: opacity 0.12s; }
.tracing .pill[data-node]:not(.same) { opacity: 0.25; }
.tracing .edge { opacity: 0.25; }
%(style)s
</style>
</head>
<body>
<main>
%(walk)s
%(steps)s
</main>
<div id="tip" role="status" hidden></div>
<script>
%(script)s
</script>
</body>
</html>
"""
SCRIPT = """"use strict";
const tip = document.getElementById("tip");
const steps = [...document.querySelectorAll(".step")];
const words = new Map();
for (const pill of document.querySelectorAll(".pill")) {
  const title = pill.querySelector("title");
  if (title) { words.set(pill, title.textContent); title.remove(); }
}
function trace(pill) {
  document.querySelectorAll(".same").forEach((other) => other.classList.remove("same"));
  const svg = pill && pill.closest("svg");
  const node = pill && pill.dataset.node;
  steps.forEach((step) => step.classList.toggle("tracing", node !== undefined && node !== null && step.contains(svg)));
  if (node) svg.querySelectorAll(`[data-node="${node}"]`).forEach((other) => other.classList.add("same"));
}
document.addEventListener("pointermove", (event) => {
  const pill = event.target.closest(".pill");
  tip.hidden = !words.has(pill);
  trace(words.has(pill) ? pill : null);
  if (tip.hidden) return;
  tip.textContent = words.get(pill);
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
});
if (steps.length > 1) {
  let current = 0;
  const show = (index) => {
    current = Math.max(0, Math.min(steps.length - 1, index));
    steps.forEach((step, at) => step.classList.toggle("current", at === current));
    document.getElementById("where").textContent = `${current + 1} of ${steps.length}`;
    document.getElementById("back").disabled = current === 0;
    document.getElementById("on").disabled = current === steps.length - 1;
    tip.hidden = true;
  };
  document.body.classList.add("walking");
  document.getElementById("back").onclick = () => show(current - 1);
  document.getElementById("on").onclick = () => show(current + 1);
  document.addEventListener("keydown", (event) => {
    const jump = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (jump !== undefined && !event.altKey && !event.ctrlKey && !event.metaKey) { event.preventDefault(); show(jump); }
  });
  show(0);
}"""


def _css(colours: dict[str, str], sources: Sequence[str]) -> str:
    rules = "".join(SOURCE_CSS.format(index, colour) for index, colour in enumerate(sources))
    return SVG_CSS % (colours | {"half": sources[0], "other_half": sources[1]}) + rules
