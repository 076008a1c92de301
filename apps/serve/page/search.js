// Search as you type: the fused results at once, then the reranker's order, layer by layer.

import { events, givenUp, post } from "./api.js";
import { announce, byId, chosenIn, el, fill, problem, reorder } from "./dom.js";
import { count, seconds } from "./format.js";
import { arrows, hitRow } from "./hits.js";

const PAUSE_MS = 140;
const SHOWN = 10;

export class Search {
  constructor(preview) {
    this.preview = preview;
    this.rows = new Map(); // what is shown, and was: nodes by collection and id
    this.last = "";
    this.timer = 0;
    this.asking = null;
    this.field().addEventListener("input", () => this.soon());
    for (const id of ["rerank", "search-collection", "filters"]) byId(id).addEventListener("change", () => this.search());
    byId("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    byId("search-more").addEventListener("click", () => {
      byId("search-options").hidden = !byId("search-options").hidden;
      byId("search-more").setAttribute("aria-expanded", String(!byId("search-options").hidden));
    });
    arrows(byId("hits"), this.field());
  }

  field() {
    return byId("query");
  }

  show(asked) {
    const query = asked.get("q");
    if (query !== null && query !== this.field().value) {
      this.field().value = query;
      this.search();
    }
    if (!this.preview.isOpen) this.field().focus();
  }

  escape(target) {
    if (target === this.field()) {
      this.field().value = "";
      this.search();
    }
    this.field().focus();
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), PAUSE_MS);
  }

  async search() {
    clearTimeout(this.timer);
    this.asking?.abort();
    const query = this.field().value.trim();
    byId("search-hint").hidden = query !== "";
    history.replaceState(null, "", query ? `#search?${new URLSearchParams({ q: query })}` : "#search");
    if (!query) {
      this.rows.clear();
      fill(byId("hits"));
      this.state("");
      return;
    }
    const asking = (this.asking = new AbortController());
    const started = performance.now();
    const body = {
      query,
      collections: chosenIn("search-collection"),
      filters: byId("filters").value.trim().split(/\s+/).filter(Boolean),
      top_k: SHOWN,
      files: true,
      rerank: byId("rerank").checked,
    };
    let begun = false;
    try {
      for await (const [name, data] of events("/v1/search", body, "final", asking.signal)) {
        if (asking.signal.aborted) return;
        begun = true;
        if (name === "fused") this.fused(data.results, body.rerank);
        else if (name === "layer") this.layer(data, asking.signal);
        else if (name === "final") this.final(data.results, (performance.now() - started) / 1000);
      }
    } catch (error) {
      if (givenUp(error) || asking.signal.aborted) return;
      byId("hits").removeAttribute("aria-busy");
      this.state("");
      const row = el("li", { class: "bare" }, problem(error));
      if (begun) byId("hits").prepend(row); // the results that came before it stay
      else fill(byId("hits"), row);
    }
  }

  fused(results, more) {
    const known = new Set(results.map(keyOf));
    for (const key of [...this.rows.keys()]) if (!known.has(key)) this.rows.delete(key);
    for (const row of byId("hits").querySelectorAll(":scope > .bare")) row.remove();
    this.draw(results);
    if (!more) return;
    byId("hits").setAttribute("aria-busy", "true");
    this.state(`${count(results.length, "result")}, putting the best first …`);
  }

  /** Shows the order of the provisional scores. */
  layer(data, signal) {
    const best = data.results.slice(0, SHOWN);
    this.fetchMissing(best, signal);
    const rows = best.map((result) => this.row(result)).filter(Boolean);
    const here = new Set(rows.map(([key]) => key));
    const rest = this.order.filter((key) => !here.has(key) && this.rows.has(key)).map((key) => [key, this.rows.get(key)]);
    this.place([...rows, ...rest].slice(0, SHOWN));
  }

  final(results, took) {
    this.draw(results);
    byId("hits").removeAttribute("aria-busy");
    const found = results.length ? count(results.length, "result") : "Nothing found";
    this.state(`${found} in ${seconds(took)}`);
    announce(found);
  }

  /** Shows results in their order, each with everything that is known of it. */
  draw(results) {
    const rows = results.map((hit) => {
      const key = keyOf(hit);
      const known = this.rows.get(key);
      const row = hitRow(hit, (place) => this.preview.openHit(place, row.querySelector(".open")), known);
      this.rows.set(key, row);
      return [key, row];
    });
    this.place(rows);
  }

  place(rows) {
    this.order = rows.map(([key]) => key);
    reorder(byId("hits"), rows);
  }

  row(result) {
    const key = keyOf(result);
    return this.rows.has(key) ? [key, this.rows.get(key)] : null;
  }

  /** Candidates from further down, which the fused results did not hold, are read from the index once. */
  async fetchMissing(best, signal) {
    const missing = best.filter((result) => !this.rows.has(keyOf(result)));
    for (const result of missing) {
      const row = el("li", { class: "hit rising" }, el("p", { class: "snippet" }, "…"));
      this.rows.set(keyOf(result), row);
    }
    const names = [...new Set(missing.map((result) => result.collection))];
    for (const name of names) {
      const these = missing.filter((result) => result.collection === name);
      try {
        const body = { collections: name ? [name] : [], targets: these.map((result) => `#${result.id}`) };
        const { documents } = await post("/v1/documents", body, signal);
        documents.forEach((part, place) => {
          const hit = { ...part, ...these[place], snippet: part.text.slice(0, 240), marks: [], line: part.line_start };
          const row = this.rows.get(keyOf(hit));
          if (row?.classList.contains("rising")) hitRow(hit, (place) => this.preview.openHit(place, null), row); // not drawn since
        });
      } catch (error) {
        if (!givenUp(error)) this.state(error.message);
      }
    }
  }

  state(text) {
    byId("search-state").textContent = text;
  }
}

const keyOf = (result) => `${result.collection || ""}:${result.id}`;
