// The document of a result or a citation, opened at its passage.

import { post } from "./api.js";
import { announce, el, fill, problem } from "./dom.js";
import { count, day, fileName, shown, size } from "./format.js";
import { Paper } from "./paper.js";
import { prose } from "./prose.js";

/** Kinds of which the index leaves out nothing but blank lines. */
const AS_IT_STANDS = new Set(["code", "markdown", "text"]);
/** Kinds that are read by their lines. */
const SOURCE = new Set(["code", "text", "rst", "latex", "bibtex", "json"]);
const MOST_BLANK = 100;

export class Preview {
  constructor(pane) {
    this.pane = pane;
    this.opener = null;
    this.place = "";
    this.opened = 0;
    this.editor = false; // whether the server can open documents in an editor
    this.shown = null;
  }

  get isOpen() {
    return !this.pane.hidden;
  }

  openHit(hit, opener) {
    return this.open({ collection: hit.collection || "", id: hit.id }, markOf(hit), opener);
  }

  openFile(collection, path, opener) {
    return this.open({ collection, path }, null, opener);
  }

  /** Opens a document.
   * @param target what `/v1/preview` takes.
   * @param mark lines of the passage (`first`, `last`), the one that says it (`best`), and its `page` where the format
   *     has pages, whose lines begin at 1 again; null marks nothing. */
  async open(target, mark, opener) {
    const turn = ++this.opened;
    this.opener = opener || this.opener;
    this.mark = mark;
    this.collection = target.collection;
    try {
      const found = await post("/v1/preview", target);
      if (turn !== this.opened) return;
      this.show(found);
      this.pane.querySelector("h2").focus({ preventScroll: true }); // the passage stays in sight
      announce(`${fileName(found.path)} is open`);
    } catch (error) {
      if (turn !== this.opened) return;
      this.pane.hidden = false;
      fill(this.pane, this.head("Document", []), problem(error));
    }
  }

  /** Whether there was something to close. */
  close() {
    this.opened += 1;
    if (!this.isOpen) return false;
    this.pane.hidden = true;
    fill(this.pane);
    document.body.classList.remove("reading");
    if (this.opener?.isConnected) this.opener.focus();
    this.opener = null;
    return true;
  }

  async copy() {
    await navigator.clipboard.writeText(this.place);
    announce(`Copied ${this.place}`);
  }

  /** Opens the document in the person's editor, or in the program of its type (`own`). */
  async edit(own = false) {
    if ((!own && !this.editor) || this.shown === null) return;
    try {
      await post("/v1/open", { ...this.shown, own });
      announce(own ? "Opened in its program" : "Opened in the editor");
    } catch (error) {
      this.pane.querySelector(".facts").after(problem(error));
    }
  }

