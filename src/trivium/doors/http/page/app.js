// The page: conversations, their answers, and the keyboard.

import { newAnswer, requestBody, runAnswer } from "./answer.js";
import { Api } from "./api.js";
import { KeyDialog, Notice } from "./dialogs.js";
import { byId, iconOf } from "./dom.js";
import { MessageList, number } from "./messages.js";
import { SettingsPanel } from "./settings.js";
import { Drawer, isNarrow, Sidebar } from "./sidebar.js";
import { Conversations, current, serverKey } from "./storage.js";
import { Strip } from "./strip.js";

const TITLE_LENGTH = 60;
const SAVE_MS = 1000; // between two savings of an answer that is being written
const NEW = "New chat";

class App {
  constructor() {
    this.notice = new Notice();
    this.store = new Conversations((text) => this.notice.show(text));
    this.keyDialog = new KeyDialog(() => this.keyChanged());
    this.api = new Api((again) => this.keyDialog.ask(again));
    this.strip = new Strip(this.api, () => (this.modelName = ""));
    this.modelName = "";
    this.runs = new Map(); // by conversation id: what stops its answer
    this.input = byId("input");
    this.sidebar = new Sidebar((id) => this.open(id));
    this.drawers = [
      new Drawer(byId("settings"), byId("settings-open"), byId("settings-close")),
      new Drawer(byId("sidebar"), byId("sidebar-open"), byId("sidebar-close")),
    ];
    this.settings = new SettingsPanel(() => this.keep(this.conversation));
    this.messages = new MessageList(byId("scroller"), byId("messages"), byId("latest"), {
      retry: () => this.retry(),
      edit: (text) => this.edit(text),
    });
    this.conversations = new Map(this.store.load().map((conversation) => [conversation.id, interrupted(conversation)]));
    this.store.watch((id, conversation) => this.changedElsewhere(id, conversation));
    this.listen();
  }

