"""Layered layout of a token graph: boxes with a layer and a width in, pill positions and smooth curves out.

A small Sugiyama layout after Sugiyama, Tagawa and Toda (1981): edges that skip layers or run backwards get one dummy
item per layer they pass, layers are ordered by barycentre sweeps and swaps, and heights are a least-squares fit under
minimum distances. Inside a column every item keeps its own height and all bends lie between columns, so no curve can
touch a pill it does not belong to. Knows nothing of tokens, sources, colours or SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftgraph.draw.order import Box, Items, Link, first_order, ordered

PILL_HEIGHT = 26.0
PILL_GAP = 12.0
LANE_GAP = 10.0
ROUNDS = 60
PORT_STEP = 7.0
PORT_REACH = 9.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pill:
    """A placed box: its left edge, vertical centre and width; the height is `PILL_HEIGHT`."""

    x: float
    y: float
    width: float

    @property
    def right(self) -> float:
        return self.x + self.width


@dataclass(frozen=True, slots=True)
class Rows:
    """Heights of one panel: of its boxes, and for each link the (layer, height) of each lane it passes."""

    boxes: tuple[float, ...]
    lanes: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def height(self) -> float:
        return max(self.boxes + tuple(y for lane in self.lanes for _, y in lane), default=0.0) + PILL_HEIGHT / 2


@dataclass(frozen=True, slots=True)
class Columns:
    """Left and right borders of each layer's column, shared by all panels."""

    lefts: tuple[float, ...]
    rights: tuple[float, ...]


def arrange(boxes: Sequence[Box], links: Sequence[Link]) -> Rows:
    """Order each layer to avoid crossings and give every box and lane a height, the topmost pill at 0. Pure."""
    items = Items(boxes, links)
    order = ordered(items, first_order(items))
    heights = _heights(items, order)
    lanes = tuple(tuple((items.layers[i], heights[i]) for i in chain[1:-1]) for chain in items.chains)
    return Rows(tuple(heights[: len(boxes)]), lanes)


def columns(panels: Iterable[tuple[Sequence[Box], Sequence[Link], Rows]], *, left: float) -> Columns:
    """Columns as wide as their widest pill, further apart where curves climb far. Pure."""
    widths: dict[int, float] = {}
    climbs: dict[int, float] = {}
    for boxes, links, rows in panels:
        for box in boxes:
            widths[box.layer] = max(widths.get(box.layer, 0.0), box.width)
        for stops in _stops(boxes, links, rows):
            for (a, y), (b, z) in pairwise(stops):
                climbs[min(a, b)] = max(climbs.get(min(a, b), 0.0), abs(y - z))
    lefts, rights = [], []
    for layer in range(max(widths) + 1):
        lefts.append(left)
        rights.append(left + widths.get(layer, 0.0))
        left = rights[-1] + min(84.0, 36.0 + 0.16 * climbs.get(layer, 0.0))
    return Columns(tuple(lefts), tuple(rights))


def place(boxes: Sequence[Box], rows: Rows, grid: Columns) -> tuple[Pill, ...]:
    """The pills, flush with the left border of their columns. Pure."""
    return tuple(Pill(grid.lefts[box.layer], y, box.width) for box, y in zip(boxes, rows.boxes, strict=True))


def route(links: Sequence[Link], boxes: Sequence[Box], rows: Rows, grid: Columns) -> tuple[tuple[Point, ...], ...]:
    """One curve per link: a start point, then cubic Bézier triples (control, control, end). Pure."""
    ports = _ports(links, boxes, rows)
    curves = []
    for link, stops, port in zip(links, _stops(boxes, links, rows), ports, strict=True):
        source = boxes[link.source]
        points = [(grid.lefts[source.layer] + source.width, stops[0][1])]
        _line(points, grid.rights[source.layer], points[0][1])
        for (a, _), (b, y) in pairwise(stops[:-1]):
            _bend(points, a, b, y, grid, outward=True)
            _line(points, grid.rights[b] if b > a else grid.lefts[b], y)
        _bend(points, stops[-2][0], stops[-1][0], port, grid, outward=False)
        curves.append(tuple(points))
    return tuple(curves)