  show(found) {
    const line = this.mark ? this.mark.best : found.lines[0][0];
    const paged = found.pages.length > 0;
    this.place = paged ? `${found.path} p. ${this.mark?.page || found.pages[0][1]}` : `${found.path}:${line}`;
    const page = this.mark?.page || found.pages[0]?.[1] || 1;
    this.shown = { collection: this.collection, path: found.path, page, line: paged ? 1 : line };
    const facts = [found.kind, size(found.size), found.modified && day(found.modified)].filter(Boolean).join(" · ");
    const body = el("div", { class: "body", tabindex: "0", role: "region", "aria-label": "Text of the document" });
    const modes = SOURCE.has(found.kind) ? [] : ["Text", "Lines", found.kind === "pdf" && paged && "Page"].filter(Boolean);
    const buttons = modes.map((mode) =>
      el("button", { type: "button", class: "mode", onclick: () => draw(mode) }, mode),
    );
    const draw = (mode) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === mode));
      if (mode === "Page") {
        this.paper(found, body).show();
        return;
      }
      fill(body, this.more(found.earlier, "Earlier"), mode === "Text" ? prose(found, (place) => markedAs(found, place, this.mark)) : this.content(found), this.more(found.later, "Later"));
      const marked = body.querySelector(".best") || body.querySelector(".passage");
      if (marked) centre(marked, body);
      else body.scrollTop = 0;
    };
    const name = shown(found.title || "") || fileName(found.path);
    fill(
      this.pane,
      this.head(name, [...buttons, found.opens && el("button", { type: "button", class: "quiet", onclick: () => this.edit(true) }, "Open in its program"), this.editor && el("button", { type: "button", class: "quiet", onclick: () => this.edit() }, "Open in editor"), el("button", { type: "button", class: "quiet", onclick: () => this.copy() }, "Copy path")]),
      el("p", { class: "path" }, shown(found.path)),
      el("p", { class: "facts" }, facts),
      body,
    );
    this.pane.hidden = false;
    document.body.classList.add("reading");
    draw(modes[0]);
  }

  /** What shows the pages of a document, first that of the passage. */
  paper(found, body) {
    const { page, first, last } = this.mark || { page: found.pages[0][1] };
    const passage = found.lines.filter((_, place) => markedAs(found, place, this.mark));
    const said = passage.map(([, text]) => text).join(" ");
    return new Paper(body, { collection: this.collection, path: found.path, page, first, last }, said);
  }

  head(name, buttons) {
    return el(
      "div",
      { class: "head" },
      el("h2", { tabindex: "-1" }, name),
      el("div", { class: "buttons" }, buttons, el("button", { type: "button", class: "quiet", onclick: () => this.close() }, "Close")),
    );
  }

  /** A button that shows what lies beyond this part. */
  more(id, label) {
    if (id === null) return null;
    return el(
      "button",
      { type: "button", class: "quiet", onclick: () => this.open({ collection: this.collection, id }, this.mark, null) },
      `${label} lines`,
    );
  }

  content(found) {
    const pages = new Map(found.pages);
    const width = String(found.lines.at(-1)[0]).length;
    let last = 0;
    const rows = [];
    const line = (number, text, kind) =>
      el(
        "div",
        { class: `line ${kind}`.trim() },
        el("span", { class: "number", "aria-hidden": "true" }, String(number).padStart(width, "\u2007")),
        el("span", { class: "text" }, text),
      );
    found.lines.forEach(([number, text], place) => {
      const kind = markedAs(found, place, this.mark);
      if (pages.has(place)) rows.push(el("h3", { class: "page" }, `Page ${pages.get(place)}`));
      else if (last && AS_IT_STANDS.has(found.kind) && number - last < MOST_BLANK) {
        for (let blank = last + 1; blank < number; blank += 1) rows.push(line(blank, "", kind && "passage"));
      } else if (last && number > last + 1) rows.push(el("div", { class: "line gap" }));
      rows.push(line(number === last ? "" : number, text, kind));
      last = number;
    });
    return el("div", { class: "lines", "aria-label": count(found.lines.length, "line"), role: "group" }, rows);
  }
}

/** Scrolls the document to a line: in its own frame where it has one, else with the page. */
function centre(node, body) {
  if (body.scrollHeight > body.clientHeight) {
    body.scrollTop += node.getBoundingClientRect().top - body.getBoundingClientRect().top - body.clientHeight / 3;
  } else node.scrollIntoView({ block: "center" });
}

/** What to mark of a document, by a hit or a citation. */
export function markOf(found) {
  return { first: found.line_start, last: found.line_end, best: found.line || found.line_start, page: found.page || null };
}

/** The classes of a line by its place: whether it belongs to what is marked, and is its best one. */
function markedAs({ lines, pages }, place, mark) {
  const page = pages.findLast(([start]) => start <= place)?.[1] ?? null;
  const [number] = lines[place];
  if (mark === null || page !== mark.page || number < mark.first || number > mark.last) return "";
  return number === mark.best ? "passage best" : "passage";
}
