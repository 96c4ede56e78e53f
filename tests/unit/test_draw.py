"""The pictures of a step: everything is shown, escaped and legible, and the geometry holds for any graph."""

from __future__ import annotations

import os
import random
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
    ViewTreeNode,
    lay_out,
    render_html,
    render_svg,
    sources_of,
    visible,
)
from draftgraph.draw.layout import PILL_HEIGHT, Pill, Point
from draftgraph.errors import ParameterError

SVG = "{http://www.w3.org/2000/svg}"
Draft = tuple[int, str, str, float]  # parent, token, comma-separated sources, acceptance; ids count from 1

FIBONACCI: tuple[Draft, ...] = (
    (0, " fib", "ngram,model", 0.92), (0, " n", "suffix", 0.21), (0, " self", "recycle", 0.08),
    (1, "onacci", "ngram,suffix,model", 0.97), (1, "(", "model", 0.12), (4, "(n", "ngram,model", 0.95),
    (6, " -", "ngram,suffix", 0.94), (6, "-", "model", 0.22), (7, " ", "suffix,model", 0.9),
    (9, "1", "ngram,model", 0.93), (9, "2", "suffix", 0.25), (8, "1", "model", 0.7), (2, " +", "suffix", 0.3),
    (5, "n", "model", 0.6), (10, ")", "ngram,suffix", 0.9),
)  # fmt: skip
ODD = (" <b>&amp;", "\"'", "]]>", "\n\n", "\t", "\x00\u200b", "日本語", "🙂", "👨‍👩‍👧", "\u0301", "", "\ud800",
       "\ufffe", " internationalisation")  # fmt: skip


def view_of(
    drafts: Sequence[Draft],
    accepted: Sequence[int] = (),
    own: str = " +",
    *,
    root: str = " return",
    merged: Sequence[tuple[int, int, float]] = (),
    budget: int = 16,
) -> StepView:
    """A step over these drafts: the tree is unrolled breadth first, `accepted` names the path that was taken."""
    edges = [(p, i, a, False) for i, (p, _, _, a) in enumerate(drafts, 1)] + [(u, w, a, True) for u, w, a in merged]
    taken = set(zip((0, *accepted), accepted, strict=False))
    tree = [ViewTreeNode(-1, 0, root, 1.0, True)]
    depths = [0]
    for row, above in enumerate(tree):
        for parent, child, acceptance, _ in edges:
            if parent == above.node and len(tree) <= budget:
                goes_on = above.accepted and accepted[depths[row] : depths[row] + 1] == [child]
                share = above.path_acceptance * acceptance
                tree.append(ViewTreeNode(row, child, drafts[child - 1][1], share, goes_on))
                depths.append(depths[row] + 1)
    nodes = [ViewNode(0, root, 0, (), 1.0, True, True)]
    rows = {node.node for node in tree}
    for i, (parent, token, sources, acceptance) in enumerate(drafts, 1):
        names = tuple(sources.split(","))
        nodes.append(ViewNode(i, token, nodes[parent].depth + 1, names, acceptance, i in accepted, i in rows))
    num_accepted = sum(node.accepted for node in tree) - 1
    emitted = [(nodes[i].token, nodes[i].sources[0]) for i in list(accepted)[:num_accepted]] + [(own, "target")]
    return StepView(
        "Eight tokens from one pass", "def fibonacci(n):\n    if n < 2:\n        return n\n   ", tuple(nodes),
        tuple(ViewEdge(u, w, a, m, (u, w) in taken) for u, w, a, m in edges), tuple(tree), tuple(emitted),
        step=12, budget=budget, num_drafted=len(drafts), num_merged=len(merged), num_rows=len(tree),
        num_accepted=num_accepted,
    )  # fmt: skip


def random_view(seed: int, num_nodes: int = 40) -> StepView:
    """A graph of depth at most 8 whose merged edges lead to any layer, backwards too, without a cycle."""
    draw = random.Random(seed)
    drafts: list[Draft] = []
    depths, reach = [0], {0: {0}}
    for i in range(1, num_nodes):
        parent = draw.choice([j for j in range(i) if depths[j] < 8])
        drafts.append((parent, draw.choice([" the", ")", *ODD]), draw.choice(["ngram", "model,heads"]), draw.random()))
        depths.append(depths[parent] + 1)
        reach[i] = {i}
    after: dict[int, set[int]] = {i: set() for i in range(num_nodes)}
    for i, (parent, *_) in enumerate(drafts, 1):
        after[parent].add(i)
    merged: list[tuple[int, int, float]] = []
    for _ in range(num_nodes // 4):
        u, w = draw.sample(range(1, num_nodes), 2)
        if u not in _descendants(after, w) and w not in after[u]:
            after[u].add(w)
            merged.append((u, w, draw.random()))
    path = [0]
    while after[path[-1]]:
        path.append(draw.choice(sorted(after[path[-1]])))
    return view_of(drafts, path[1 : draw.randint(1, 6)], merged=merged, budget=draw.randint(1, 48))


def _descendants(after: dict[int, set[int]], node: int) -> set[int]:
    found, stack = {node}, [node]
    while stack:
        fresh = after[stack.pop()] - found
        found |= fresh
        stack += fresh
    return found


README = view_of(FIBONACCI, [1, 4, 6, 7, 9, 10, 15], merged=[(12, 15, 0.8), (11, 15, 0.85), (14, 7, 0.5)],
                 budget=20)  # fmt: skip
VIEWS = {
    "plain decoding": view_of([], [], budget=0),
    "six nodes": view_of(FIBONACCI[:6], [1, 4], budget=5),
    "readme": README,
    "accepted through a merged edge": view_of(FIBONACCI, [1, 5, 14, 7, 9], merged=[(14, 7, 0.5), (9, 3, 0.5)]),
    "twelve siblings and odd tokens": view_of([(0, t, "suffix,eagle", 0.1) for t in ODD], [7], own="中"),
    "forty nodes": random_view(4),
}
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
    places = [str(Path(__file__).parent), str(Path(draftgraph.__file__).parents[1])]
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
