"""The pictures of a step: everything is shown, escaped and legible, and the geometry holds for any graph."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

import draftgraph
from draftgraph.draw import (
    Panel,
    StepView,
    ViewEdge,
    ViewNode,
    lay_out,
    render_html,
    render_svg,
    sources_of,
    visible,
)
from draftgraph.draw.layout import PILL_HEIGHT, Pill, Point
from draftgraph.errors import ParameterError
from support.views import README, VIEWS, random_view, view_of

SVG = "{http://www.w3.org/2000/svg}"
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())


def overlaps(pills: Sequence[Pill]) -> int:
    return sum(a.x < b.right and b.x < a.right and abs(a.y - b.y) < PILL_HEIGHT for a, b in combinations(pills, 2))


def trespasses(panel: Panel) -> int:
    """How many pairs there are of a curve and a pill it passes through that is not one of its ends."""
    count = 0
    for link, curve in zip(panel.links, panel.curves, strict=True):
        points = list(flattened(curve))
        for index, pill in enumerate(panel.pills):
            half = PILL_HEIGHT / 2
            hit = any(pill.x < x < pill.right and pill.y - half < y < pill.y + half for x, y in points)
            count += hit and index not in (link.source, link.target)
    return count


def flattened(curve: Sequence[Point], steps: int = 24) -> Iterator[Point]:
    start = curve[0]
    for a, b, c in zip(curve[1::3], curve[2::3], curve[3::3], strict=True):
        for step in range(steps + 1):
            t = step / steps
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            corners = (start, a, b, c)
            x, y = (sum(w * p[axis] for w, p in zip(weights, corners, strict=True)) for axis in (0, 1))
            yield x, y
        start = c


def pill_texts(svg: str) -> list[str]:
    pills = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if "pill" in group.get("class", "").split()]
    texts = [pill.find(f"{SVG}text") for pill in pills]
    return ["".join(text.itertext()) for text in texts if text is not None]


def legend(svg: str) -> list[str]:
    return list(colours(svg))


def colours(svg: str) -> dict[str, str]:
    """The legend's sources, each with the class of its colour."""
    entries = [(group, group.get("class", "").split()) for group in ET.fromstring(svg).iter(f"{SVG}g")]
    return {"".join(group.itertext()): names[1] for group, names in entries if names[:1] == ["legend-source"]}


def merged_edges(svg: str) -> int:
    return len(re.findall(r'data-edge="merged"', svg))


def outside_references(text: str) -> list[str]:
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    return re.findall(r"\w+://|\bsrc=|\bhref=|url\(|@import", text)


@every_view
def test_the_picture_is_well_formed_and_has_a_size(view: StepView) -> None:
    root = ET.fromstring(render_svg(view).encode())
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    with pytest.raises(ET.ParseError):
        ET.fromstring(render_svg(VIEWS["twelve siblings and odd tokens"]).replace("&lt;", "<"))


@every_view
def test_every_token_is_in_the_picture_whole_or_shortened_with_its_whole_text_in_the_hint(view: StepView) -> None:
    svg = render_svg(view)
    shown = pill_texts(svg)
    hints = [hint.text or "" for hint in ET.fromstring(svg).iter(f"{SVG}title")]
    own = view.emitted[-1][0]
    expected = [node.token for node in view.nodes] + [node.token for node in view.tree]
    expected += [text for text, _ in view.emitted] + [own, view.nodes[0].token]
    assert len(shown) == len(expected) == len(hints)
    for token in expected:
        assert any(hint.startswith(visible(token) + "\n") for hint in hints)
        assert any(_shows(text, visible(token)) for text in shown)
    if len(view.nodes) > 1:
        assert pill_texts(render_svg(replace(view, nodes=_renamed(view)))) != shown


def _shows(text: str, token: str) -> bool:
    return text == token or (text[-1] == "…" and token.startswith(text[:-1]))


def _renamed(view: StepView) -> tuple[ViewNode, ...]:
    return (*view.nodes[:-1], replace(view.nodes[-1], token="planted"))


