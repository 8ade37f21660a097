// What the page says or asks beside the conversation.

import { byId } from "./dom.js";
import { serverKey } from "./storage.js";

/** Asks for the key of a guarded server. */
export class KeyDialog {
  constructor(onChange) {
    this.dialog = byId("key-dialog");
    this.input = byId("key-input");
    this.onChange = onChange;
    this.asked = null; // the question that is open: whoever else needs the key waits for the same answer
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close(this.input.value.trim());
    });
    byId("key-cancel").addEventListener("click", () => this.dialog.close(""));
  }

  /** Resolves to whether the user gave a key; `again` if the one before was wrong. */
  ask(again) {
    this.asked ??= new Promise((resolve) => {
      byId("key-problem").hidden = !again && !serverKey.get();
      this.input.value = "";
      this.dialog.returnValue = "";
      this.dialog.showModal();
      this.dialog.addEventListener("close", () => resolve(this.take()), { once: true });
    });
    return this.asked;
  }

  take() {
    const key = this.dialog.returnValue;
    this.input.value = "";
    this.asked = null;
    if (key) serverKey.set(key, byId("key-remember").checked);
    this.onChange();
    return Boolean(key);
  }
}

/** A line that says something and may offer one thing to do about it. */
export class Notice {
  constructor() {
    this.element = byId("notice");
    this.action = byId("notice-action");
    this.action.addEventListener("click", () => {
      this.hide();
      this.act();
    });
    byId("notice-close").addEventListener("click", () => this.hide());
  }

  show(text, label = "", act = () => {}) {
    byId("notice-text").textContent = text;
    this.act = act;
    this.action.textContent = label;
    this.action.hidden = !label;
    this.element.hidden = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hide(), 10_000);
  }

  hide() {
    this.element.hidden = true;
  }
}