  start() {
    const shown = this.conversations.get(current.get());
    if (shown) this.open(shown.id);
    else this.newChat();
    this.keyChanged();
    this.model().catch(() => {}); // asks for the key now if there is need; other trouble is told with the first answer
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.runs.has(this.conversation.id)) this.stop();
      else this.send();
    });
    this.input.addEventListener("input", () => this.fitInput());
    this.input.addEventListener("keydown", (event) => this.inputKey(event));
    byId("new-chat").addEventListener("click", () => this.newChat());
    byId("rename").addEventListener("click", () => this.rename());
    byId("delete").addEventListener("click", () => this.remove());
    byId("key-forget").addEventListener("click", () => {
      serverKey.forget();
      this.keyChanged();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("pagehide", () => {
      for (const [id, controller] of this.runs) {
        this.store.save(this.conversations.get(id));
        controller.abort();
      }
    });
  }

  // Conversations

  newChat() {
    if (this.conversation?.messages.length !== 0) {
      const settings = { ...this.conversation?.settings };
      this.show({ id: newId(), title: NEW, updated: Date.now(), settings, messages: [] });
    }
    this.closeDrawers();
    this.focusInput();
  }

  open(id) {
    this.show(this.conversations.get(id));
    this.closeDrawers();
    this.focusInput();
  }

  show(conversation) {
    this.conversation = conversation;
    current.set(conversation.id);
    this.settings.show(conversation.settings);
    this.refresh();
  }

  /** Save a conversation that has something in it, and list it. */
  keep(conversation) {
    if (!conversation.messages.length) return;
    this.conversations.set(conversation.id, conversation);
    this.store.save(conversation);
  }

  rename() {
    const heading = byId("title");
    const input = byId("title-input");
    const done = (take) => {
      input.onblur = null;
      input.hidden = true;
      heading.hidden = false;
      if (take && input.value.trim()) {
        this.conversation.title = input.value.trim();
        this.conversation.named = true;
        this.keep(this.conversation);
      }
      this.refresh();
    };
    input.value = this.conversation.title;
    input.hidden = false;
    heading.hidden = true;
    input.select();
    input.onblur = () => done(true);
    input.onkeydown = (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      done(event.key === "Enter");
      this.focusInput();
    };
  }

  remove() {
    const removed = this.conversation;
    this.stop();
    this.conversations.delete(removed.id);
    this.store.remove(removed.id);
    this.newChat();
    if (!removed.messages.length) return;
    this.notice.show(`Deleted “${removed.title}”.`, "Undo", () => {
      this.keep(removed);
      this.open(removed.id);
    });
  }

  /** Another tab has saved or deleted a conversation. */
  changedElsewhere(id, conversation) {
    if (this.runs.has(id)) return;
    if (conversation) this.conversations.set(id, interrupted(conversation));
    else this.conversations.delete(id);
    if (this.conversation.id === id && conversation) this.show(this.conversations.get(id));
    else this.list();
  }

  // Answers

  send() {
    const text = this.input.value;
    const invalid = this.settings.invalid();
    if (invalid) {
      this.drawers[0].toggle(true);
      invalid.focus();
    } else if (text.trim()) {
      this.input.value = "";
      this.fitInput();
      this.ask(text);
    }
  }

  ask(text) {
    const { conversation } = this;
    conversation.messages.push({ role: "user", content: text });
    if (!conversation.named && conversation.messages.length === 1) conversation.title = titleOf(text);
    this.answer(conversation);
  }

  /** Ask the last question again. */
  retry() {
    const { messages } = this.conversation;
    if (messages.at(-1).role === "assistant") messages.pop();
    this.answer(this.conversation);
    this.focusInput();
  }

  edit(text) {
    const { messages } = this.conversation;
    while (messages.pop().role !== "user");
    this.ask(text);
    this.focusInput();
  }

  async answer(conversation) {
    const body = requestBody(conversation);
    const message = newAnswer();
    const controller = new AbortController();
    conversation.messages.push(message);
    conversation.updated = Date.now();
    this.runs.set(conversation.id, controller);
    this.keep(conversation);
    this.refresh();
    this.announce("Answering");
    let saved = Date.now();
    const changed = () => {
      this.messages.grew(message);
      if (Date.now() - saved < SAVE_MS) return;
      saved = Date.now();
      this.store.save(conversation);
    };
    await runAnswer({ api: this.api, model: () => this.model(), body, message, signal: controller.signal, changed });
    this.runs.delete(conversation.id);
    if (this.conversations.get(conversation.id) === conversation) this.store.save(conversation);
    if (message.status === "failed") this.modelName = ""; // it may be another one when the server is back
    this.answered(conversation, message);
  }

  answered(conversation, message) {
    if (conversation !== this.conversation) {
      this.list();
      return;
    }
    const following = this.messages.atEnd();
    const { scrollTop } = this.messages.scroller;
    this.refresh();
    if (!following) this.messages.scroller.scrollTop = scrollTop;
    const { rate } = message.speed ?? {};
    const how = rate ? `, ${number(rate)} tokens per second` : "";
    if (message.status !== "failed") this.announce(message.status === "stopped" ? "Stopped" : `Answer complete${how}`);
  }

  stop() {
    this.runs.get(this.conversation.id)?.abort();
  }

  async model() {
    this.modelName ||= await this.api.model();
    return this.modelName;
  }

  keyChanged() {
    byId("key-forget").hidden = !serverKey.get();
    this.strip.poll();
  }

  // What is shown

  refresh() {
    const { messages, id, title } = this.conversation;
    const busy = this.runs.has(id);
    this.messages.show(messages, busy);
    this.list();
    byId("empty").hidden = messages.length > 0;
    byId("title").textContent = title;
    document.title = messages.length ? `${title} · Trivium` : "Trivium";
    for (const name of ["rename", "delete"]) byId(name).hidden = !messages.length;
    document.body.classList.toggle("answering", busy);
    byId("submit").setAttribute("aria-label", busy ? "Stop" : "Send");
    byId("submit").title = busy ? "Stop (Esc)" : "Send (Enter)";
  }

  list() {
    this.sidebar.show(this.listed(), this.conversation.id, (id) => this.runs.has(id));
  }

  listed() {
    return [...this.conversations.values()].sort((one, other) => other.updated - one.updated);
  }

  announce(text) {
    byId("status").textContent = text;
  }

  fitInput() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  closeDrawers() {
    if (isNarrow()) for (const drawer of this.drawers) drawer.toggle(false);
  }

  /** On a touch screen the focus would bring up the keyboard. */
  focusInput() {
    if (!matchMedia("(pointer: coarse)").matches) this.input.focus();
  }

  // The keyboard

  inputKey(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (!this.runs.has(this.conversation.id)) this.send();
    } else if (event.key === "ArrowUp" && !event.altKey && !this.input.value) {
      event.preventDefault();
      this.messages.edit();
    }
  }

  key(event) {
    if (event.isComposing || event.defaultPrevented || byId("key-dialog").open) return;
    const { key, altKey, target } = event;
    const command = event.ctrlKey || event.metaKey;
    if (key === "Escape") this.escape();
    else if (key === "/" && !command && !altKey && !target.closest("input, textarea")) this.input.focus();
    else if (key.toLowerCase() === "k" && command && !altKey && !event.shiftKey) this.newChat();
    else if (altKey && !command && ["ArrowUp", "ArrowDown"].includes(key)) this.step(key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
  }

  escape() {
    const drawer = this.drawers.find(({ open }) => open);
    if (drawer && !this.runs.has(this.conversation.id)) drawer.toggle(false);
    else this.stop();
  }

  /** To the conversation below or above in the list. */
  step(by) {
    const ids = this.listed().map(({ id }) => id);
    const at = ids.indexOf(this.conversation.id);
    const next = ids[at < 0 ? 0 : at + by];
    if (next) this.open(next);
  }
}

/** A conversation from the store: an answer that was being written when it was saved has no one who goes on. */
function interrupted(conversation) {
  const last = conversation.messages.at(-1);
  if (last?.status === "running") last.status = "stopped";
  return conversation;
}

function titleOf(text) {
  const line = [...text.trim().split("\n", 1)[0].trim()];
  return line.length > TITLE_LENGTH
    ? `${line
        .slice(0, TITLE_LENGTH - 1)
        .join("")
        .trimEnd()}…`
    : line.join("");
}

/** Random; `crypto.randomUUID` is missing where the page came over plain http from another machine. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

for (const element of document.querySelectorAll("[data-icon]")) element.prepend(iconOf(element.dataset.icon));
new App().start();
