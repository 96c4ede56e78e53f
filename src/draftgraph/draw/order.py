"""The order of a layered layout: boxes with a layer and links between them in, the items of each layer in order out.

After Sugiyama, Tagawa and Toda (1981): edges that skip layers or run backwards get one dummy item per layer they pass;
layers start in depth-first order and are improved by barycentre sweeps and swaps. Knows nothing of heights, tokens or
SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Box:
    """A pill to place. `layer` is its column, `rank` orders siblings from top to bottom before anything else does."""

    layer: int
    width: float
    rank: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """A curve to draw from box `source` to box `target`; a heavier link is kept shorter, a `level` one horizontal.

    The first link into a box is its tree link: those form the tree that gives the first order. Level links form one
    path; they give way only where two of their items share a layer.
    """

    source: int
    target: int
    weight: float = 1.0
    level: bool = False


class Items:
    """Boxes and dummy items of one panel, with the chain of items each link visits. Built once, then only read."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link]) -> None:
        self.boxes, self.links = boxes, links
        self.layers = [box.layer for box in boxes]
        self.chains: list[list[int]] = []
        for link in links:
            lane = _lane(boxes[link.source].layer, boxes[link.target].layer)
            self.chains.append([link.source, *range(len(self.layers), len(self.layers) + len(lane)), link.target])
            self.layers += lane
        self.depth = max(self.layers, default=-1) + 1
        self.rail = {item for link, chain in zip(links, self.chains, strict=True) if link.level for item in chain}
        self.near: list[list[tuple[int, float]]] = [[] for _ in self.layers]
        # [gutter] the chords drawn between layers gutter - 1 and gutter: (item, item) with the side of each.
        self.chords: list[list[tuple[int, bool, int, bool]]] = [[] for _ in range(self.depth + 1)]
        for link, chain in zip(links, self.chains, strict=True):
            for step, (a, b) in enumerate(pairwise(chain)):
                dummies = (a >= len(boxes)) + (b >= len(boxes))
                weight = link.weight * (1.0, 1.5, 30.0)[dummies]
                self.near[a].append((b, weight))
                self.near[b].append((a, weight))
                right_a, right_b, gutter = _sides(self.layers[a], self.layers[b], first=step == 0)
                self.chords[gutter].append((a, right_a, b, right_b))


def _lane(start: int, end: int) -> list[int]:
    """The layers a link passes between its ends; a link that does not lead to the right turns back around its ends."""
    return list(range(start + 1, end)) if end > start else list(range(start, end - 1, -1))


def _sides(a: int, b: int, *, first: bool) -> tuple[bool, bool, int]:
    """For a chord from layer a to layer b: whether each end is on the gutter's right side, and which gutter."""
    if a == b:
        return (False, False, a + 1) if first else (True, True, a)
    return a > b, b > a, max(a, b)


def first_order(items: Items) -> list[list[int]]:
    """Layers in depth-first order of the tree links, dummies between the ends of their link."""
    children: dict[int, list[int]] = {}
    orphans = set(range(len(items.boxes)))
    for link in items.links:
        if link.target in orphans:
            orphans.remove(link.target)
            children.setdefault(link.source, []).append(link.target)
    seen: dict[int, float] = {}
    stack = sorted(orphans, reverse=True)
    while stack:
        node = stack.pop()
        seen[node] = float(len(seen))
        stack += sorted(children.get(node, []), key=lambda child: items.boxes[child].rank, reverse=True)
    for chain in items.chains:
        first, last = seen[chain[0]], seen[chain[-1]]
        for step, item in enumerate(chain[1:-1], 1):
            seen[item] = first + (last - first) * step / (len(chain) - 1)
    order: list[list[int]] = [[] for _ in range(items.depth)]
    for item in sorted(range(len(items.layers)), key=lambda item: (seen[item], item)):
        order[items.layers[item]].append(item)
    return order


def _crossings(items: Items, order: Sequence[Sequence[int]], gutters: Iterable[int]) -> int:
    """Crossings in the given gutters. Around a gutter's border two chords cross when their ends alternate."""
    total = 0
    for gutter in gutters:
        around = [(i, False) for i in order[gutter - 1]] if gutter else []
        around += [(i, True) for i in reversed(order[gutter])] if gutter < len(order) else []
        spot = {end: index for index, end in enumerate(around)}
        chords = [sorted((spot[a, x], spot[b, y])) for a, x, b, y in items.chords[gutter]]
        chords.sort()
        for index, (a, b) in enumerate(chords):
            total += sum(a < c < b < d for c, d in chords[index + 1 :])
    return total


def ordered(items: Items, order: list[list[int]]) -> list[list[int]]:
    """The order with the fewest crossings that barycentre sweeps and swaps of neighbours come upon."""
    gutters = range(items.depth + 1)
    best, fewest = order, _crossings(items, order, gutters)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        order = _swept(items, order, forward=sweep % 2 == 0)
        _swap_inplace(items, order)
        count = _crossings(items, order, gutters)
        if count < fewest:
            best, fewest = order, count
    return best


def _swept(items: Items, order: list[list[int]], *, forward: bool) -> list[list[int]]:
    spot = {item: index - len(layer) / 2 for layer in order for index, item in enumerate(layer)}
    result = list(order)
    for layer in range(items.depth) if forward else reversed(range(items.depth)):
        keys = {}
        for item in order[layer]:
            near = [spot[i] for i, _ in items.near[item] if (items.layers[i] <= layer) == forward]
            keys[item] = sum(near) / len(near) if near else spot[item]
        result[layer] = sorted(order[layer], key=lambda item: keys[item])
        spot.update({item: index - len(result[layer]) / 2 for index, item in enumerate(result[layer])})
    return result


def _swap_inplace(items: Items, order: list[list[int]]) -> None:
    for layer, row in enumerate(order):
        for index in range(len(row) - 1):
            before = _crossings(items, order, (layer, layer + 1))
            row[index], row[index + 1] = row[index + 1], row[index]
            if _crossings(items, order, (layer, layer + 1)) >= before:
                row[index], row[index + 1] = row[index + 1], row[index]
