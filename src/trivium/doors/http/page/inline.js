// Markdown inside a line: code, emphasis, links. Builds DOM nodes; the text of a model is never read as HTML.
//
// Everything here takes time linear in the text at a bounded depth, so that no answer can hold up the page.

import { el } from "./dom.js";

const MAX_DEPTH = 6;
const MAX_LABEL = 1000;
const MAX_URL = 2000;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const SPACE = /\s/;
const EMPHASIS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

/** The nodes of a text. */
export function inline(text) {
  const nodes = [];
  new Line(text, maskCode(text), 0, true).parse(nodes);
  return nodes;
}

/** The text with code spans and escaped characters blanked, of the same length: delimiters in them are none. */
function maskCode(text) {
  const missing = new Set();
  let masked = "";
  for (let at = 0; at < text.length;) {
    if (text[at] === "\\" && at + 1 < text.length) {
      masked += "\\\0";
      at += 2;
      continue;
    }
    const run = text[at] === "`" ? runAt(text, at) : 0;
    const end = run ? codeEnd(text, at, run, missing) : -1;
    const next = end < 0 ? at + (run || 1) : end;
    masked += end < 0 ? text.slice(at, next) : "`".padEnd(end - at, "\0");
    at = next;
  }
  return masked;
}

/** Where the code span that begins with a run of backticks ends; -1 if it does not. */
function codeEnd(text, at, run, missing) {
  if (missing.has(run)) return -1;
  for (let from = at + run; ;) {
    const close = text.indexOf("`", from);
    if (close < 0) break;
    const length = runAt(text, close);
    if (length === run) return close + run;
    from = close + length;
  }
  missing.add(run);
  return -1;
}

