// The conversation on the page: questions, answers, and what can be done with them.

import { button, copyButton, el } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const NEAR = 80; // pixels from the end within which the view follows a growing answer

/** The messages of one conversation. `actions` are `retry()` and `edit(text)`: both concern the last exchange. */
export class MessageList {
  constructor(scroller, element, latest, actions) {
    this.scroller = scroller;
    this.element = element;
    this.latest = latest;
    this.actions = actions;
    this.views = new Map();
    this.stale = new Set();
    scroller.addEventListener("scroll", () => this.noteScroll(), { passive: true });
    latest.addEventListener("click", () => this.toEnd());
  }

  /** Show exactly these messages; `busy` while the last is being answered. Those that were shown before keep their elements. */
  show(messages, busy) {
    const views = messages.map((message) => this.views.get(message) ?? this.make(message));
    this.views = new Map(messages.map((message, at) => [message, views[at]]));
    this.stale.clear();
    this.element.replaceChildren(...views.map((view) => view.element));
    const lastQuestion = messages.findLast(({ role }) => role === "user");
    for (const [message, view] of this.views) {
      view.update({ last: message === lastQuestion || message === messages.at(-1), busy });
    }
    this.toEnd();
  }

  make(message) {
    return message.role === "user" ? new QuestionView(message, this.actions) : new AnswerView(message, this.actions);
  }

  /** Some message has grown: shown with the next frame, however often it is told. */
  grew(message) {
    if (!this.views.has(message)) return;
    if (!this.stale.size) requestAnimationFrame(() => this.flush());
    this.stale.add(message);
  }

  flush() {
    const following = this.atEnd();
    for (const message of this.stale) this.views.get(message)?.update({ last: true, busy: true });
    this.stale.clear();
    if (following) this.toEnd();
    else this.noteScroll();
  }

  /** Begin to edit the last question. */
  edit() {
    [...this.views.values()].findLast((view) => view instanceof QuestionView)?.edit();
  }

  atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.noteScroll();
  }

  noteScroll() {
    this.latest.hidden = this.atEnd();
  }
}

class QuestionView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.text = el("div", { class: "bubble", dir: "auto" });
    this.editButton = button({ label: "Edit", class: "quiet", on: () => this.edit() });
    this.tools = el("div", { class: "tools" }, this.editButton);
    this.element = el(
      "li",
      { class: "message question" },
      el("h2", { class: "visually-hidden" }, "You"),
      this.text,
      this.tools,
    );
  }

  update({ last, busy }) {
    this.text.textContent = this.message.content;
    this.tools.hidden = !last || busy;
  }

  edit() {
    if (this.tools.hidden) return;
    const area = el("textarea", {
      value: this.message.content,
      rows: 4,
      dir: "auto",
      "aria-label": "Edit your message",
    });
    const done = (send) => {
      editor.replaceWith(this.text, this.tools);
      if (send && area.value.trim()) this.actions.edit(area.value);
      else this.editButton.focus();
    };
    const editor = el(
      "div",
      { class: "editor" },
      area,
      el(
        "div",
        { class: "tools" },
        button({ label: "Cancel", class: "quiet", on: () => done(false) }),
        button({ label: "Send", class: "main", on: () => done(true) }),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape" || (event.key === "Enter" && !event.shiftKey)) {
        event.preventDefault();
        event.stopPropagation();
        done(event.key === "Enter");
      }
    });
    this.tools.remove();
    this.text.replaceWith(editor);
    area.focus();
  }
}

class AnswerView {
  constructor(message, actions) {
    this.message = message;
    this.thoughtText = el("div", { class: "markdown", dir: "auto" });
    this.thoughtTitle = el("summary", { on: { click: () => (this.toggled = true) } });
    this.thought = el("details", { class: "thought" }, this.thoughtTitle, this.thoughtText);
    this.text = el("div", { class: "markdown", dir: "auto" });
    this.waiting = el("p", { class: "waiting", "aria-hidden": "true" }, el("span"), el("span"), el("span"));
    this.problem = el("span");
    this.failure = el(
      "div",
      { class: "failure", role: "alert" },
      this.problem,
      (this.retry = button({ label: "Retry", class: "quiet", on: actions.retry })),
    );
    this.facts = el("span", { class: "facts" });
    this.copy = copyButton("Copy answer", () => message.content, { class: "quiet" });
    this.again = button({ label: "Regenerate", class: "quiet", on: actions.retry });
    this.foot = el("div", { class: "tools" }, this.facts, el("div", { class: "acts" }, this.copy, this.again));
    this.element = el(
      "li",
      { class: "message answer" },
      el("h2", { class: "visually-hidden" }, "Answer"),
      this.thought,
      this.text,
      this.waiting,
      this.failure,
      this.foot,
    );
    this.thoughtView = new MarkdownView(this.thoughtText);
    this.textView = new MarkdownView(this.text);
  }

  update({ last, busy }) {
    const { content, reasoning = "", status, error } = this.message;
    const running = status === "running";
    this.element.setAttribute("aria-busy", String(running));
    this.thought.hidden = !reasoning;
    this.thoughtTitle.textContent = running && !content ? "Thinking…" : "Thought";
    if (!this.toggled) this.thought.open = running && !content;
    this.thoughtView.update(reasoning);
    this.textView.update(content);
    this.waiting.hidden = !running || Boolean(content || reasoning);
    this.failure.hidden = status !== "failed";
    this.problem.textContent = error ?? "";
    this.retry.hidden = !last || busy;
    this.foot.hidden = running;
    this.facts.replaceChildren(...factsOf(this.message));
    this.copy.hidden = !content;
    this.again.hidden = !last || busy || status === "failed";
  }
}

/** What is said under an answer. */
function factsOf({ status, finish, speed, usage }) {
  const facts = [];
  if (status === "stopped") facts.push("stopped");
  if (finish === "length") facts.push("cut at the token limit");
  if (speed?.rate) facts.push(`${speed.exact ? "" : "about "}${number(speed.rate)} tokens/s`);
  if (speed) facts.push(`first token after ${seconds(speed.first)}`);
  if (usage) facts.push(`${usage.tokens} ${usage.tokens === 1 ? "token" : "tokens"}`);
  if (usage) facts.push(`prompt ${usage.prompt}${usage.cached ? ` (${usage.cached} cached)` : ""}`);
  return facts.map((fact) => el("span", {}, fact));
}

export function number(value) {
  return value >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}
