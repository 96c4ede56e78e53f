"""Curves over a ceiling as an SVG: measured lines with their points, and below them the area that nothing can reach.

In: lines of plain numbers. Out: SVG text that refers to nothing outside itself and follows the viewer's choice of light
or dark. Must never know what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftgraph.draw.marks import text_mark
from draftgraph.draw.panels import MARGIN
from draftgraph.draw.style import DARK, DARK_SOURCES, LIGHT, LIGHT_SOURCES, css
from draftgraph.draw.text import clean, escape, label_width, px, shortened

WIDTH, HEIGHT = 800.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 772.0, 104.0, 384.0
_CSS = """
.dg .grid { stroke: %(line)s; stroke-width: 1; }
.dg .ceiling { fill: %(mute)s; fill-opacity: 0.16; stroke: %(mute)s; stroke-width: 1.2; stroke-dasharray: 5 3.5; }
"""
_LINE_CSS = """.dg .curve.s{0} {{ fill: none; stroke: {1}; stroke-width: 2; }}
.dg .dot.s{0} {{ fill: {1}; }}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: its name and its points (x, y), x ascending, neither negative."""

    label: str
    points: tuple[tuple[float, float], ...]


def render_plot(title: str, facts: str, lines: Sequence[Line], ceiling: Line, axes: tuple[str, str]) -> str:
    """Returns the picture. Does not modify its arguments.

    Args:
        facts: a short note, below the plot.
        ceiling: the least y at each x; the area below it is shaded.
        axes: the names of x and y.
    """
    every = [point for line in (*lines, ceiling) for point in line.points]
    scale = _Scale(max(x for x, _ in every), max(y for _, y in every))
    body = text_mark(MARGIN, 42, escape(shortened(clean(title), 64)), "title")
    body += text_mark(MARGIN, BOTTOM + 38, escape(clean(facts)), "mute")
    body += _legend([line.label for line in lines], ceiling.label) + _grid(scale, lines, axes)
    body += _area(scale, ceiling) + "".join(_curve(scale, i, line, axes) for i, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dg" width="{px(WIDTH)}" height="{px(HEIGHT)}" '
        f'viewBox="0 0 {px(WIDTH)} {px(HEIGHT)}" role="img" aria-label="{escape(clean(title))}">'
        f"<style>{_css(LIGHT, LIGHT_SOURCES)}@media (prefers-color-scheme: dark) {{{_css(DARK, DARK_SOURCES)}}}</style>"
        f'<rect class="bg" x="0.5" y="0.5" width="{px(WIDTH - 1)}" height="{px(HEIGHT - 1)}" rx="12"/>\n{body}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels; both axes begin at 0."""

    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / self.most_x

    def y(self, value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / self.most_y

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "L".join(f"{px(self.x(x))} {px(self.y(y))}" for x, y in points)


def _css(colours: dict[str, str], sources: Sequence[str]) -> str:
    rules = "".join(_LINE_CSS.format(index, colour) for index, colour in enumerate(sources))
    return css(colours, sources) + _CSS % colours + rules


def _legend(labels: Sequence[str], ceiling: str) -> str:
    body, x = "", MARGIN
    for label, mark in [*((label, f"curve s{_colour(i)}") for i, label in enumerate(labels)), (ceiling, "ceiling")]:
        body += f'<path class="{mark}" d="M{px(x)} 70H{px(x + 26)}"/>'
        body += text_mark(x + 32, 74, escape(clean(label)), "small")
        x += 32 + label_width(clean(label)) * 12 + 20
    return body


def _grid(scale: _Scale, lines: Sequence[Line], axes: tuple[str, str]) -> str:
    body = "".join(
        f'<path class="grid" d="M{px(LEFT)} {px(scale.y(tick))}H{px(RIGHT)}"/>'
        + text_mark(LEFT - 8, scale.y(tick) + 4, f"{tick:g}", "tick end")
        for tick in _ticks(scale.most_y)
    )
    last = -1e9
    for x in sorted({x for line in lines for x, _ in line.points}):
        if scale.x(x) - last >= 20:  # room for the number
            last = scale.x(x)
            body += text_mark(last + 5, BOTTOM + 18, f"{x:g}", "tick end")
    body += text_mark(RIGHT, BOTTOM + 38, escape(clean(axes[0])), "mute end")
    return body + text_mark(LEFT - 8, TOP - 10, escape(clean(axes[1])), "mute end")


def _ticks(most: float) -> list[float]:
    """Returns round numbers from 0 to `most`, at most seven of them."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(step for step in (0.2 * power, 0.5 * power, power, 2 * power) if most / step <= 6)
    return [i * step for i in range(int(most / step) + 1)]


def _area(scale: _Scale, ceiling: Line) -> str:
    first, last = ceiling.points[0], ceiling.points[-1]
    outline = [(first[0], 0.0), *ceiling.points, (last[0], 0.0)]
    return f'<path class="ceiling" d="M{scale.path(outline)}"><title>{escape(clean(ceiling.label))}</title></path>'


def _curve(scale: _Scale, index: int, line: Line, axes: tuple[str, str]) -> str:
    body = f'<path class="curve s{_colour(index)}" d="M{scale.path(line.points)}"/>'
    for x, y in line.points:
        tip = escape(clean(f"{line.label}: {y:.4g} {axes[1]} at {x:g} {axes[0]}"))
        body += f'<circle class="dot s{_colour(index)}" cx="{px(scale.x(x))}" cy="{px(scale.y(y))}" r="3.5">'
        body += f"<title>{tip}</title></circle>"
    return body


def _colour(index: int) -> int:
    return index % len(LIGHT_SOURCES)
