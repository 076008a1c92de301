// Spreadsheets: the indexed lines of their rows, `column: value` each, as tables with the names of the columns on top.

import { el } from "./dom.js";

const MOST_CELLS = 50_000;
const LONGEST_NAME = 80;

/** Nodes for the sheets of a part of a document; null if they would have too many cells.
 * A text that belongs to no column, such as a title, stands between tables. Where no row names the columns, the values of
 * a row follow one another, because the index does not hold empty cells.
 * @param lines numbers and texts with their pages.
 * @param kindOf says how a line is marked. */
export function tables(sheets, lines, kindOf) {
  const nodes = [];
  let cells = 0;
  for (const { page, name, head, columns } of sheets) {
    const names = columns ? columns.split(" | ") : [];
    const rows = [];
    for (const line of lines) {
      if (line.page !== page || line.number === head) continue;
      if (rows.at(-1)?.number !== line.number) rows.push({ number: line.number, texts: [] });
      rows.at(-1).texts.push(line.text);
    }
    for (const row of rows) row.cells = cellsOf(row, head, names);
    const width = head ? names.length : Math.max(0, ...rows.map((row) => row.texts.length));
    cells += rows.length * width;
    if (cells > MOST_CELLS) return null;
    if (page !== null) nodes.push(el("h3", {}, name));
    let body = null;
    for (const row of rows) {
      const kind = kindOf(row.number, page);
      if (row.cells === null) {
        body = null;
        nodes.push(el("p", { class: kind }, row.texts.join("\n")));
        continue;
      }
      if (body === null) {
        body = el("tbody");
        const top = head ? el("thead", {}, el("tr", {}, ["Row", ...names].map((text) => el("th", { scope: "col" }, text)))) : null;
        nodes.push(el("table", {}, top, body));
      }
      const values = head ? names.map((column) => row.cells.get(column) ?? "") : row.texts;
      body.append(el("tr", { class: kind }, el("th", { scope: "row" }, String(row.number)), values.map((text) => el("td", {}, text))));
    }
  }
  return nodes;
}

/** The values of a row by the names of their columns; null if a text of it has none. A name that is not in `names` is put
 * in behind the one before it. */
function cellsOf(row, head, names) {
  const cells = new Map();
  if (!head) return cells;
  if (row.number < head) return null;
  let last = -1;
  for (const text of row.texts) {
    const ends = [...text.slice(0, LONGEST_NAME + 2).matchAll(/: /g)].map((found) => found.index);
    if (!ends.length) return null;
    const name = text.slice(0, ends.findLast((end) => names.includes(text.slice(0, end))) ?? ends[0]);
    if (!names.includes(name)) names.splice(last + 1, 0, name);
    last = names.indexOf(name);
    const value = text.slice(name.length + 2);
    cells.set(name, cells.has(name) ? `${cells.get(name)}\n${value}` : value);
  }
  return cells;
}
