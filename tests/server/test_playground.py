"""The playground in headless Chromium: what a visitor sees, does by keyboard alone, and is safe from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

import draftgraph.server
from draftgraph.draw.style import DARK, DARK_SOURCES, LIGHT, LIGHT_SOURCES
from draftgraph.draw.view import KNOWN_SOURCES
from draftgraph.server.errors import json_bytes
from support.playground import PHONE, Page, browsing, take_picture
from support.serving import Serving, serving
from support.views import VIEWS

STATIC = Path(draftgraph.server.__file__).parent / "static"
KEY = "a-long-and-random-key"
OVERLAPS = """
    const boxes = [...document.querySelectorAll(arguments[0] + ' .pill rect')].map((r) => r.getBoundingClientRect());
    return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right
      && a.top < b.bottom && b.top < a.bottom)).length;"""
REPEATED = "the cat sat on the mat and the cat sat on the mat and"


@pytest.fixture(scope="module")
def page(shared: Serving) -> Iterator[Page]:
    with browsing(shared.url) as browser:
        yield browser


@pytest.fixture(autouse=True)
def is_quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a word in the console, or asks anything of another server."""
    if "page" not in request.fixturenames:
        yield
        return
    page: Page = request.getfixturevalue("page")
    page.console(), page.requested()
    yield
    assert page.console() == []
    elsewhere = [url for url in page.requested() if not url.startswith((page.url, "chrome:", "data:"))]
    assert elsewhere == []


def answered(page: Page, **settings: str) -> None:
    """Has one message answered."""
    page.set(max_tokens="48", **settings)
    page.ask(REPEATED)
    page.wait_answered()


def test_an_answer_streams_in_the_colours_of_its_sources(page: Page, shared: Serving) -> None:
    page.load()
    page.wait("document.getElementById('model').textContent")
    assert page.text("#model") == shared.llm.name
    page.set(max_tokens="60")
    with shared.brake.slowed(0.03):
        page.ask(REPEATED)
        page.wait("document.querySelector('.answer .token') && document.querySelectorAll('.figure').length > 1")
        assert not page.one("#stop").get_property("hidden"), "the answer came all at once"
        assert page.text(".answer .body")
    page.wait_answered()
    names = {name for token in page.all(".answer .token") for name in str(token.get_attribute("class")).split()}
    assert names - {"token"} <= {"s-ngram", "s-suffix", "s-recycle", "s-grammar"}
    colours = {token.value_of_css_property("background-color") for token in page.all(".answer .token")}
    assert "rgba(0, 0, 0, 0)" not in colours
    assert re.fullmatch(r"[\d,]+ tokens/s [\d.]+ per step ", page.text(".figures"))
    assert page.text("#status") == "The answer is complete."


def test_settings_go_with_the_next_message(page: Page) -> None:
    page.load()
    page.requested()
    page.one("#drafts").click()
    answered(page, temperature="0.5", top_p="0.9", seed="7", system="Be brief.")
    events = [json.loads(entry["message"])["message"]["params"] for entry in page.driver.get_log("performance")]
    (body,) = [json.loads(event["request"]["postData"]) for event in events if "postData" in event.get("request", {})]
    wanted = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 48, "draft": "off", "stream": True}
    assert wanted.items() <= body.items()
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert page.all(".answer .token") == []
    assert "without drafts" in page.text(".figures")


def test_the_graph_of_a_step_is_what_the_server_says(page: Page) -> None:
    page.load()
    answered(page)
    page.one(".open-graph").click()
    title = page.text("#graph-title")
    _, number, _, count = title.split()
    assert int(number) > 0
    page.keys(Keys.HOME)
    drafted = 0
    for index in range(int(count)):
        assert page.text("#graph-title") == f"Step {index + 1} of {count}"
        facts = page.text("#facts")
        found = re.match(r"drafted(\d+) nodes?(?:, (\d+) merged)?verified(\d+) rows? in one passaccepted(\d+) ", facts)
        assert found, facts
        nodes, merges, rows, accepted = (int(value or 0) for value in found.groups())
        own = len(page.all("#canvas .pill.own"))
        assert len(page.all("#canvas .pill")) == 1 + nodes + own
        assert len(page.all("#canvas .line.merged")) == merges
        assert len(page.all("#canvas .pill.taken")) == accepted
        assert len(page.all("#written .token")) == accepted + own
        page.one("#show-tree").click()
        assert len(page.all("#canvas .pill")) == rows + own
        assert len(page.all("#canvas .pill.taken")) == accepted
        page.one("#show-graph").click()
        assert page.one(".step.current").get_attribute("data-step") == str(index)
        drafted += nodes
        page.keys(Keys.ARROW_RIGHT)
    assert drafted > int(count)