function runAt(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

class Line {
  constructor(text, masked, depth, links) {
    this.text = text;
    this.masked = masked;
    this.depth = depth;
    this.links = links; // whether links may stand here: there are none in the label of another
    this.missing = new Set(); // delimiters that nothing closes from here on
  }

  parse(nodes) {
    let plain = "";
    for (let at = 0; at < this.text.length;) {
      const found = this.rule(at);
      if (!found) {
        plain += this.text[at++];
        continue;
      }
      if (typeof found.node === "string") plain += found.node;
      else {
        if (plain) nodes.push(document.createTextNode(plain));
        plain = "";
        nodes.push(found.node);
      }
      at = found.end;
    }
    if (plain) nodes.push(document.createTextNode(plain));
  }

  /** What begins at `at`: `{node, end}`, where the node may be plain text, or nothing. */
  rule(at) {
    switch (this.text[at]) {
      case "\\":
        return this.escape(at);
      case "\n":
        return { node: el("br"), end: at + 1 };
      case "`":
        return this.code(at);
      case "*":
      case "_":
      case "~":
        return this.emphasis(at);
      case "[":
        return this.link(at, at);
      case "!":
        return this.text[at + 1] === "[" ? this.link(at, at + 1) : null;
      case "<":
        return this.autolink(at);
      case "h":
        return this.bareLink(at);
      default:
        return null;
    }
  }

  escape(at) {
    const next = this.text[at + 1];
    return next && ESCAPABLE.test(next) ? { node: next, end: at + 2 } : null;
  }

  code(at) {
    const run = runAt(this.text, at);
    let end = at + 1;
    while (this.masked[end] === "\0") end++;
    if (end === at + 1) return { node: this.text.slice(at, at + run), end: at + run };
    let inner = this.text.slice(at + run, end - run).replaceAll("\n", " ");
    if (inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ")) inner = inner.slice(1, -1);
    return { node: el("code", { textContent: inner }), end };
  }

  emphasis(at) {
    const char = this.text[at];
    const run = runAt(this.masked, at);
    const asText = { node: this.text.slice(at, at + run), end: at + run };
    if (run > 3 || (char === "~" && run !== 2)) return asText;
    return (run === 3 ? this.enclosed(at, char.repeat(2), char) : this.enclosed(at, char.repeat(run))) ?? asText;
  }

  /** An element around what stands between `mark` and its next closing place; with `inner`, another mark is inside it. */
  enclosed(at, mark, inner = "") {
    const whole = mark + inner;
    const first = this.text[at + whole.length];
    if (this.depth >= MAX_DEPTH || !first || SPACE.test(first) || this.missing.has(whole)) return null;
    if (mark[0] === "_" && at > 0 && WORD.test(this.text[at - 1])) return null;
    const close = this.closing(at + whole.length + 1, whole);
    if (close < 0) {
      this.missing.add(whole);
      return null;
    }
    let content = this.inside(at + whole.length, close);
    if (inner) content = [el(EMPHASIS[inner], {}, ...content)];
    return { node: el(EMPHASIS[mark], {}, ...content), end: close + whole.length };
  }

  closing(from, mark) {
    for (let at = this.masked.indexOf(mark, from); at >= 0; at = this.masked.indexOf(mark, at + 1)) {
      const after = this.masked[at + mark.length];
      // The last of a longer run closes: **a *b*** ends with both.
      if (after === mark[0] && mark.length > 1) continue;
      if (mark.length === 1 && (after === mark[0] || this.masked[at - 1] === mark[0])) continue;
      if (SPACE.test(this.masked[at - 1])) continue;
      if (mark[0] === "_" && after && WORD.test(after)) continue;
      return at;
    }
    return -1;
  }

  inside(from, to, links = this.links) {
    const nodes = [];
    new Line(this.text.slice(from, to), this.masked.slice(from, to), this.depth + 1, links).parse(nodes);
    return nodes;
  }

  /** `[label](address "title")`, and images, of which only the label and the address are shown. */
  link(at, bracket) {
    if (!this.links || this.depth >= MAX_DEPTH) return null;
    const close = this.balanced(bracket, "[", "]", MAX_LABEL);
    if (close < 0 || this.masked[close + 1] !== "(") return null;
    const end = this.balanced(close + 1, "(", ")", MAX_URL);
    if (end < 0) return null;
    const address = this.text
      .slice(close + 2, end)
      .trim()
      .split(SPACE, 1)[0];
    const url = safeUrl(address.replace(/^<|>$/g, ""));
    if (!url) return null;
    const label = this.inside(bracket + 1, close, false);
    return { node: linkTo(url, label.length ? label : [url]), end: end + 1 };
  }

  /** Where the bracket that opens at `at` closes. */
  balanced(at, open, shut, limit) {
    let depth = 0;
    const last = Math.min(this.masked.length, at + limit);
    for (let place = at; place < last; place++) {
      const char = this.masked[place];
      if (char === open) depth++;
      else if (char === shut && --depth === 0) return place;
    }
    return -1;
  }

  autolink(at) {
    const end = this.text.slice(at, at + MAX_URL).indexOf(">");
    const url = this.links && end > 0 && safeUrl(this.text.slice(at + 1, at + end));
    return url ? { node: linkTo(url, [this.text.slice(at + 1, at + end)]), end: at + end + 1 } : null;
  }

  bareLink(at) {
    if (!this.links || (at > 0 && WORD.test(this.text[at - 1]))) return null;
    const match = /^https?:\/\/[^\s<>"`*]+/.exec(this.text.slice(at, at + MAX_URL));
    if (!match) return null;
    const address = withoutPunctuation(match[0]);
    const url = safeUrl(address);
    return url ? { node: linkTo(url, [address]), end: at + address.length } : null;
  }
}

/** An address as it stands in a sentence, without what ends the sentence or the parenthesis around it. */
function withoutPunctuation(address) {
  let unopened = address.split(")").length - address.split("(").length;
  let end = address.length;
  for (; end > 0; end--) {
    const last = address[end - 1];
    if (last === ")" && unopened > 0) unopened--;
    else if (!".,;:!?'_~".includes(last)) break;
  }
  return address.slice(0, end);
}

/** The address if it may be followed: absolute, http or https. Whatever else a model writes stays text. */
export function safeUrl(address) {
  if (SPACE.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:"].includes(url.protocol) && url.hostname ? url.href : null;
  } catch {
    return null;
  }
}

function linkTo(url, children) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: url }, ...children);
}