def _heights(items: Items, order: Sequence[Sequence[int]]) -> list[float]:
    """Heights that keep the order and the distances and pull linked items level. The topmost pill's centre is 0."""
    y = [0.0] * len(items.layers)
    offsets = [_offsets(row, len(items.boxes)) for row in order]
    for row, offset in zip(order, offsets, strict=True):
        for item, place_ in zip(row, offset, strict=True):
            y[item] = place_ - offset[-1] / 2
    for turn in range(ROUNDS):
        forward, both = turn % 2 == 0, turn >= ROUNDS - 24
        for layer in range(items.depth) if forward else reversed(range(items.depth)):
            wishes, weights = [], []
            for item in order[layer]:
                near = [(y[i], w) for i, w in items.near[item] if both or (items.layers[i] <= layer) == forward]
                near = [(0.0, 1e6)] if item in items.rail else near or [(y[item], 0.1)]
                weights.append(sum(w for _, w in near))
                wishes.append(sum(v * w for v, w in near) / weights[-1])
            fitted = _isotonic([v - o for v, o in zip(wishes, offsets[layer], strict=True)], weights)
            for item, value, offset_ in zip(order[layer], fitted, offsets[layer], strict=True):
                y[item] = value + offset_
    top = min(y, default=0.0)
    return [round(value - top, 1) for value in y]


def _offsets(row: Sequence[int], num_boxes: int) -> list[float]:
    """The least height of each item in a layer, the first at 0."""
    result = [0.0]
    for above, below in pairwise(row):
        pills = (above < num_boxes) + (below < num_boxes)
        result.append(result[-1] + pills * PILL_HEIGHT / 2 + (PILL_GAP if pills == 2 else LANE_GAP))
    return result[: len(row)]


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, mass, size = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, size + pool[2])
        pools.append(pool)
    return [mean for mean, _, size in pools for _ in range(size)]


def _stops(boxes: Sequence[Box], links: Sequence[Link], rows: Rows) -> list[list[tuple[int, float]]]:
    """For each link the (layer, height) of its source, of each lane and of its target."""
    ends = [(boxes[i].layer, rows.boxes[i]) for i in range(len(boxes))]
    return [[ends[k.source], *lane, ends[k.target]] for k, lane in zip(links, rows.lanes, strict=True)]


def _ports(links: Sequence[Link], boxes: Sequence[Box], rows: Rows) -> list[float]:
    """The height at which each link enters its target: a level one in the middle, the others as they come."""
    entering: dict[int, list[tuple[float, int]]] = {}
    for index, stops in enumerate(_stops(boxes, links, rows)):
        entering.setdefault(links[index].target, []).append((stops[-2][1], index))
    ports = [0.0] * len(links)
    for target, arrivals in entering.items():
        queue = [index for _, index in sorted(arrivals)]
        middle = queue.index(max(queue, key=lambda index: (links[index].level, links[index].weight, -index)))
        step = min(PORT_STEP, PORT_REACH / max(1, middle, len(queue) - 1 - middle))
        for place_, index in enumerate(queue):
            ports[index] = rows.boxes[target] + step * (place_ - middle)
    return ports


def _line(points: list[Point], x: float, y: float) -> None:
    start = points[-1][0]
    if x != start:
        points += [(start + (x - start) / 3, y), (start + (x - start) * 2 / 3, y), (x, y)]


def _bend(points: list[Point], a: int, b: int, y: float, grid: Columns, *, outward: bool) -> None:
    """Continue from a border of layer a to the facing border of layer b; within one layer, turn around."""
    x, start = points[-1]
    if a == b:
        reach = 26.0 if outward else -26.0
        points += [(x + reach, start), (x + reach, y), (x, y)]
    else:
        end = grid.lefts[b] if b > a else grid.rights[b]
        points += [((x + end) / 2, start), ((x + end) / 2, y), (end, y)]
