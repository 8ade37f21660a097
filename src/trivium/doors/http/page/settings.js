// What the user may set of a conversation: the system prompt and how tokens are chosen.

import { byId, el } from "./dom.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any", hint: "0: always the likeliest" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any", hint: "likeliest share to draw" },
  { name: "top_k", label: "Top k", min: -1, step: 1, hint: "how many to draw from" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", hint: "least, relative to the top" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "length of an answer" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, hint: "same seed, same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, step: "any", hint: "1 is none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", hint: "0 is none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", hint: "0 is none" },
];

/** The fields of a request. What is not set is left to the server. */
export function requestFields(settings) {
  const fields = {};
  for (const { name } of NUMBERS) {
    if (typeof settings[name] === "number") fields[name] = settings[name];
  }
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) fields.stop = stop;
  return fields;
}

/** The panel of the settings. It writes what is valid into the conversation's settings and calls `changed`. */
export class SettingsPanel {
  constructor(changed) {
    this.settings = {};
    this.changed = changed;
    this.form = byId("settings-form");
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("settings-numbers").append(...NUMBERS.map(numberField));
    byId("settings-reset").addEventListener("click", () => this.reset());
    for (const input of this.inputs()) input.addEventListener("input", () => this.take(input));
  }

  inputs() {
    return [...this.form.elements].filter((element) => element.name);
  }

  show(settings) {
    this.settings = settings;
    for (const input of this.inputs()) {
      input.value = settings[input.name] ?? "";
      this.mark(input);
    }
  }

  take(input) {
    const valid = this.mark(input);
    if (!valid) return;
    if (input.value === "") delete this.settings[input.name];
    else this.settings[input.name] = input.type === "number" ? input.valueAsNumber : input.value;
    this.changed();
  }

  /** Says what is wrong with an input, and returns whether nothing is. */
  mark(input) {
    const valid = input.checkValidity();
    input.setAttribute("aria-invalid", String(!valid));
    const problem = byId(`${input.id}-problem`);
    if (problem) problem.textContent = valid ? "" : input.validationMessage;
    return valid;
  }

  reset() {
    const { system } = this.settings;
    for (const name of Object.keys(this.settings)) delete this.settings[name];
    if (system) this.settings.system = system;
    this.show(this.settings);
    this.changed();
  }

  /** The first input whose value cannot be used. */
  invalid() {
    return this.inputs().find((input) => !input.checkValidity());
  }
}

function numberField({ name, label, hint, ...limits }) {
  const id = `setting-${name}`;
  const input = el("input", {
    type: "number",
    id,
    name,
    placeholder: "default",
    autocomplete: "off",
    inputMode: "decimal",
    "aria-describedby": `${id}-hint ${id}-problem`,
    ...limits,
  });
  return el(
    "div",
    { class: "field" },
    el("label", { for: id }, label),
    input,
    el("small", { id: `${id}-hint` }, hint),
    el("small", { id: `${id}-problem`, class: "problem" }),
  );
}
