// A search result as a row of a list, and the arrow keys of such a list.

import { el, fill, marked } from "./dom.js";
import { count, day, fileName, folder, mailLine, shown } from "./format.js";

/** The row of a hit. `open` is called with the hit when it is chosen, or with another place of its file. A known row keeps its node, so that it can glide and keep the
 * focus. */
export function hitRow(hit, open, known = null) {
  const row = known || el("li", { class: "hit" });
  const focused = row.contains(document.activeElement);
  row.onclick = (event) => {
    if (!event.target.closest("a, button") && getSelection().isCollapsed) open(hit);
  };
  row.className = "hit";
  const place = hit.page ? `page ${hit.page}` : `line ${hit.line || hit.line_start}`;
  const name = fileName(hit.path);
  const facts = [
    el("bdi", { class: "folder", title: shown(hit.path) }, folder(hit.path)),
    place,
    hit.modified && !hit.mail && el("time", { datetime: hit.modified }, day(hit.modified)),
    hit.relevance !== null && hit.relevance !== undefined && `relevance ${hit.relevance.toFixed(2)}`,
  ].filter(Boolean);
  const button = el("button", { type: "button", class: "open", onclick: () => open(hit) }, el("bdi", { class: "name" }, name));
  if (hit.title && hit.title !== name) button.append(" ", el("bdi", { class: "titled" }, shown(hit.title)));
  const more = places(hit, open);
  fill(
    row,
    el("h3", {}, button),
    hit.mail && el("p", { class: "mail", title: hit.mail.thread && `thread:${hit.mail.thread}` }, mailLine(hit.mail)),
    el("p", { class: "snippet" }, marked(hit.snippet || hit.text.slice(0, 240), hit.marks || [])),
    more.length > 0 && el("p", { class: "facts" }, `${count(more.length, "more place")}: `, more),
    el("p", { class: "facts" }, facts.map((fact, at) => [at > 0 && " · ", fact])),
  );
  if (focused) button.focus({ preventScroll: true });
  return row;
}

/** The other places of a file's result, the best first, as buttons; of several on a page, the best. */
function places(hit, open) {
  const named = new Map();
  for (const place of [hit, ...(hit.more ?? [])]) {
    const name = place.page ? `page ${place.page}` : `line ${place.line_start}`;
    if (!named.has(name)) named.set(name, place);
  }
  return [...named].slice(1).map(([name, place], at) => {
    const onclick = () => open({ ...hit, ...place, line: place.line_start });
    return [at > 0 && " · ", el("button", { type: "button", class: "place", onclick }, name)];
  });
}

/** Arrow keys go from a field into the list and through it. */
export function arrows(list, field) {
  const buttons = () => [...list.querySelectorAll("button.open")];
  field.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" || !buttons().length) return;
    event.preventDefault();
    buttons()[0].focus();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const every = buttons();
    const next = every.findIndex((button) => button.closest("li").contains(document.activeElement)) + step;
    if (next < 0) field.focus();
    else every[Math.min(next, every.length - 1)]?.focus();
  });
}