@pytest.mark.parametrize("name", VIEWS)
def test_any_graph_is_drawn_whole(page: Page, name: str) -> None:
    """Every node and edge is there, at its depth and covered by no other, and no coordinate is missing."""
    view = VIEWS[name]
    page.load()
    page.driver.execute_async_script(
        """
        const [step, done] = arguments;
        import('/static/layout.js').then(({ draw, ofGraph, ofTree }) => {
          document.getElementById('canvas').append(draw(ofGraph(step), 'graph'), draw(ofTree(step), 'tree'));
          document.getElementById('graph').hidden = false;
          done();
        });""",
        json.loads(json_bytes(asdict(view))),
    )
    graph, tree = ('svg[aria-label="graph"]', 'svg[aria-label="tree"]')
    assert len(page.all(f"{graph} .pill")) == 1 + len(view.nodes)
    assert len(page.all(f"{graph} .line")) == 1 + len(view.edges)
    assert len(page.all(f"{graph} .line.merged")) == view.num_merged
    assert len(page.all(f"{graph} .pill.left")) == sum(not node.in_tree for node in view.nodes)
    assert len(page.all(f"{graph} .dot")) == sum(len(node.sources) for node in view.nodes)
    assert len(page.all(f"{tree} .pill")) == 1 + len(view.tree)
    assert len(page.all(f"{graph} .pill.taken")) == sum(node.accepted for node in view.nodes[1:])
    assert len(page.all(f"{tree} .pill.taken")) == view.num_accepted
    for svg in (graph, tree):
        assert page.script(OVERLAPS, svg) == 0
        assert "NaN" not in page.script("return document.querySelector(arguments[0]).outerHTML", svg)
    tops = page.script("return [...document.querySelectorAll(arguments[0])].map((r) => +r.getAttribute('y'))",
                       f"{graph} .pill rect")  # fmt: skip
    depths = [node.depth for node in view.nodes]
    assert {tops[i] < tops[j] for i, a in enumerate(depths) for j, b in enumerate(depths) if a < b} <= {True}


def test_everything_is_done_by_keyboard_alone(page: Page) -> None:
    page.load()
    page.wait("document.activeElement.id === 'message'")
    page.keys(REPEATED)
    page.keys(Keys.ENTER, holding=Keys.SHIFT)
    page.keys("and", Keys.ENTER)
    page.wait("document.querySelector('.question')")
    assert page.text(".question") == f"{REPEATED}\nand"
    page.wait_answered()
    page.keys(Keys.TAB, holding=Keys.SHIFT)
    assert "open-graph" in page.focused
    page.keys(Keys.ENTER)
    assert page.focused == "graph"
    page.keys(Keys.HOME)
    assert page.text("#graph-title").startswith("Step 1 of")
    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.text("#graph-title").startswith("Step 2 of")
    page.keys(Keys.TAB, Keys.TAB, Keys.ENTER)
    assert page.one("#show-tree").get_attribute("aria-pressed") == "true"
    page.keys(Keys.END)
    first, last = re.findall(r"\d+", page.text("#graph-title"))
    assert first == last
    page.keys(Keys.ESCAPE)
    assert page.one("#graph").get_property("hidden")
    assert "open-graph" in page.focused


def test_escape_stops_and_the_chat_goes_on(page: Page, shared: Serving) -> None:
    page.load()
    page.set(max_tokens="2000")
    with shared.brake.slowed(0.02):
        page.ask(REPEATED)
        page.wait("document.querySelector('.answer .body').textContent.length > 10")
        page.keys(Keys.ESCAPE)
        page.wait_answered()
    assert page.text(".note") == "Stopped."
    assert page.focused == "message"
    shared.assert_idle()
    page.set(max_tokens="8")
    page.ask("and")
    page.wait("document.querySelectorAll('.answer').length === 2")
    page.wait_answered()
    assert len(page.all(".answer .figures")) == 2


def test_a_new_chat_forgets_and_stops(page: Page, shared: Serving) -> None:
    page.load()
    page.set(max_tokens="2000")
    with shared.brake.slowed(0.02):
        page.ask(REPEATED)
        page.wait("document.querySelector('.answer .body').textContent")
        page.one("#new-chat").click()
        page.wait("document.getElementById('welcome')")
        shared.assert_idle()
    assert page.all("article") == []
    page.one("#examples button").click()
    page.wait("document.querySelector('.question')")
    page.wait_answered()


