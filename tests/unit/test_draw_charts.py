"""The pictures of measurements: every value is drawn to scale and named, and nothing leaves its panel."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

from draftgraph.draw import Bars, Lines, Series, render_bars, render_lines, render_tree
from draftgraph.draw.chart import ticks_up_to
from draftgraph.draw.style import DARK, DARK_SOURCES, LIGHT, LIGHT_SOURCES
from draftgraph.errors import ParameterError

SVG = "{http://www.w3.org/2000/svg}"
ATTACK = '</text></svg><script>alert("1")</script>\x00'
BARS = Bars(
    "a model", "a machine", ("code", ATTACK, "x" * 80),
    (Series("auto", 7, (1.5, 0.9, 2.25)), Series("ngram", 0, (1.0, 0.45, 3.0))), (1.0, "plain"),
)  # fmt: skip
SIZES = (1, 2, 4, 8)
PLOTS = [
    Lines("speed", "requests", SIZES, (Series("plain", 5, (10.0, 19.0, 30.0, 41.0)), Series("auto", 7, (20.0,) * 4))),
    Lines("drafts", "requests", SIZES, (Series("auto", 7, (3.5, 2.0, 0.5, 0.0)),)),
]
TREE: tuple[list[int], list[int], list[float]] = ([-1, -1, 0, 0, 2], [0, 2, 0, 1, 0], [0.7, 0.1, 0.49, 0.14, 0.343])
PICTURES = {
    "bars": render_bars(BARS),
    "lines": render_lines("a model", ATTACK, PLOTS),
    "tree": render_tree(ATTACK, "facts", *TREE, PLOTS),
    "a root alone": render_tree("nothing", "facts", [], [], []),
}
every_picture = pytest.mark.parametrize("svg", PICTURES.values(), ids=PICTURES.keys())


def parts(svg: str, tag: str, name: str) -> list[ET.Element]:
    return [part for part in ET.fromstring(svg).iter(SVG + tag) if name in part.get("class", "").split()]


def number(part: ET.Element, attribute: str) -> float:
    return float(part.get(attribute, "nan"))


@every_picture
def test_a_picture_is_well_formed_safe_and_has_a_size(svg: str) -> None:
    root = ET.fromstring(svg.encode())
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert "<script" not in svg
    assert (
        re.findall(r"\w+://|\bsrc=|\bhref=|url\(|@import", svg.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []
    )


@every_picture
def test_a_picture_follows_light_and_dark(svg: str) -> None:
    light, dark = svg.split("@media (prefers-color-scheme: dark)")
    for style, colours, sources in ((light, LIGHT, LIGHT_SOURCES), (dark, DARK, DARK_SOURCES)):
        assert colours["bg"] in style
        assert all(colour in style for colour in sources)


@every_picture
def test_the_same_values_give_the_same_picture(svg: str) -> None:
    again = {
        "bars": render_bars(BARS), "lines": render_lines("a model", ATTACK, PLOTS),
        "tree": render_tree(ATTACK, "facts", *TREE, PLOTS), "a root alone": render_tree("nothing", "facts", [], [], []),
    }  # fmt: skip
    assert svg in again.values()


def test_bars_are_as_long_as_their_values_and_do_not_overlap() -> None:
    bars = parts(PICTURES["bars"], "rect", "bar")
    values = [series.values[group] for group in range(3) for series in BARS.series]
    lengths = [number(bar, "width") for bar in bars]
    assert len(bars) == 6
    for length, value in zip(lengths, values, strict=True):
        assert length == pytest.approx(value * lengths[0] / values[0], abs=0.2)
    assert len({number(bar, "x") for bar in bars}) == 1
    for one, other in combinations(bars, 2):
        assert abs(number(one, "y") - number(other, "y")) >= number(one, "height")
    assert [bar.get("class") for bar in bars] == ["bar s7", "bar s0"] * 3


def test_the_line_to_compare_with_stands_at_its_value() -> None:
    (mark,) = parts(PICTURES["bars"], "path", "reference")
    first = parts(PICTURES["bars"], "rect", "bar")[1]  # of value 1
    match = re.match(r"M([\d.]+) ", mark.get("d", ""))
    assert match
    assert float(match[1]) == pytest.approx(number(first, "x") + number(first, "width"), abs=0.2)


def test_everything_has_a_name() -> None:
    for name, words in {"bars": ("auto", "ngram", "code", "plain", "2.25"), "lines": ("plain", "auto", "requests"),
                        "tree": ("candidate 1", "candidate 2", "candidate 3", "5 drafts", "text")}.items():  # fmt: skip
        texts = ["".join(text.itertext()) for text in ET.fromstring(PICTURES[name]).iter(f"{SVG}text")]
        assert all(any(word in text for text in texts) for word in words), name


def test_points_stand_at_their_values() -> None:
    dots = parts(PICTURES["lines"], "circle", "dot")
    assert len(dots) == 12
    plain = [number(dot, "cy") for dot in dots[:4]]
    scale = (plain[0] - plain[3]) / 31.0
    assert scale > 0, "more is higher"
    for y, value in zip(plain, PLOTS[0].series[0].values, strict=True):
        assert y == pytest.approx(plain[0] - (value - 10.0) * scale, abs=0.2)
    columns = [number(dot, "cx") for dot in dots[:4]]
    assert columns == [number(dot, "cx") for dot in dots[8:]]
    step = (columns[3] - columns[0]) / 3
    assert columns == pytest.approx([columns[0] + step * index for index in range(4)], abs=0.1)


@pytest.mark.parametrize("most", [0.0, 1e-6, 0.3, 0.999, 1.0, 1.01, 7.0, 20.0, 99.0, 1234.0, 1e9])
def test_ticks_are_round_few_and_reach_the_largest_value(most: float) -> None:
    ticks = ticks_up_to(most)
    assert ticks[0] == 0.0
    assert ticks[-1] >= most > ticks[-2] or most == 0.0
    assert 2 <= len(ticks) <= 7
    step = ticks[1] / 10 ** math.floor(math.log10(ticks[1]) + 1e-9)
    assert round(step, 6) in (1.0, 2.0, 2.5, 5.0)


def test_a_tree_has_a_pill_for_every_node_and_a_curve_for_every_parent() -> None:
    svg = PICTURES["tree"]
    pills = parts(svg, "g", "pill")
    assert len(pills) == 6
    assert len(parts(svg, "g", "edge")) == 5
    hints = ["".join(pill.itertext()) for pill in pills[1:]]
    for hint, rank, share in zip(hints, TREE[1], TREE[2], strict=True):
        assert f"candidate {rank + 1}\n" in hint
        assert f"{share:.3f}" in hint
    places = [pill.find(f"{SVG}rect") for pill in pills]
    left = [number(place, "x") for place in places if place is not None]
    assert left[0] < left[1] == left[2] < left[3] == left[4] < left[5]


def test_a_deep_tree_makes_the_picture_wider() -> None:
    deep = render_tree("deep", "", [-1, *range(15)], [0] * 16, [0.9] * 16)
    widest = max(number(rect, "x") + number(rect, "width") for rect in parts(deep, "rect", "base"))
    assert widest < number(ET.fromstring(deep), "width")
    assert number(ET.fromstring(PICTURES["a root alone"]), "width") < widest


@pytest.mark.parametrize(
    ("groups", "values"),
    [(("a",), ()), (("a",), (1.0, 2.0)), (("a",), (float("nan"),)), (("a",), (float("inf"),)), (("a",), (-1.0,))],
)
def test_values_that_cannot_be_drawn_are_refused(groups: tuple[str, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError):
        Bars("", "", groups, (Series("x", 0, values),), (1.0, "plain"))
    with pytest.raises(ParameterError):
        Lines("", "", (1,), (Series("x", 0, values),))


@pytest.mark.parametrize("fault", [([0], [0], [0.5]), ([-1, 2], [0, 0], [0.5] * 2), ([-1], [0, 1], [0.5]),
                                   ([-1], [0], [1.5])])  # fmt: skip
def test_a_tree_that_contradicts_itself_is_refused(fault: tuple[Sequence[int], Sequence[int], Any]) -> None:
    with pytest.raises(ParameterError):
        render_tree("", "", *fault)


def test_no_plots_are_refused() -> None:
    with pytest.raises(ParameterError):
        render_lines("", "", [])
