"""Measurements as pictures: bars by group, and lines over a few sizes, in the colours of the graphs.

In: names, numbers and colour numbers. Out: SVG text that refers to nothing outside itself and follows light and dark.
Must never know what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftgraph.draw.marks import legend_entry, text_mark
from draftgraph.draw.style import chart_style
from draftgraph.draw.text import clean, escape, label_width, px, shortened
from draftgraph.errors import ParameterError

WIDTH = 800.0
MARGIN = 28.0
BAR, BAR_GAP, GROUP_GAP = 13.0, 3.0, 16.0
PLOT_HEIGHT = 190.0
_MOST_COLUMNS = 28.0  # of a group's name
_SIZE_WIDTH = 36.0  # room that the number below a size takes


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one name in one colour; `values[i]` belongs to the i-th group or size."""

    name: str
    colour: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars: one block per group, one bar per series in it.

    Args:
        facts: a line below the title.
        mark: (value, its name) that a line stands at; every bar is read against it.

    Raises:
        ParameterError: nothing to draw, values that do not fit the groups, or a value that is no length.
    """

    title: str
    facts: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    mark: tuple[float, str]

    def __post_init__(self) -> None:
        _require(self.series, len(self.groups))


@dataclass(frozen=True, slots=True)
class Floor:
    """What no value is below: points (place, value), by place. The area below them is shaded."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """One plot: values over sizes.

    Args:
        places: where each size stands on the axis, rising from 0 to 1; none is at equal distances.

    Raises:
        ParameterError: see `Bars`.
    """

    title: str
    axis: str
    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    places: tuple[float, ...] = ()
    floor: Floor | None = None

    def __post_init__(self) -> None:
        _require(self.series, len(self.sizes))


def render_bars(chart: Bars) -> str:
    """One picture of bars. Does not modify the chart."""
    names = [shortened(clean(group), _MOST_COLUMNS) for group in chart.groups]
    left = MARGIN + max(label_width(name) for name in names) * 14.5 + 12
    right = WIDTH - MARGIN - 48
    ticks = ticks_up_to(max(chart.mark[0], *(value for series in chart.series for value in series.values)))
    scale = (right - left) / ticks[-1]
    block = len(chart.series) * (BAR + BAR_GAP) + GROUP_GAP
    height = len(names) * block + GROUP_GAP
    marks = [_upright(left + tick * scale, height, f"{tick:g}", "grid") for tick in ticks if tick != chart.mark[0]]
    for row, name in enumerate(names):
        top = GROUP_GAP + row * block
        middle = top + (block - GROUP_GAP - BAR_GAP) / 2 + 4.5
        marks.append(text_mark(left - 10, middle, escape(name), "head end"))
        for index, series in enumerate(chart.series):
            value, y = series.values[row], top + index * (BAR + BAR_GAP)
            tip = f"{clean(chart.groups[row])}, {clean(series.name)}: {value:.3f}"
            marks.append(
                f'<g class="datum"><title>{escape(tip)}</title><rect class="bar s{series.colour}" x="{px(left)}" '
                f'y="{px(y)}" width="{px(max(value * scale, 0.5))}" height="{px(BAR)}" rx="2.5"/></g>'
            )
            marks.append(text_mark(left + value * scale + 6, y + BAR - 2.5, f"{value:.2f}", "share"))
    marks.append(_upright(left + chart.mark[0] * scale, height, escape(clean(chart.mark[1])), "reference"))
    panel = (f'<g transform="translate(0 24)">{"".join(marks)}</g>', height + 34)
    return picture(chart.title, chart.facts, _legend(chart.series), [panel])


def render_lines(title: str, facts: str, plots: Sequence[Lines]) -> str:
    """One picture of plots one below the other, with one legend for all. Does not modify them.

    Raises:
        ParameterError: there is no plot.
    """
    if not plots:
        raise ParameterError("no plots", "one or more", "give one")
    series = {one.name: one for plot in plots for one in plot.series}
    floors = dict.fromkeys(plot.floor.name for plot in plots if plot.floor)
    legend = _legend(list(series.values())) + [legend_entry("legend-floor", name, "floor") for name in floors]
    return picture(title, facts, legend, [plot_panel(plot) for plot in plots])


def ticks_up_to(most: float) -> list[float]:
    """Returns round numbers from 0 to the first one that is not below `most`, about five of them."""
    rough = max(most, 1e-9) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [round(step * i, 12) for i in range(math.ceil(most / step - 1e-9) + 1)] if most > 0 else [0.0, step]


def plot_panel(plot: Lines) -> tuple[str, float]:
    """The marks of a plot with its headline, and its height."""
    left, right, top = MARGIN + 44, WIDTH - MARGIN - 30, 48.0
    floor = plot.floor.points if plot.floor else ()
    ticks = ticks_up_to(
        max(*(value for _, value in floor), *(value for series in plot.series for value in series.values))
    )
    scale = PLOT_HEIGHT / ticks[-1]
    places = plot.places or [index / max(len(plot.sizes) - 1, 1) for index in range(len(plot.sizes))]

    def at(place: float, value: float) -> tuple[float, float]:
        return left + place * (right - left), top + PLOT_HEIGHT - value * scale

    marks = [text_mark(MARGIN, 27, escape(clean(plot.title)), "head")]
    for tick in ticks:
        y = at(0.0, tick)[1]
        marks.append(f'<path class="grid" d="M{px(left)} {px(y)}H{px(right)}"/>')
        marks.append(text_mark(left - 8, y + 3.8, f"{tick:g}", "tick end"))
    last = -_SIZE_WIDTH
    for place, size in zip(places, plot.sizes, strict=True):
        x, y = at(place, 0.0)
        if x - last >= _SIZE_WIDTH:
            last = x
            marks.append(text_mark(x, y + 18, str(size), "tick middle"))
    if floor:
        outline = [(floor[0][0], 0.0), *floor, (floor[-1][0], 0.0)]
        marks.append(f'<path class="floor" d="M{_path(at(*point) for point in outline)}"/>')
    marks.append(text_mark((left + right) / 2, top + PLOT_HEIGHT + 35, escape(clean(plot.axis)), "mute middle"))
    for series in plot.series:
        points = [at(*point) for point in zip(places, series.values, strict=True)]
        marks.append(f'<path class="trace s{series.colour}" d="M{_path(points)}"/>')
        for (x, y), size, value in zip(points, plot.sizes, series.values, strict=True):
            tip = escape(f"{size}, {clean(series.name)}: {value:.3f}")
            marks.append(
                f'<g class="datum"><title>{tip}</title><circle class="dot s{series.colour}" cx="{px(x)}" '
                f'cy="{px(y)}" r="4"/></g>'
            )
    return "".join(marks), top + PLOT_HEIGHT + 48


def picture(
    title: str,
    facts: str,
    legend: Sequence[tuple[str, float]],
    panels: Sequence[tuple[str, float]],
    width: float = WIDTH,
) -> str:
    """The page around panels, each (marks, height): title, facts, and legend entries, each (mark, width)."""
    body = text_mark(MARGIN, 42, escape(clean(title)), "title") + text_mark(MARGIN, 64, escape(clean(facts)), "mute")
    x, y = MARGIN, 86.0
    for entry, entry_width in legend:
        if x > MARGIN and x + entry_width > width - MARGIN:
            x, y = MARGIN, y + 22
        body += f'<g transform="translate({px(x)} {px(y)})">{entry}</g>'
        x += entry_width + 20
    y += 18
    for marks, height in panels:
        body += f'<rect class="panel" x="12" y="{px(y)}" width="{px(width - 24)}" height="{px(height)}" rx="8"/>'
        body += f'<g transform="translate(0 {px(y)})">{marks}</g>\n'
        y += height + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dg" width="{px(width)}" height="{px(y)}" '
        f'viewBox="0 0 {px(width)} {px(y)}" role="img" aria-label="{escape(clean(title))}">'
        f"<style>{chart_style()}</style>"
        f'<rect class="bg" x="0.5" y="0.5" width="{px(width - 1)}" height="{px(y - 1)}" rx="12"/>\n{body}</svg>\n'
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "L".join(f"{px(x)} {px(y)}" for x, y in points)


def _legend(series: Sequence[Series]) -> list[tuple[str, float]]:
    return [legend_entry(f"legend-source s{one.colour}", one.name, "source") for one in series]


def _upright(x: float, height: float, label: str, kind: str) -> str:
    """A vertical line over the bars with its label above; `label` is escaped already."""
    return f'<path class="{kind}" d="M{px(x)} 0V{px(height)}"/>' + text_mark(x, -7, label, f"tick middle {kind}-label")


def _require(series: Sequence[Series], count: int) -> None:
    values = [value for one in series for value in one.values]
    fitting = values and all(len(one.values) == count for one in series)
    if not fitting or not all(math.isfinite(value) and value >= 0 for value in values):
        raise ParameterError(
            "a chart whose values do not fit",
            "one finite value from 0 for each group and series",
            "give each its value",
        )