def test_markup_stays_text(page: Page) -> None:
    page.load()
    page.set(max_tokens="1")
    page.ask("<img src=x onerror=alert(1)>")
    page.wait_answered()
    assert page.text(".question") == "<img src=x onerror=alert(1)>"
    page.driver.execute_async_script("""
        const done = arguments[0];
        import('/static/chat.js').then(({ Answer }) => {
          const text = '<b id="planted">x</b>';
          const tokens = [{ text, sources: ['ngram'] }, { text, sources: ['target'] }];
          const so_far = { tokens: 3, steps: 2, seconds: 1, plain_seconds: 4 };
          new Answer(document.getElementById('log'), true, () => {}).take(
            { choices: [{ delta: { content: text } }], draftgraph: { tokens, so_far } });
          done();
        });""")
    assert page.all("#planted, #log img") == []
    assert page.all(".answer .body")[-1].text.count('<b id="planted">x</b>') == 2
    assert page.all(".figures")[-1].text.split("\n") == ["2 tokens/s", "1.00 per step", "plain would be 1"]


def test_no_script_but_its_own_runs(page: Page) -> None:
    page.load()
    page.script("""
        const script = document.createElement('script');
        script.textContent = 'window.planted = true';
        document.body.append(script);""")
    assert page.script("return window.planted") is None
    assert any("Content Security Policy" in word for word in page.console())


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_are_as_the_visitor_has_it(page: Page, dark: bool) -> None:
    page.load(dark=dark)
    shade = (DARK if dark else LIGHT)["bg"]
    red, green, blue = (int(shade[at : at + 2], 16) for at in (1, 3, 5))
    assert page.script("return getComputedStyle(document.body).backgroundColor") == f"rgb({red}, {green}, {blue})"


@pytest.mark.parametrize("width", [PHONE[0], 320])
def test_nothing_is_wider_than_a_phone(page: Page, width: int) -> None:
    page.load(size=(width, PHONE[1]))
    assert page.script("return document.documentElement.scrollWidth") == width
    answered(page)
    assert page.script("return document.documentElement.scrollWidth") == width
    page.one(".open-graph").click()
    box = page.one("#graph").rect
    assert (box["width"], box["height"]) == (width, PHONE[1])
    assert page.script("return document.documentElement.scrollWidth") == width
    page.one("#close-graph").click()


def test_the_picture_has_a_graph(page: Page, tmp_path: Path) -> None:
    take_picture(page, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_with_keys_the_page_asks_for_one(model_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(KEY, encoding="utf-8")
    keys.chmod(0o600)
    with serving(model_path, server={"api_key_file": str(keys)}) as keyed, browsing(keyed.url) as page:
        page.load()
        for key in ("not-a-key-of-this-file", KEY):
            page.wait("document.getElementById('key').open")
            page.one("#key-value").send_keys(key, Keys.ENTER)
        page.wait("document.getElementById('model').textContent")
        assert page.text("#model") == keyed.llm.name
        page.set(max_tokens="4")
        page.ask("the cat")
        page.wait_answered()
        assert page.text(".answer .body")
        assert page.script("return localStorage.length + document.cookie.length") == 0
        assert KEY not in str(page.driver.page_source)


def test_the_page_needs_no_key_and_says_what_it_may(model_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(KEY, encoding="utf-8")
    keys.chmod(0o600)
    with serving(model_path, server={"api_key_file": str(keys)}) as keyed, keyed.http() as client:
        for path in ("/", *(f"/static/{file.name}" for file in STATIC.iterdir() if file.suffix in (".css", ".js"))):
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["content-security-policy"].startswith("default-src 'self'")
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert client.get("/static/../app.py").status_code in (401, 404)
        assert client.get("/static/nothing.js").status_code == 404
        assert client.get("/v1/models").status_code == 401


def test_the_files_refer_to_nothing_elsewhere_and_hold_no_inline_code() -> None:
    own = [file for file in STATIC.iterdir() if file.suffix in (".html", ".css", ".js") and file.name != "dagre.js"]
    assert len(own) >= 8
    for file in own:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file.name
        if file.suffix == ".html":
            assert not re.search(r"\son[a-z]+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", text)


def test_colours_are_those_of_the_drawings() -> None:
    css = (STATIC / "colours.css").read_text(encoding="utf-8")
    blocks = css.split("@media (prefers-color-scheme: dark)")
    names = list(KNOWN_SOURCES)
    for block, shades, sources in zip(blocks, (LIGHT, DARK), (LIGHT_SOURCES, DARK_SOURCES), strict=True):
        said = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
        assert {name: said.pop(name) for name in names} == dict(zip(names, sources, strict=False))
        assert said.pop("accent") == shades["accepted"]
        assert said == {name: shades[name] for name in said}


def test_what_is_others_is_unchanged_and_has_its_licence() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", (STATIC / "README.md").read_text("utf-8"), re.M)
    assert {name for name, _ in rows} == {"dagre.js", "inter.woff2"}
    for name, digest in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
        assert (STATIC / f"{name.partition('.')[0]}.LICENSE.txt").stat().st_size > 500
