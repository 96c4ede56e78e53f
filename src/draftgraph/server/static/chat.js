// Messages on the page. In: events of a stream. Out: elements; all text of a model is text, never markup.

const SOURCES = ["ngram", "suffix", "recycle", "model", "grammar"];

export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

export function sourceClass(source) {
  const kind = source.split(":")[0];
  return kind === "target" ? "" : `s-${SOURCES.includes(kind) ? kind : "other"}`;
}

export function addQuestion(log, text) {
  const article = make("article", "question");
  article.setAttribute("aria-label", "You");
  article.append(make("p", "", text));
  log.append(article);
  return article;
}

// The key to the colours has whoever wrote something so far.
export function addToLegend(source) {
  const legend = document.getElementById("legend");
  const shown = [...legend.children].map((item) => item.textContent);
  if (source === "target" || shown.includes(source)) return;
  const item = make("li", sourceClass(source));
  item.append(make("i"), source);
  legend.append(item);
}

const number = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

let plainRate = 0; // tokens/s of the last answer without drafts: said where the server does not know better

// One answer: grows with the stream, then offers its steps.
export class Answer {
  constructor(log, drafts, open) {
    this.steps = []; // what the server says of each step
    this.text = "";
    this.drafts = drafts;
    this.soFar = null;
    this.element = make("article", "answer");
    this.element.setAttribute("aria-label", "Answer");
    this.body = make("p", "body writing");
    this.figures = make("p", "figures");
    this.button = make("button", "quiet open-graph", "Graph");
    this.button.type = "button";
    this.button.hidden = true;
    this.button.addEventListener("click", () => open(this, this.mostTelling()));
    this.body.addEventListener("click", (event) => {
      const step = event.target.closest("[data-step]");
      if (step && getSelection().isCollapsed) open(this, Number(step.dataset.step));
    });
    const foot = make("div", "foot");
    foot.append(this.figures, this.button);
    this.element.append(this.body, foot);
    log.append(this.element);
  }

  take(event) {
    this.text += event.choices[0]?.delta.content ?? "";
    const seen = event.draftgraph;
    if (!seen) return;
    const step = make("span", "step");
    if (seen.step) {
      step.dataset.step = this.steps.length;
      this.steps.push(seen.step);
      if (seen.step.num_drafted) this.button.hidden = false;
    }
    step.append(...seen.tokens.map(({ text, sources }) => token(text, sources)));
    this.body.append(step);
    this.soFar = seen.so_far;
    this.showFigures();
  }

  showFigures() {
    const { tokens, steps, seconds, plain_seconds: plain } = this.soFar;
    if (!steps || !(seconds > 0)) return;
    const rate = (tokens - 1) / seconds;
    const parts = [figure(number(rate, 0), "tokens/s")];
    if (this.drafts) {
      parts.push(figure(number((tokens - 1) / steps, 2), "per step"));
      const plainly = plain > 0 ? (tokens - 1) / plain : plainRate;
      if (plainly > 0) {
        parts.push(figure(number(plainly, 0), plain > 0 ? "plain would be" : "plain was", true));
      }
    } else {
      plainRate = rate;
      parts.push(figure("", "without drafts"));
    }
    this.figures.replaceChildren(...parts.flatMap((part) => [part, " "])); // read out as words apart
  }

  end(note = "", isError = false) {
    this.body.classList.remove("writing");
    if (!note) return;
    const line = make("p", isError ? "note error" : "note", note);
    if (isError) line.setAttribute("role", "alert");
    this.element.insertBefore(line, this.element.lastChild);
  }

  mark(index) {
    this.body.querySelector(".step.current")?.classList.remove("current");
    this.body.querySelector(`[data-step="${index}"]`)?.classList.add("current");
  }

  // The step to open with: much accepted and merged, in a graph that is still legible.
  mostTelling() {
    const worth = (step) =>
      3 * step.num_accepted + 2 * Math.min(step.num_merged, 4) - Math.max(0, step.nodes.length - 24) + Math.min(step.nodes.length, 12) / 12;
    return this.steps.reduce((best, step, index) => (worth(step) > worth(this.steps[best]) ? index : best), 0);
  }
}

function token(text, sources) {
  const classes = sourceClass(sources[0]);
  if (!classes) return document.createTextNode(text);
  addToLegend(sources[0]);
  const element = make("span", `token ${classes}`, text);
  element.title = `guessed by ${sources.join(", ")}`;
  return element;
}

function figure(value, label, isLast = false) {
  const element = make("span", "figure");
  element.append(...(isLast ? [`${label} `, make("b", "", value)] : [make("b", "", value), ` ${label}`]));
  return element;
}