def test_markup_in_a_token_a_title_or_a_prompt_is_only_text() -> None:
    attack = '</text></svg><script>alert("1")</script>\x00\ud800'
    view = replace(VIEWS["six nodes"], title=attack, prompt_tail=attack, emitted=((attack, attack), (attack, "target")))
    view = replace(view, nodes=(*view.nodes[:-1], replace(view.nodes[-1], sources=(attack,))))
    assert "<script" not in render_svg(view)
    ET.fromstring(render_svg(view).encode())
    page = render_html(view)
    assert page.count("<script>") == page.count("</script>") == 1
    assert page.count("</svg>") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" a b", "·a·b"), ("\n\t", "⏎⇥"), ("", "∅"), ("\x00", "⟨00⟩"), ("\u202e", "⟨202E⟩"), ("\ud800", "⟨D800⟩"),
     ("\u0301", "◌\u0301"), ("👨‍👩", "👨‍👩"), ("a\u200d", "a⟨200D⟩"), ("\u00a0", "⟨A0⟩"), ("\ufffe", "⟨FFFE⟩"),
     ("日本", "日本")],
)  # fmt: skip
def test_every_character_of_a_token_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@every_view
def test_no_two_pills_overlap(view: StepView) -> None:
    layout = lay_out(view)
    for panel in (layout.graph, layout.tree):
        assert overlaps(panel.pills) == 0
        assert overlaps([*panel.pills, replace(panel.pills[-1], y=panel.pills[-1].y + PILL_HEIGHT - 1)]) > 0


@every_view
def test_no_edge_passes_through_a_pill_that_is_not_its_end(view: StepView) -> None:
    layout = lay_out(view)
    for panel in (layout.graph, layout.tree):
        assert trespasses(panel) == 0
        for curve in panel.curves[:1]:
            x, y = curve[-1]
            planted = replace(panel, pills=(*panel.pills, Pill(x - 20, y, 10.0)))
            assert trespasses(planted) > 0


def test_the_geometry_holds_for_many_random_graphs() -> None:
    for seed in range(60):
        view = random_view(seed, num_nodes=5 + seed % 36)
        layout = lay_out(view)
        for panel in (layout.graph, layout.tree):
            assert overlaps(panel.pills) == trespasses(panel) == 0, f"seed {seed}"
            assert min(pill.y for pill in panel.pills) >= 0.0
        ET.fromstring(render_svg(view).encode())


@every_view
def test_both_panels_share_their_columns_and_every_edge_joins_its_pills(view: StepView) -> None:
    layout = lay_out(view)
    for panel in (layout.graph, layout.tree):
        for box, pill in zip(panel.boxes, panel.pills, strict=True):
            assert pill.x == layout.grid.lefts[box.layer]
            assert pill.right <= layout.grid.rights[box.layer]
        for link, curve in zip(panel.links, panel.curves, strict=True):
            source, target = panel.pills[link.source], panel.pills[link.target]
            assert curve[0] == (source.right, source.y)
            assert curve[-1][0] == target.x
            assert abs(curve[-1][1] - target.y) < PILL_HEIGHT / 2


def test_a_tree_is_drawn_without_crossings_and_its_accepted_path_is_level() -> None:
    layout = lay_out(README)
    panel = layout.tree
    level = {panel.pills[end].y for link in panel.links if link.level for end in (link.source, link.target)}
    assert len(level) == 1
    for a, b in combinations(panel.links, 2):
        pills = panel.pills
        if panel.boxes[a.source].layer == panel.boxes[b.source].layer:
            before = pills[a.source].y - pills[b.source].y
            assert before * (pills[a.target].y - pills[b.target].y) >= 0


@every_view
def test_every_merged_edge_is_drawn_as_one_with_its_own_legend_entry(view: StepView) -> None:
    svg = render_svg(view)
    pairs = {(edge.parent, edge.child) for edge in view.edges if edge.merged}
    rows = sum((view.tree[node.parent].node, node.node) in pairs for node in view.tree[1:])
    assert merged_edges(svg) == len(pairs) + rows
    assert ('class="legend-merged"' in svg) == bool(pairs)
    assert merged_edges(svg.replace('data-edge="merged"', "", 1)) != len(pairs) + rows or not pairs


