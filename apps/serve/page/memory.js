// The memory: what it holds for a scope, found, added, changed, pinned, forgotten, and how it came to be.

import { get, post, put, remove } from "./api.js";
import { announce, byId, el, fill, problem } from "./dom.js";
import { count, moment } from "./format.js";

const PAUSE_MS = 200;
const MOST = 200;
const IDS = ["user_id", "agent_id", "run_id"];

export class Memory {
  constructor() {
    this.scopes = [];
    this.timer = 0;
    this.turn = 0;
    this.field().addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.list(), PAUSE_MS);
    });
    for (const id of ["scope", "hidden-too"]) byId(id).addEventListener("change", () => this.list());
    byId("memory-search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.list();
    });
    byId("memory-add").addEventListener("submit", (event) => {
      event.preventDefault();
      this.add();
    });
  }

  field() {
    return byId("memory-query");
  }

  async show() {
    this.field().focus();
    await this.refresh();
  }

  escape(target) {
    if (target === this.field()) {
      this.field().value = "";
      this.list();
    }
    this.field().focus();
  }

  /** Reads the scopes and the list again. */
  async refresh() {
    try {
      const before = byId("scope").value;
      this.scopes = (await get("/v1/scopes")).scopes;
      const options = this.scopes.map((scope, place) => {
        const label = IDS.filter((id) => scope[id] !== null).map((id) => `${id.slice(0, -3)} ${scope[id]}`).join(", ");
        return el("option", { value: String(place) }, `${label} (${scope.memories})`);
      });
      fill(byId("scope"), options.length ? options : el("option", { value: "" }, "your own"));
      if (this.scopes[before]) byId("scope").value = before;
      await this.list();
    } catch (error) {
      fill(byId("memories"), el("li", { class: "bare" }, problem(error)));
    }
  }

  /** The ids of the chosen scope; none mean the usual user's. */
  scope() {
    const chosen = this.scopes[byId("scope").value];
    return chosen ? Object.fromEntries(IDS.filter((id) => chosen[id] !== null).map((id) => [id, chosen[id]])) : {};
  }

  async list() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    const query = this.field().value.trim();
    try {
      const found = query
        ? await post("/v1/memories/search", { query, ...this.scope(), top_k: 20 })
        : await get(`/v1/memories?${new URLSearchParams({ ...this.scope(), top_k: MOST, show_expired: byId("hidden-too").checked })}`);
      if (turn !== this.turn) return;
      fill(byId("memories"), found.results.map((memory) => this.card(memory)));
      const said = found.results.length ? count(found.results.length, "memory", "memories") : "Nothing remembered here";
      byId("memory-state").textContent = said;
      if (query) announce(said);
    } catch (error) {
      if (turn === this.turn) fill(byId("memories"), el("li", { class: "bare" }, problem(error)));
    }
  }

  async add() {
    const text = byId("memory-text").value.trim();
    if (!text) return;
    await this.change("Remembered", async () => {
      await post("/v1/memories", { messages: text, ...this.scope() });
      byId("memory-text").value = "";
    });
  }

  /** Changes something, says so, and shows what there is now. */
  async change(said, work, card = null) {
    try {
      await work();
      await this.refresh();
      announce(said);
    } catch (error) {
      (card || byId("memory-add")).append(problem(error));
    }
  }

  card(memory) {
    const path = `/v1/memories/${encodeURIComponent(memory.id)}`;
    const marks = [memory.pinned && "pinned", memory.forgotten_at && "forgotten"].filter(Boolean);
    const told = [
      ...marks.map((mark) => el("span", { class: "tag" }, mark)),
      el("time", { datetime: memory.created_at }, moment(memory.created_at)),
      memory.role,
      memory.expiration_date && `expires ${memory.expiration_date}`,
      ...Object.entries(memory.metadata || {}).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`),
    ];
    const text = el("p", { class: "memory" }, memory.memory);
    const more = el("div", { class: "more" });
    const card = el("li", { class: memory.forgotten_at ? "card forgotten" : "card" });
    const button = (label, act) =>
      el("button", { type: "button", class: "quiet", "aria-label": `${label}: ${memory.memory.slice(0, 60)}`, onclick: act }, label);
    const set = (said, body) => () => this.change(said, () => put(path, body), card);
    fill(
      card,
      text,
      el("p", { class: "facts" }, told.filter(Boolean).map((fact, at) => [at > 0 && " · ", fact])),
      el(
        "div",
        { class: "buttons" },
        button("Edit", () => this.edit(card, memory, path)),
        memory.pinned ? button("Unpin", set("Unpinned", { pinned: false })) : button("Pin", set("Pinned", { pinned: true })),
        memory.forgotten_at
          ? button("Recall", set("Recalled", { forgotten: false }))
          : button("Forget", set("Forgotten", { forgotten: true })),
        button("History", () => this.history(more, path)),
        button("Delete", () => this.deleted(more, path, card)),
      ),
      more,
    );
    return card;
  }

  edit(card, memory, path) {
    const area = el("textarea", { rows: "3", "aria-label": "Text of the memory" });
    area.value = memory.memory;
    const form = el(
      "form",
      { class: "edit" },
      area,
      el("button", { type: "submit" }, "Save"),
      el("button", { type: "button", class: "quiet", onclick: () => this.list() }, "Cancel"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.change("Saved", () => put(path, { text: area.value.trim() }), card);
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.list();
      }
    });
    fill(card, form);
    area.focus();
  }

  async history(more, path) {
    if (more.childElementCount) return fill(more);
    try {
      const changes = await get(`${path}/history`);
      const rows = changes.map((change) =>
        el(
          "li",
          {},
          el("span", { class: "tag" }, change.event.toLowerCase()),
          " ",
          el("time", {}, moment(change.updated_at || change.created_at)),
          change.new_memory ? el("p", {}, change.new_memory) : null,
        ),
      );
      fill(more, el("ol", { class: "history", "aria-label": "History, oldest first" }, rows));
    } catch (error) {
      fill(more, problem(error));
    }
    return undefined;
  }

  /** Asks once more: what is deleted does not come back. */
  deleted(more, path, card) {
    const sure = el("button", { type: "button", class: "danger", onclick: () => this.change("Deleted", () => remove(path), card) }, "Delete for good");
    fill(more, sure, " ", el("button", { type: "button", class: "quiet", onclick: () => fill(more) }, "Keep"));
    sure.focus();
  }
}
