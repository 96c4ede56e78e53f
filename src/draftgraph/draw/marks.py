"""The marks that pictures are made of: a token's pill, an edge's curve, a line of text, the samples of a legend.

In: places, texts and colour numbers. Out: SVG elements whose classes `style` gives their looks. Must never know a view.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgraph.draw.layout import PILL_HEIGHT, Pill, Point
from draftgraph.draw.text import CAP, MAX_TOKEN_COLUMNS, clean, escape, label_width, marked, px, shortened, visible


def text_mark(x: float, y: float, content: str, classes: str, attributes: str = "") -> str:
    """A line of text; `content` is escaped already."""
    return f'<text class="{classes}" x="{px(x)}" y="{px(y)}"{attributes}>{content}</text>'


def pill_mark(
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
    body = f"<title>{escape(tip)}</title>"
    shape = f'x="{px(pill.x)}" y="{px(top)}" width="{px(pill.width)}" height="{px(PILL_HEIGHT)}" rx="{px(radius)}"'
    body += f'<rect class="base" {shape}/><rect class="body{tint}" {shape}/>'
    body += "".join(_cap_slice(pill, index, len(caps), source) for index, source in enumerate(caps))
    body += f'<rect class="rim{tint}" {shape}/>'
    text = shortened(visible(token), MAX_TOKEN_COLUMNS)
    body += text_mark(pill.x + (CAP + 6 if caps else 11), pill.y + 4.5, marked(text), "mono")
    if number is not None:
        body += text_mark(pill.right - 10, pill.y + 3.8, _share(number), "share end")
    if badge:
        size = 8 + 6.0 * len(badge)
        shape = f'x="{px(pill.right - size)}" y="{px(top - 7)}" width="{px(size)}" height="13" rx="6.5"'
        body += f'<rect class="badge" {shape}/>'
        body += text_mark(pill.right - size / 2, top + 2.6, badge, "badge-text")
    return f'<g class="pill {classes}"{mark}>{body}</g>'


def _cap_slice(pill: Pill, index: int, count: int, source: int) -> str:
    """A horizontal slice of the half disc at a pill's left end."""
    radius = PILL_HEIGHT / 2
    top, bottom = (-radius + PILL_HEIGHT * i / count for i in (index, index + 1))
    edge = pill.x + CAP
    a, b = (pill.x + radius - (radius * radius - y * y) ** 0.5 for y in (top, bottom))
    return (
        f'<path class="cap s{source}" d="M{px(edge)} {px(pill.y + top)}L{px(a)} {px(pill.y + top)}'
        f'A{px(radius)} {px(radius)} 0 0 0 {px(b)} {px(pill.y + bottom)}L{px(edge)} {px(pill.y + bottom)}Z"/>'
    )


def curve_mark(points: Sequence[Point], acceptance: float, *, merged: bool, accepted: bool, faded: bool) -> str:
    """An edge, the thicker the likelier; a merged one has an arrow head."""
    triples = zip(points[1::3], points[2::3], points[3::3], strict=True)
    path = f"M{px(points[0][0])} {px(points[0][1])}"
    path += "".join("C" + " ".join(f"{px(x)} {px(y)}" for x, y in triple) for triple in triples)
    kind = ("merged " if merged else "") + states(accepted=accepted, faded=faded)
    stroke = "" if accepted else f' stroke-width="{px(1.1 + 1.3 * acceptance)}"'
    x, y = points[-1]
    arrow = f'<path class="arrow" d="M{px(x)} {px(y)}l-7 -3.6v7.2z"/>' if merged else ""
    mark = "merged" if merged else "first"
    return f'<g class="edge {kind}" data-edge="{mark}"><path class="line" d="{path}"{stroke}/>{arrow}</g>'


def states(*, accepted: bool, faded: bool) -> str:
    """The class for the fate of a node or an edge."""
    return "accepted" if accepted else "faded" if faded else "plain"


def _share(number: float) -> str:
    if 0.0 < number < 0.005:
        return "&lt;.01"
    return "1.0" if number >= 0.995 else f"{number:.2f}"[1:]


def legend_entry(name: str, label: str, kind: str) -> tuple[str, float]:
    """A sample of `LEGEND_SAMPLES` with its label, and the width of both."""
    sample, sample_width = LEGEND_SAMPLES[kind]
    text = text_mark(sample_width + 6, 4, escape(clean(label)), "small")
    return f'<g class="{name}">{sample}{text}</g>', sample_width + 6 + label_width(label) * 12


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
    "floor": ('<rect class="floor" x="0" y="-5" width="18" height="10"/>', 18.0),
    "number": (text_mark(0, 3.5, ".87", "share"), 18.0),
}