def test_a_node_that_was_verified_on_several_paths_is_marked_in_both_panels() -> None:
    copies = sum(node.node == 15 for node in README.tree)
    svg = render_svg(README)
    assert copies > 1
    assert f">×{copies}</text>" in svg
    assert all(f">{number}/{copies}</text>" in svg for number in range(1, copies + 1))


@every_view
def test_the_legend_lists_exactly_the_sources_present(view: StepView) -> None:
    present = {name for node in view.nodes for name in node.sources}
    assert sorted(legend(render_svg(view))) == sorted(present)
    planted = replace(view, emitted=(("x", "planted"), *view.emitted))
    assert "planted" in legend(render_svg(planted))
    assert set(sources_of(planted)) == present | {"planted"}


def test_a_source_keeps_its_colour_whoever_else_is_present() -> None:
    alone = view_of([(0, "x", "recycle", 0.5)])
    assert colours(render_svg(alone)) == {"recycle": colours(render_svg(README))["recycle"]}


@every_view
def test_the_same_view_gives_the_same_picture(view: StepView) -> None:
    assert render_svg(view) == render_svg(view)
    assert render_svg(view) != render_svg(replace(view, step=view.step + 1))


def test_the_picture_does_not_depend_on_the_hash_seed() -> None:
    code = "import test_draw, zlib; print(zlib.crc32(test_draw.render_html(test_draw.README).encode()))"
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(draftgraph.__file__).parents[1])]
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(places)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_a_page_refers_to_nothing_outside_itself() -> None:
    page = render_html(list(VIEWS.values()))
    assert outside_references(page) == []
    assert outside_references(render_svg(README)) == []
    assert outside_references(page.replace("</main>", '<img src="https://example.org/x.png"></main>')) != []
    assert "default-src 'none'" in page


def test_a_page_of_several_steps_can_be_walked_and_a_page_of_one_has_no_buttons() -> None:
    page = render_html([README, VIEWS["six nodes"]])
    assert page.count('<section class="step">') == 2
    assert '<button id="back"' in page
    assert '<button id="back"' not in render_html(README)
    assert "prefers-color-scheme: dark" in page


def test_a_page_without_views_is_refused() -> None:
    with pytest.raises(ParameterError, match="one view or more"):
        render_html([])


def test_a_step_that_only_reads_the_prompt_and_one_that_ends_on_a_draft_are_drawn() -> None:
    reading = replace(VIEWS["plain decoding"], emitted=(), tree=(), num_rows=0)
    assert "still being read" in render_svg(reading)
    ended = replace(README, emitted=README.emitted[:-1])
    assert "legend-target" not in render_svg(ended)
    assert len(lay_out(ended).tree.pills) == len(ended.tree)


@pytest.mark.parametrize(
    "fault",
    [
        {"nodes": ()},
        {"nodes": (*README.nodes, README.nodes[1])},
        {"nodes": (README.nodes[0], replace(README.nodes[1], depth=-1), *README.nodes[2:])},
        {"nodes": (README.nodes[0], replace(README.nodes[1], acceptance=float("nan")), *README.nodes[2:])},
        {"edges": (*README.edges, ViewEdge(0, 99, 0.5, True, False))},
        {"edges": README.edges[1:]},
        {"edges": (*README.edges, ViewEdge(15, 1, 0.5, True, False))},
        {"edges": (replace(README.edges[0], acceptance=1.5), *README.edges[1:])},
        {"tree": (README.tree[0], replace(README.tree[1], parent=1))},
        {"tree": (README.tree[0], replace(README.tree[1], parent=-1))},
        {"tree": (README.tree[0], replace(README.tree[1], node=99))},
    ],
)
def test_a_view_that_contradicts_itself_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        replace(README, **fault)  # type: ignore[arg-type]
