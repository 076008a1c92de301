// A document as a person reads it: headings, paragraphs, lists, tables and code, from the kinds of its indexed lines.
// Every text becomes a text node, no picture is loaded, and a link leads to a web page or a mail program only.

import { el } from "./dom.js";

const MARKED_UP = new Set(["markdown", "notebook"]);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MOST_BLANK = 100;
const DEEPEST = 8;
const INLINE =
  /`([^`\n]+)`|(!?)\[([^[\]]*)\]\(([^()\s]*)[^()\n]{0,200}\)|<((?:https?:\/\/|mailto:)[^<>\s]+)>|(\*\*|__|~~|\*|(?<!\w)_)(?=\S)([^*_~\n]+?)(?<=\S)\6(?!\w)/g;
const ITEM = /^(\s*)(?:>\s*)*(?:[-*+•–]|(\d{1,9})[.)])\s+/;
const RULE = /^\s*(?:\|?[\s:|-]+|[-*_=\s]{3,})$/;

/** Nodes for the lines of a document ([number, text, kind]; an empty kind goes on with the part before).
 * @param classOf the class of the line at a place, by which it is marked.
 * @param pages the place at which each page begins, as pairs of place and page. */
export function prose({ lines, kind, pages }, classOf) {
  const markdown = MARKED_UP.has(kind);
  const begins = new Map(pages);
  const parts = [];
  lines.forEach(([number, text, name], place) => {
    const begun = name || begins.has(place) || !parts.length;
    if (begun) parts.push({ name: name || "text", texts: [], numbers: [], classes: new Set(), page: begins.get(place) });
    const part = parts.at(-1);
    part.texts.push(text);
    part.numbers.push(number);
    for (const one of classOf(place).split(" ").filter(Boolean)) part.classes.add(one);
  });
  const nodes = [];
  const open = { kind: "", node: null, columns: [], last: 0 }; // the list, table or code that the next part may go on with
  const within = (kind, make) => {
    if (open.kind !== kind) {
      nodes.push((open.node = make()));
      open.last = 0;
    }
    open.kind = kind;
    return open.node;
  };
  for (const part of parts) {
    if (part.page !== undefined) {
      nodes.push(el("h3", { class: "page" }, `Page ${part.page}`));
      open.kind = "";
    }
    const marked = { class: [...part.classes].join(" ") || null };
    const draw = DRAWN[part.name.split(" ")[0]] || DRAWN.text;
    draw(part, { marked, markdown, within, open, add: (node) => (open.kind = "") || nodes.push(node) });
  }
  return el("div", { class: "prose" }, nodes);
}

const DRAWN = {
  heading(part, { marked, markdown, add }) {
    const depth = Math.min(6, 2 + (Number(part.name.split(" ")[1]) || 1));
    const kept = part.texts.filter((text) => !markdown || !RULE.test(text));
    add(el(`h${depth}`, marked, inline(kept.join(" ").replace(markdown ? /^\s*#+\s*|\s+#+\s*$/g : /^$/, ""), markdown)));
  },
  item(part, { marked, markdown, within }) {
    const [mark, indent, number] = part.texts[0].match(ITEM) || ["", "", undefined];
    const list = within(number ? "ol" : "ul", () => el(number ? "ol" : "ul"));
    const text = [part.texts[0].slice(mark.length), ...part.texts.slice(1)].map((line) => line.trim()).join(markdown ? " " : "\n");
    const done = markdown ? text.replace(/^\[([ xX])\] /, (_, tick) => (tick === " " ? "☐ " : "☑ ")) : text;
    const depth = Math.min(3, Math.floor(indent.length / 2));
    list.append(el("li", { ...marked, value: number, "data-depth": depth || null }, inline(done, markdown)));
  },
  columns(part, { marked, within, open, markdown }) {
    open.kind = "";
    open.columns = cells(part.texts.join(" "));
    const head = el("tr", marked, open.columns.map((text) => el("th", { scope: "col" }, inline(text, markdown))));
    within("table", () => el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody"))));
  },
  row(part, { marked, within, open, markdown }) {
    const table = within("table", () => (open.columns = []) && el("div", { class: "scroll" }, el("table", {}, el("tbody"))));
    const values = record(part.texts, open.columns) || cells(part.texts.join(part.texts.length > 1 ? " | " : ""));
    table.querySelector("tbody").append(el("tr", marked, values.map((text) => el("td", {}, inline(text, markdown)))));
  },
  code(part, { marked, within, open }) {
    const code = within("code", () => el("pre")); // each part has its own marks
    const rows = part.texts.map((text, at) => blanks(at ? part.numbers[at - 1] : open.last, part.numbers[at]) + text);
    open.last = part.numbers.at(-1);
    code.append(code.childElementCount ? "\n" : "", el("code", marked, rows.join("\n")));
  },
  mark(part, { marked, markdown, add, open }) {
    const text = part.texts.join("\n");
    if (!markdown) add(el("p", marked, text));
    else if (/^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/.test(text) && open.kind !== "table") add(el("hr"));
    else if (!RULE.test(text) && !/^\s*(?:>\s*)*(?:`{3,}|~{3,})/.test(text)) add(el("p", marked, text));
  },
  text(part, { marked, markdown, add }) {
    const quoted = markdown && part.texts.every((text) => /^\s*>/.test(text));
    const lines = part.texts.map((text) => (quoted ? text.replace(/^\s*(?:>\s?)+/, "") : text.trim()));
    const node = el("p", marked, inline(lines.join(" "), markdown));
    add(quoted ? el("blockquote", {}, node) : node);
  },
  field(part, { marked, add }) {
    add(el("p", marked, part.texts.join("\n")));
  },
};

const cells = (text) => text.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** The values of a row of lines `column: value` in the order of the columns; null if it is no such row. */
function record(texts, columns) {
  const values = new Map();
  for (const text of texts) {
    const name = columns.find((column) => column && text.startsWith(`${column}: `));
    if (name === undefined) return null;
    values.set(name, text.slice(name.length + 2));
  }
  return columns.map((name) => values.get(name) ?? "");
}

/** The line ends of blank lines, which the index does not hold. */
const blanks = (last, number) => (last && number - last - 1 < MOST_BLANK ? "\n".repeat(Math.max(0, number - last - 1)) : "");

/** A text with Markdown's marks of code, links and emphasis as nodes. */
function inline(text, markdown, depth = 0) {
  if (!markdown || depth > DEEPEST) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, picture, label, target, address, mark, inner] = found;
    nodes.push(text.slice(at, found.index));
    at = found.index + whole.length;
    if (code !== undefined) nodes.push(el("code", {}, code));
    else if (address !== undefined) nodes.push(link(address, [address]));
    else if (mark !== undefined) nodes.push(el({ "**": "strong", __: "strong", "~~": "s" }[mark] || "em", {}, inline(inner, true, depth + 1)));
    else nodes.push(picture ? label : link(target, inline(label, true, depth + 1)));
  }
  return [...nodes, text.slice(at)];
}

function link(target, nodes) {
  let harmless = false;
  try {
    harmless = SCHEMES.has(new URL(target).protocol);
  } catch {
    // a relative address leads to another file, not to a page
  }
  return harmless ? el("a", { href: target, title: target, target: "_blank", rel: "noopener noreferrer" }, nodes) : el("span", {}, nodes);
}
