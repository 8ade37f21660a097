// The list of conversations; on a narrow screen, and the settings too, a drawer over the page.

import { byId, el } from "./dom.js";

/** Whether panels cover the page. */
export function isNarrow() {
  return matchMedia("(max-width: 700px)").matches;
}

/** A panel that a button opens and closes. */
export class Drawer {
  constructor(panel, opener, closer) {
    this.panel = panel;
    this.opener = opener;
    opener.addEventListener("click", () => this.toggle());
    closer.addEventListener("click", () => this.toggle(false));
    document.addEventListener("pointerdown", ({ target }) => {
      if (isNarrow() && !panel.contains(target) && !opener.contains(target)) this.toggle(false);
    });
  }

  get open() {
    return this.opener.getAttribute("aria-expanded") === "true";
  }

  toggle(open = !this.open) {
    if (open === this.open) return;
    this.opener.setAttribute("aria-expanded", String(open));
    this.panel.classList.toggle("open", open);
    if (open) this.panel.querySelector("textarea, input, button")?.focus();
    else if (this.panel.contains(document.activeElement)) this.opener.focus();
  }
}

export class Sidebar {
  constructor(choose) {
    this.choose = choose;
    this.list = byId("conversations");
  }

  /** Show these conversations, latest first; `answering` tells which are being answered. */
  show(conversations, current, answering) {
    const focused = this.list.contains(document.activeElement) && document.activeElement.dataset.id;
    const items = conversations.map(({ id, title }) => {
      const options = { type: "button", title, "data-id": id, on: { click: () => this.choose(id) } };
      if (id === current) options["aria-current"] = "page";
      const entry = el("button", options, el("span", {}, title));
      if (answering(id)) entry.append(el("i", { class: "dot", role: "img", "aria-label": "being answered" }));
      return el("li", {}, entry);
    });
    this.list.replaceChildren(...items);
    if (focused) this.list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }
}
