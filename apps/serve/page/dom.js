// Nodes of the page. Every text becomes a text node: nothing here, or anywhere in the page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick` and the like) and children. Attributes that are undefined, null or
 * false are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

function present(children) {
  return children.flat(3).filter((child) => child !== undefined && child !== null && child !== false);
}

/** Names with their values; those without a value are left out. */
export function factsList(facts) {
  const rows = facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return el("dl", { class: "facts-list" }, rows);
}

export const byId = (id) => document.getElementById(id);

/** The collections that a choice stands for: one, or all. */
export function chosenIn(id) {
  const values = [...byId(id).options].map((option) => option.value);
  return (byId(id).value ? [byId(id).value] : values).filter(Boolean);
}

/** Makes these the only children of a node. */
export function fill(node, ...children) {
  node.replaceChildren(...present(children));
}

/** Tells people who hear the page. */
export function announce(text) {
  byId("announcement").textContent = text;
}

/** A paragraph that says what went wrong. */
export function problem(error) {
  return el("p", { class: "problem", role: "alert" }, error.message || String(error));
}

/** A text with marks, given as pairs of start and end in code points. */
export function marked(text, marks) {
  const points = Array.from(text);
  const nodes = [];
  let at = 0;
  for (const [start, end] of [...marks].sort((one, other) => one[0] - other[0])) {
    if (start < at || end <= start) continue;
    nodes.push(points.slice(at, start).join(""), el("mark", {}, points.slice(start, end).join("")));
    at = end;
  }
  nodes.push(points.slice(at).join(""));
  return nodes;
}

/** Makes the children of a list those of `rows` ([key, node]), and lets those that move glide to their places. The focus
 * stays where it is. */
export function reorder(list, rows) {
  const before = new Map([...list.children].map((node) => [node, node.getBoundingClientRect().top]));
  const focused = document.activeElement;
  const nodes = rows.map(([, node]) => node);
  const wanted = new Set(nodes);
  for (const node of [...list.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (list.children[place] !== node) list.insertBefore(node, list.children[place] || null);
  });
  if (focused && focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const node of nodes) {
    const top = before.get(node);
    const moved = top === undefined ? 0 : top - node.getBoundingClientRect().top;
    if (top === undefined) node.animate([{ opacity: 0 }, { opacity: 1 }], 150);
    else if (moved) {
      node.animate([{ transform: `translateY(${moved}px)` }, { transform: "none" }], { duration: 260, easing: "ease-out" });
    }
  }
}
