"""How pictures look and how pages behave: colours, style sheets, the page around the pictures and its script.

In: a table of colours. Out: CSS; the rest are constants. Must never know what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

LIGHT_SOURCES = ("#3f7fd1", "#e5a50a", "#c8553d", "#3aa6b0", "#b679b8", "#7d8590", "#8a6d3b", "#94b447")
DARK_SOURCES = ("#5b9bea", "#edb62e", "#e2745c", "#4fc0ca", "#cc92ce", "#98a1ac", "#b59458", "#a9c95f")
NUM_COLOURS = len(LIGHT_SOURCES)
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
CHART_CSS = """
.dg text.middle { text-anchor: middle; }
.dg .grid { fill: none; stroke: %(line)s; stroke-width: 1; }
.dg .reference { fill: none; stroke: %(ink)s; stroke-width: 1.4; stroke-dasharray: 5 3.5; }
.dg text.reference-label { fill: %(ink)s; font-weight: 650; }
.dg .trace { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.dg .dot { stroke: %(panel)s; stroke-width: 1.5; }
.dg .floor { fill: %(mute)s; fill-opacity: 0.16; stroke: %(mute)s; stroke-width: 1.2; stroke-dasharray: 5 3.5; }
"""
CHART_SOURCE_CSS = """.dg .bar.s{0}, .dg .dot.s{0} {{ fill: {1}; }}
.dg .trace.s{0} {{ stroke: {1}; }}
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


def css(colours: dict[str, str], sources: Sequence[str]) -> str:
    """The style sheet of a picture in these colours, `sources` by colour number."""
    rules = "".join(SOURCE_CSS.format(index, colour) for index, colour in enumerate(sources))
    return SVG_CSS % (colours | {"half": sources[0], "other_half": sources[1]}) + rules


def chart_style() -> str:
    """The style sheet of a chart, light or dark as the viewer wants it."""

    def sheet(colours: dict[str, str], sources: Sequence[str]) -> str:
        rules = "".join(CHART_SOURCE_CSS.format(index, colour) for index, colour in enumerate(sources))
        return css(colours, sources) + CHART_CSS % colours + rules

    light, dark = sheet(LIGHT, LIGHT_SOURCES), sheet(DARK, DARK_SOURCES)
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}}}"
