// Small helpers to build the page's elements. Text always becomes text nodes, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on` holds listeners; names with a dash, `class`, `role` and `for` are attributes, other names properties. */
export function el(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name.includes("-") || ["class", "role", "for"].includes(name)) {
      element.setAttribute(name, value);
    } else {
      element[name] = value;
    }
  }
  element.append(...children);
  return element;
}

export function button({ label, on, ...others }) {
  return el("button", { type: "button", on: { click: on }, ...others }, label);
}

/** One of the symbols of index.html. */
export function iconOf(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Puts text on the clipboard, also where the page came over plain http from another machine. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch {
    // Denied, or not there: the old way may still work.
  }
  const focused = document.activeElement;
  const area = el("textarea", { value: text, class: "visually-hidden", readOnly: true });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!copied) throw new Error("the browser does not allow it");
}

/** A button, called `name` by those who cannot see it, that copies what `text` returns and says that it did. */
export function copyButton(name, text, options = {}) {
  const say = (shown, told) => {
    copy.textContent = shown;
    copy.setAttribute("aria-label", told);
  };
  const on = async () => {
    const said = await copyText(text()).then(
      () => "Copied",
      () => "Not copied",
    );
    say(said, said);
    setTimeout(() => say("Copy", name), 1500);
  };
  const copy = button({ label: "Copy", "aria-label": name, on, ...options });
  return copy;
}
