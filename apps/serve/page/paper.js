// A page of a PDF as a picture, which the server draws with the passage marked.

import { postForBlob } from "./api.js";
import { el, fill, problem } from "./dom.js";

/** Shows pages in a node, and lets the person turn them. */
export class Paper {
  /** @param target what `/v1/page` takes; @param passage the text of what is marked, for people who hear the page. */
  constructor(node, target, passage) {
    this.node = node;
    this.target = target;
    this.passage = passage;
    this.turn = 0;
  }

  /** Shows a page; that of the passage if none is given. */
  async show(page = this.target.page) {
    const turn = ++this.turn;
    const { collection, path } = this.target;
    this.node.setAttribute("aria-busy", "true");
    try {
      const answer = await postForBlob("/v1/page", page === this.target.page ? this.target : { collection, path, page });
      const bitmap = await createImageBitmap(answer.blob);
      if (turn === this.turn) this.draw(bitmap, page, Number(answer.headers.get("Edge-Pages")));
    } catch (error) {
      if (turn === this.turn) fill(this.node, problem(error));
    }
    if (turn === this.turn) this.node.removeAttribute("aria-busy");
  }

  draw(bitmap, page, pages) {
    const marked = page === this.target.page && this.passage ? `. Marked: ${this.passage}` : "";
    const canvas = el("canvas", {
      width: bitmap.width, height: bitmap.height, class: "sheet", role: "img", "aria-label": `Page ${page} of ${pages}${marked}`,
    });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    const button = (label, to) =>
      el("button", { type: "button", class: "quiet", "aria-label": `${label} page`, disabled: to < 1 || to > pages, onclick: () => this.show(to) }, label);
    const focused = this.node.contains(document.activeElement) ? document.activeElement.textContent : "";
    fill(
      this.node,
      el("p", { class: "paging" }, button("Previous", page - 1), el("span", {}, `Page ${page} of ${pages}`), button("Next", page + 1)),
      canvas,
    );
    this.node.scrollTop = 0;
    [...this.node.querySelectorAll("button")].find((one) => one.textContent === focused && !one.disabled)?.focus();
  }
}
