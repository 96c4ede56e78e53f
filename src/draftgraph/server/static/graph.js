// The panel that walks through the steps of an answer. In: an answer. Out: the drawing of one step and what it cost.

import { make, sourceClass } from "./chat.js";
import { draw, ofGraph, ofTree, svg, visible } from "./layout.js";

const get = (id) => document.getElementById(id);
const SMALLEST = 0.7; // a drawing is never shown smaller than this; it scrolls instead

export class GraphPanel {
  constructor() {
    this.answer = null;
    this.index = 0;
    this.asTree = false;
    this.opener = null;
    get("back").addEventListener("click", () => this.go(this.index - 1));
    get("on").addEventListener("click", () => this.go(this.index + 1));
    get("at").addEventListener("input", () => this.go(get("at").valueAsNumber - 1));
    get("close-graph").addEventListener("click", () => this.close());
    get("show-graph").addEventListener("click", () => this.choose(false));
    get("show-tree").addEventListener("click", () => this.choose(true));
    get("graph").addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.fit()).observe(get("canvas"));
  }

  get isOpen() {
    return this.answer !== null;
  }

  open(answer, index) {
    if (this.answer !== answer) this.answer?.mark(-1);
    this.opener = document.activeElement;
    this.answer = answer;
    get("graph").hidden = false;
    document.body.classList.add("with-graph");
    this.go(index);
    get("graph").focus({ preventScroll: true });
  }

  close() {
    if (!this.isOpen) return;
    this.answer.mark(-1);
    const back = this.opener?.isConnected && this.opener !== document.body ? this.opener : this.answer.button;
    this.answer = null;
    get("graph").hidden = true;
    document.body.classList.remove("with-graph");
    (back.isConnected ? back : get("message")).focus();
  }

  // Called when an answer has a new step.
  grew(answer) {
    if (answer === this.answer) this.showPlace();
  }

  press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const last = this.answer.steps.length - 1;
    const target = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: last }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.go(target);
  }

  choose(asTree) {
    this.asTree = asTree;
    get("show-graph").setAttribute("aria-pressed", String(!asTree));
    get("show-tree").setAttribute("aria-pressed", String(asTree));
    this.go(this.index);
  }

  go(index) {
    this.index = Math.max(0, Math.min(this.answer.steps.length - 1, index));
    const step = this.answer.steps[this.index];
    this.answer.mark(this.index);
    this.showPlace();
    const words = `${step.num_drafted} drafts, ${step.num_rows} rows verified, ${step.num_accepted} accepted`;
    get("canvas").replaceChildren(draw((this.asTree ? ofTree : ofGraph)(step), words));
    this.fit();
    showTaken(get("canvas"));
    get("written").replaceChildren(...step.emitted.map(emitted));
    get("facts").replaceChildren(...facts(step));
  }

  showPlace() {
    const { steps } = this.answer;
    get("graph-title").textContent = `Step ${this.index + 1} of ${steps.length}`;
    get("at").max = steps.length;
    get("at").value = this.index + 1;
    get("back").disabled = this.index === 0;
    get("on").disabled = this.index === steps.length - 1;
    drawBars(steps, this.index);
  }

  fit() {
    const picture = get("canvas").firstElementChild;
    if (!picture) return;
    const { width, height } = picture.viewBox.baseVal;
    const style = getComputedStyle(get("canvas"));
    const across = get("canvas").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const down = get("canvas").clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const scale = Math.max(SMALLEST, Math.min(1, across / width, down / height));
    picture.setAttribute("width", width * scale);
    picture.setAttribute("height", height * scale);
  }
}

// Scrolls a drawing that is larger than its frame so that the way taken is in the middle.
function showTaken(canvas) {
  const taken = canvas.querySelector(".pill.own") ?? canvas.querySelector(".pill.root");
  const [frame, pill] = [canvas, taken].map((element) => element.getBoundingClientRect());
  canvas.scrollLeft += pill.left + pill.width / 2 - frame.left - frame.width / 2;
  canvas.scrollTop = 0;
}

function emitted([text, source]) {
  const classes = sourceClass(source);
  return make("span", classes ? `token ${classes}` : "token plain", visible(text));
}

// One bar per step, as high as what the step wrote.
function drawBars(steps, current) {
  const bars = get("bars");
  const most = Math.max(2, ...steps.map((step) => step.emitted.length));
  bars.setAttribute("viewBox", `0 0 ${steps.length} ${most}`);
  bars.replaceChildren(
    ...steps.map((step, index) => {
      const height = step.emitted.length;
      const kind = `${index === current ? "current" : ""} ${step.num_accepted ? "paid" : ""}`;
      return svg("rect", { class: kind, x: index + 0.12, y: most - height, width: 0.76, height });
    }),
  );
}

function facts(step) {
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const milliseconds = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;
  const merged = step.num_merged ? `, ${step.num_merged} merged` : "";
  const rows = [
    ["drafted", `${plural(step.num_drafted, "node")}${merged}`],
    ["verified", `${plural(step.num_rows, "row")} in one pass`],
    ["accepted", plural(step.num_accepted, "draft")],
    ["took", `${milliseconds(step.seconds)} for ${plural(step.emitted.length, "token")}`],
  ];
  if (step.plain_seconds > 0) rows.push(["plain would take", milliseconds(step.plain_seconds)]);
  return rows.map(([name, value]) => {
    const row = make("div");
    row.append(make("dt", "", name), make("dd", "", value));
    return row;
  });
}
