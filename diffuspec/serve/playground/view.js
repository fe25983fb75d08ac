// One answer on the page: figures, coloured tokens, a note on the step pointed at, the time line.

import { drawTimeline } from "./timeline.js";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const milliseconds = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;

/** Return one line about what a step did and took. */
export function describeStep(step) {
  const parts = [];
  if (step.tree) {
    const count = step.tree.token_ids.length;
    parts.push(`${step.num_accepted_tokens} accepted of a tree of ${count}`);
  } else {
    parts.push(step.fallback ? `no draft: ${step.fallback.replaceAll("_", " ")}` : "no draft");
  }
  const { draft, search, verify } = step.seconds;
  if (step.tree) parts.push(`draft ${milliseconds(draft)}`, `search ${milliseconds(search)}`);
  parts.push(`verify ${milliseconds(verify)}`);
  if (step.pre_draft) parts.push(`pre-draft ${step.pre_draft}`);
  return parts.join(" · ");
}

export class AnswerView {
  /** `onOpen(step)` is called when a step with a draft tree is chosen. */
  constructor(root, title, answer, onOpen) {
    this._answer = answer;
    this._onOpen = onOpen;
    this._figures = element("dl");
    this._text = element("div", { class: "text", role: "group", "aria-label": "Answer, by token" });
    this._note = element("p", { class: "note" },
      element("span", { class: "keys" }, "Point at a token, or move with the arrow keys."),
      element("span", { class: "touch" }, "Touch a token."));
    this._timeline = element("div");
    root.replaceChildren(element("h2", {}, title), this._figures, this._text, this._note, this._timeline);
    root.hidden = false;
    new ResizeObserver(() => this._drawTimeline()).observe(this._timeline);
    this._listen();
    this.refresh();
  }

  addStep(step) {
    step.tokens.forEach((token, place) => {
      const classes = `token ${step.kinds[place]}${place === 0 ? " first" : ""}`;
      const span = element("span", { class: classes, "data-step": step.number, tabindex: "-1" });
      span.append(...visible(token.text));
      this._text.append(span);
    });
    this._text.querySelector("[data-step]").tabIndex = 0;
    this.refresh();
  }

  /** Show the figures anew; draw the time line when the answer is finished. */
  refresh() {
    const { _answer: answer } = this;
    const first = answer.secondsToFirstToken;
    const figures = {
      tokens: answer.tokenIds.length,
      "tokens/s": answer.tokensPerSecond.toFixed(0),
      "first token": first === null ? "–" : milliseconds(first),
      passes: answer.steps.length,
      "acceptance length": answer.acceptanceLength.toFixed(2),
    };
    const pairs = Object.entries(figures).map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
    this._figures.replaceChildren(...pairs);
    this._drawTimeline();
  }

  /** Draw the time line of a finished answer, as wide as its place is now. */
  _drawTimeline() {
    const width = this._timeline.clientWidth;
    if (!width || !this._answer.finishReason) return;
    this._timeline.replaceChildren(drawTimeline(this._answer.steps, this._answer.seconds, width));
  }

  _listen() {
    const stepOf = (event) => {
      const number = event.target.closest?.("[data-step]")?.dataset.step;
      return number ? this._answer.steps[number - 1] : null;
    };
    const point = (event) => {
      const step = stepOf(event);
      if (step) this._point(step);
    };
    const open = (event) => {
      const step = stepOf(event);
      if (step) this._onOpen(step, this._answer);
    };
    this._text.addEventListener("pointerover", point);
    this._text.addEventListener("focusin", point);
    this._text.addEventListener("click", open);
    this._text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        open(event);
      }
      const to = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
      const next = to && event.target[to];
      if (next) {
        event.preventDefault();
        event.target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    });
  }

  _point(step) {
    for (const span of this._text.querySelectorAll(".same-step")) span.classList.remove("same-step");
    for (const span of this._text.querySelectorAll(`[data-step="${step.number}"]`)) {
      span.classList.add("same-step");
    }
    this._note.textContent = `Step ${step.number}: ${describeStep(step)}`;
  }
}

/** Return nodes for a token's text in which line ends and empty texts can be seen. */
function visible(text) {
  if (text === "") {
    return [element("span", { class: "mark", title: "no text, or part of a character" }, "◦")];
  }
  return text.split(/(?<=\n)/).flatMap((part) => (part.endsWith("\n")
    ? [part.slice(0, -1), element("span", { class: "mark", "aria-hidden": "true" }, "⏎"), "\n"]
    : [part]));
}
