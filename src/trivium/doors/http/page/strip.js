// The live strip: what the engine is doing, asked once a second, and seldom while nobody looks.

import { byId } from "./dom.js";
import { number } from "./messages.js";

const VISIBLE_MS = 1000;
const HIDDEN_MS = 15_000;
const TROUBLE_MS = 5000;

export class Strip {
  /** `onModel()` is told that another model is loaded than before. */
  constructor(api, onModel) {
    this.api = api;
    this.onModel = onModel;
    this.element = byId("strip");
    this.before = null; // the statistics of the last poll, and when they came
    this.model = null;
    document.addEventListener("visibilitychange", () => this.poll());
  }

  /** Ask now, and then from time to time: not where there are no statistics, and not without the key. */
  async poll() {
    clearTimeout(this.timer);
    if (this.absent) return;
    const turn = (this.turn = (this.turn ?? 0) + 1); // a later poll, with another key perhaps, makes this one void
    let pause = document.hidden ? HIDDEN_MS : VISIBLE_MS;
    const answer = await this.api.stats().catch((error) => error);
    if (turn !== this.turn) return;
    if (answer instanceof Error) {
      this.fail(answer);
      pause = Math.max(pause, TROUBLE_MS);
    } else {
      this.show(answer);
    }
    if (answer.status !== 401 && !this.absent) this.timer = setTimeout(() => this.poll(), pause);
  }

  fail({ status, message }) {
    this.before = null;
    this.absent = status === 404;
    this.element.hidden = this.absent;
    if (status === 401) this.say("locked", "key needed");
    else this.say("gone", status ? message : "no server");
  }

  show(stats) {
    const now = { ...stats, at: performance.now() };
    this.say(stats.running ? "busy" : "idle", stats.model ?? "");
    if (this.model !== null && stats.model !== this.model) this.onModel();
    this.model = stats.model;
    set("running", stats.running);
    set("waiting", stats.waiting);
    const used = stats.kv_total ? (100 * stats.kv_used) / stats.kv_total : 0;
    set("kv", `${used > 0 && used < 10 ? used.toFixed(1) : Math.round(used)} %`);
    byId("strip-kv-bar").value = used;
    byId("strip-kv-bar").title = `${stats.kv_used} of ${stats.kv_total} blocks`;
    set("rate", this.before ? rateOf(this.before, now) : "–");
    this.before = now;
  }

  say(state, text) {
    this.element.dataset.state = state;
    byId("strip-model").textContent = text;
  }
}

function set(name, value) {
  byId(`strip-${name}`).textContent = value;
}

function rateOf(before, now) {
  const tokens = now.generated_tokens - before.generated_tokens;
  // A counter that falls is that of another process.
  return tokens > 0 ? number((1000 * tokens) / (now.at - before.at)) : "0";
}
