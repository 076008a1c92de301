// Rendered Markdown: the tree that the server made of a document, as nodes. A tag that is not listed is left out.

import { el } from "./dom.js";

const TAGS = new Set(
  "p ul ol li blockquote table thead tbody tr th td hr strong em s code pre br h3 h4 h5 h6 a".split(" "),
);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** Nodes for elements of the tree. `mark`: lines whose blocks are marked; see `Preview.open`. */
export function elements(tree, mark) {
  return tree.map((element) => (typeof element === "string" ? element : node(element, mark)));
}

function node(element, mark) {
  const children = elements(element.children || [], mark);
  if (!TAGS.has(element.tag)) return children;
  const made = el(element.tag, attributes(element));
  made.append(...children.flat(20));
  const lines = element.lines;
  if (mark && lines && !made.querySelector("[data-lines]") && lines[0] <= mark.last && lines[1] >= mark.first) {
    made.classList.add("passage");
    if (lines[0] <= mark.best && mark.best <= lines[1]) made.classList.add("best");
  }
  return made;
}

function attributes(element) {
  const found = {};
  if (element.lines) found["data-lines"] = element.lines.join("-");
  if (element.tag === "a" && harmless(element.href)) {
    Object.assign(found, { href: element.href, target: "_blank", rel: "noopener noreferrer" });
  }
  return found;
}

function harmless(href) {
  try {
    return SCHEMES.has(new URL(href).protocol);
  } catch {
    return false;
  }
}
