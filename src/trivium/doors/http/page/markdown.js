// Markdown blocks: headings, lists, code, tables, quotes. What a model writes as HTML stays text.

import { copyButton, el } from "./dom.js";
import { inline } from "./inline.js";

const MAX_DEPTH = 8;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/s;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;

/** Shows a growing text in an element: blocks that have not changed keep their nodes, so a selection in them stays. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  update(text) {
    const blocks = parse(text);
    let same = 0;
    while (same < blocks.length && same < this.shown.length && blocks[same].raw === this.shown[same].raw) same++;
    for (const block of this.shown.splice(same)) block.node.remove();
    for (const block of blocks.slice(same)) {
      const node = render(block);
      this.element.append(node);
      this.shown.push({ raw: block.raw, node });
    }
  }
}

/** The blocks of a text; `raw` is the source of each. */
function parse(text, depth = 0) {
  const lines = text.replaceAll("\0", "\ufffd").replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const block =
      depth < MAX_DEPTH
        ? blockAt(lines, at, depth)
        : { type: "paragraph", text: lines.slice(at).join("\n"), end: lines.length };
    block.raw = `${block.type}\n${lines.slice(at, block.end).join("\n")}`;
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  return (
    fence(lines, at) ??
    heading(lines, at) ??
    rule(lines, at) ??
    quote(lines, at, depth) ??
    list(lines, at, depth) ??
    table(lines, at) ??
    paragraph(lines, at)
  );
}

/** A code block; one that is not closed yet goes to the end. */
function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, indent, mark, info] = open;
  const code = [];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) break;
    let from = 0;
    while (from < indent.length && lines[end][from] === " ") from++;
    code.push(lines[end].slice(from));
  }
  return {
    type: "code",
    language: info.trim().split(/\s/, 1)[0],
    text: code.join("\n"),
    end: Math.min(end + 1, lines.length),
  };
}

function heading(lines, at) {
  const match = HEADING.exec(lines[at]);
  return match && { type: "heading", level: match[1].length, text: trimHashes(match[2] ?? ""), end: at + 1 };
}

function trimHashes(text) {
  const words = text.trim().split(" ");
  if (/^#+$/.test(words.at(-1))) words.pop();
  return words.join(" ").trim();
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { type: "rule", end: at + 1 } : null;
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const inner = [];
  let end = at;
  for (; end < lines.length && lines[end].trim(); end++) {
    if (!QUOTE.test(lines[end]) && interrupts(lines[end])) break;
    inner.push(lines[end].replace(QUOTE, ""));
  }
  return { type: "quote", blocks: parse(inner.join("\n"), depth + 1), end };
}

/** A list: items of one kind, with what is indented under them. */
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3 || RULE.test(lines[at])) return null;
  const kind = kindOf(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || RULE.test(lines[end]) || kindOf(match[2]) !== kind) break;
    const item = itemAt(lines, end, match);
    items.push(parse(item.text, depth + 1));
    end = item.end;
  }
  const ordered = first[2].length > 1;
  return { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, end };
}

function kindOf(mark) {
  return mark.at(-1);
}

/** One item: its first line, and the lines below that belong to it. Models indent by two as often as by the mark's width. */
function itemAt(lines, at, [whole, outer, mark, gap]) {
  const width = outer.length + mark.length + Math.min(gap.length || 1, 4);
  const needed = outer.length + 2;
  const inner = [lines[at].slice(Math.min(whole.length, width))];
  let end = at + 1;
  let blank = false;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (!line.trim()) {
      blank = true;
      inner.push("");
      continue;
    }
    const indent = line.search(/\S/);
    if (indent < needed && (blank || ITEM.test(line) || interrupts(line))) break;
    inner.push(line.slice(Math.min(indent, width)));
    blank = false;
  }
  while (end > at + 1 && !lines[end - 1].trim() && !continues(lines, end, outer)) end--;
  return { text: inner.join("\n"), end };
}

/** Whether another item of the same list follows blank lines. */
function continues(lines, end, outer) {
  const match = end < lines.length && ITEM.exec(lines[end]);
  return match && match[1].length <= outer.length + 1;
}

function table(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return null;
  const head = cells(lines[at]);
  const marks = cells(lines[at + 1]);
  if (marks.length !== head.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end++) rows.push(cells(lines[end]).slice(0, head.length));
  const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  return { type: "table", head, rows, align, end };
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "");
  const found = [""];
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[++at];
    else if (text[at] === "|") found.push("");
    else found[found.length - 1] += text[at];
  }
  if (found.length > 1 && !found.at(-1).trim()) found.pop();
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines[end]) && !table(lines, end)) end++;
  const text = lines.slice(at, end).map((line) => line.trim());
  return { type: "paragraph", text: text.join("\n"), end };
}

/** Whether a line begins a block of its own right after a paragraph. */
function interrupts(line) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[3] !== "" && (item[2].length === 1 || parseInt(item[2], 10) === 1);
}

function render(block) {
  switch (block.type) {
    case "code":
      return codeBlock(block);
    case "heading":
      // The page has headings of its own above those of an answer.
      return el(`h${Math.min(block.level + 2, 6)}`, { class: `h${block.level}` }, ...inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(render));
    case "list":
      return listOf(block);
    case "table":
      return tableOf(block);
    default:
      return el("p", {}, ...inline(block.text));
  }
}

function codeBlock({ language, text }) {
  const head = el(
    "div",
    { class: "code-head" },
    el("span", {}, language),
    copyButton("Copy code", () => text),
  );
  const code = el("code", { textContent: text });
  return el("div", { class: "code" }, head, el("pre", { tabIndex: 0 }, code));
}

function listOf({ ordered, start, items }) {
  const rows = items.map((blocks) => {
    // The first paragraph of an item needs no paragraph's margins.
    const children = blocks.flatMap((block, at) =>
      at === 0 && block.type === "paragraph" ? inline(withBox(block.text)) : [render(block)],
    );
    return el("li", {}, ...children);
  });
  return ordered ? el("ol", { start }, ...rows) : el("ul", {}, ...rows);
}

/** The text of an item of a list of tasks, with a box for its brackets. */
function withBox(text) {
  const task = /^\[([ xX])\] /.exec(text);
  return task ? `${task[1] === " " ? "☐" : "☑"} ${text.slice(task[0].length)}` : text;
}

function tableOf({ head, rows, align }) {
  const row = (tag, texts) =>
    el("tr", {}, ...head.map((_, at) => el(tag, { class: align[at] }, ...inline(texts[at] ?? ""))));
  const table = el(
    "table",
    {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...rows.map((texts) => row("td", texts))),
  );
  return el("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, table);
}
