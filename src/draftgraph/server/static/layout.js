// A step as a drawing. In: a step as the server tells it. Out: an SVG element. Places come from dagre, by depth.

import { Graph, layout } from "./dagre.js";
import { sourceClass } from "./chat.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 28; // of a pill, pixels
const RANK = 56; // from one depth to the next
const GUTTER = 34; // for the depths, at the left
const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥" };
const pen = document.createElement("canvas").getContext("2d");

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The two pictures of a step as pills and lines.

export function ofGraph(step) {
  const pills = step.nodes.map((node) => ({
    id: node.id,
    text: node.token,
    depth: node.depth,
    sources: node.sources,
    share: node.depth ? node.acceptance : null,
    kind: node.depth === 0 ? "root" : node.accepted ? "taken" : node.in_tree ? "" : "left",
  }));
  const lines = step.edges.map((edge) => ({
    from: edge.parent,
    to: edge.child,
    kind: `${edge.merged ? "merged" : ""} ${edge.accepted ? "taken" : ""}`,
  }));
  const last = step.tree.filter((row) => row.accepted).at(-1);
  return withOwn(step, pills, lines, last.node);
}

export function ofTree(step) {
  const byId = new Map(step.nodes.map((node) => [node.id, node]));
  const pills = [];
  step.tree.forEach((row, index) => {
    pills.push({
      id: index,
      text: row.token,
      depth: index ? pills[row.parent].depth + 1 : 0,
      sources: byId.get(row.node).sources,
      share: index ? row.path_acceptance : null,
      kind: index === 0 ? "root" : row.accepted ? "taken" : "",
    });
  });
  const lines = step.tree.slice(1).map((row, index) => ({ from: row.parent, to: index + 1, kind: row.accepted ? "taken" : "" }));
  return withOwn(step, pills, lines, step.tree.findLastIndex((row) => row.accepted));
}

// The model's own token follows the last one that was accepted.
function withOwn(step, pills, lines, after) {
  const [text, source] = step.emitted.at(-1);
  if (source === "target") {
    const depth = pills.find((pill) => pill.id === after).depth + 1;
    pills.push({ id: "own", text, depth, sources: [], share: null, kind: "own" });
    lines.push({ from: after, to: "own", kind: "taken" });
  }
  return { pills, lines };
}

export function visible(text) {
  return [...text].map((char) => MARKS[char] ?? (/\p{C}/u.test(char) ? `⟨${char.codePointAt(0).toString(16).toUpperCase()}⟩` : char)).join("") || "∅";
}

function shortened(text) {
  const shown = [...visible(text)];
  return shown.length > 16 ? `${shown.slice(0, 15).join("")}…` : shown.join("");
}

function measure(pill) {
  pen.font = "500 13px Inter, system-ui, sans-serif";
  pill.label = shortened(pill.text);
  pill.number = pill.share === null ? "" : String(Math.round(100 * pill.share));
  pill.dots = pill.sources.length * 9;
  pill.width = 20 + pill.dots + (pill.dots ? 3 : 0) + pen.measureText(pill.label).width;
  if (pill.number) pill.width += 7 + 6.5 * pill.number.length;
}

function place({ pills, lines }) {
  const graph = new Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 9, ranksep: RANK - HEIGHT, edgesep: 8 });
  const byId = new Map(pills.map((pill) => [pill.id, pill]));
  for (const pill of pills) graph.setNode(String(pill.id), { width: pill.width, height: HEIGHT });
  for (const line of lines) {
    const minlen = byId.get(line.to).depth - byId.get(line.from).depth;
    if (minlen > 0) graph.setEdge(String(line.from), String(line.to), { minlen, weight: line.kind.includes("taken") ? 8 : 1 });
  }
  layout(graph);
  for (const pill of pills) {
    const { x } = graph.node(String(pill.id));
    Object.assign(pill, { x: x + GUTTER, y: HEIGHT / 2 + 4 + pill.depth * RANK });
  }
  for (const line of lines) Object.assign(line, { a: byId.get(line.from), b: byId.get(line.to) });
  return Math.max(...pills.map((pill) => pill.x + pill.width / 2)) + 2;
}

export function draw(picture, title) {
  picture.pills.forEach(measure);
  const width = place(picture);
  const deepest = Math.max(...picture.pills.map((pill) => pill.depth));
  const height = deepest * RANK + HEIGHT + 8;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  for (let depth = 0; depth <= deepest; depth += 1) {
    const y = HEIGHT / 2 + 4 + depth * RANK;
    root.append(svg("path", { class: "depth", d: `M${GUTTER - 8} ${y}H${width}` }));
    if (depth) root.append(svg("text", { class: "depth-number", x: 0, y: y + 4 }, `+${depth}`));
  }
  const inOrder = [...picture.lines].sort((a, b) => a.kind.includes("taken") - b.kind.includes("taken"));
  root.append(...inOrder.map(drawLine), ...picture.pills.map(drawPill));
  return root;
}

function drawLine({ a, b, kind }) {
  const down = b.y > a.y;
  const [y0, y1] = down ? [a.y + HEIGHT / 2, b.y - HEIGHT / 2] : [a.y + HEIGHT / 2, b.y + HEIGHT / 2];
  const bend = down ? (y1 - y0) * 0.55 : 26;
  return svg("path", { class: `line ${kind}`, d: `M${a.x} ${y0}C${a.x} ${y0 + bend} ${b.x} ${down ? y1 - bend : y1 + bend} ${b.x} ${y1}` });
}

function drawPill(pill) {
  const left = pill.x - pill.width / 2;
  const group = svg("g", { class: `pill ${pill.kind}` });
  group.append(svg("title", {}, tip(pill)));
  group.append(svg("rect", { x: left, y: pill.y - HEIGHT / 2, width: pill.width, height: HEIGHT, rx: 8 }));
  pill.sources.forEach((source, index) => {
    group.append(svg("circle", { class: `dot ${sourceClass(source)}`, cx: left + 13 + 9 * index, cy: pill.y, r: 3.2 }));
  });
  const text = svg("text", { x: left + 10 + pill.dots + (pill.dots ? 3 : 0), y: pill.y + 4.5 });
  for (const part of pill.label.split(/([·⏎⇥…]+)/)) {
    if (part) text.append(/^[·⏎⇥…]+$/.test(part) ? svg("tspan", { class: "space" }, part) : part);
  }
  group.append(text);
  if (pill.number) group.append(svg("text", { class: "share", x: left + pill.width - 10, y: pill.y + 4 }, pill.number));
  return group;
}

function tip(pill) {
  if (pill.kind === "root") return "the last token known before this step";
  if (pill.kind === "own") return "the model's own token";
  const fate = { taken: "accepted", "": "verified, not accepted", left: "drafted, not verified" }[pill.kind];
  return `from ${pill.sources.join(", ")}; expected to be taken: ${pill.number}%; ${fate}`;
}
