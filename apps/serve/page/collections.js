// The collections: what they hold, what was left out and why, and what is damaged.

import { events, get } from "./api.js";
import { announce, byId, el, factsList, fill, problem } from "./dom.js";
import { count, day, fileName, folder, shown, size } from "./format.js";

const MOST = 300;
const TIMED_OUT = 504;
const STATES = { ok: "ready", unfinished: "not complete yet", damaged: "damaged" };
const DAMAGE = new Set(["damaged", "missing vectors"]);

export class Collections {
  constructor(preview) {
    this.preview = preview;
    this.addsFolders = false; // whether the server takes folders from this page
  }

  field() {
    return byId("collections").querySelector("input") || byId("main");
  }

  async show() {
    try {
      const { collections } = await get("/v1/collections");
      const seen = new Map(); // one may have two names: the first counts
      for (const collection of collections) if (!seen.has(collection.path)) seen.set(collection.path, collection);
      const cards = await Promise.all([...seen.values()].map((collection) => this.card(collection)));
      const [first] = seen.values();
      const told = el("p", { class: "state" }, "In a terminal, ", el("code", {}, "edge index FOLDER"), " adds a folder. With ", el("code", {}, "edge serve --add-folders"), ", this page does, too.");
      fill(byId("collections"), this.addsFolders ? this.adding(first.name) : null, cards, this.addsFolders ? null : told);
    } catch (error) {
      fill(byId("collections"), problem(error));
    }
  }

  /** A field for a folder that is to be added. */
  adding(collection) {
    const folder = el("input", { id: "folder", type: "search", placeholder: "~/Documents", required: true, spellcheck: "false" });
    const button = el("button", { type: "submit" }, "Add");
    const state = el("p", { class: "state" });
    const form = el("form", { class: "add", autocomplete: "off" }, el("label", { for: "folder" }, "Add a folder of this computer"), folder, button, state);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const report = await this.add({ path: folder.value.trim(), collection }, (place) => (state.textContent = place));
        const left = report.skipped + report.failed;
        await this.show();
        const said = `${count(report.indexed, "file")} added${left ? `, ${left} left out` : ""}`;
        byId("collections").querySelector(".add .state").textContent = said;
        announce(said);
      } catch (error) {
        state.textContent = "";
        form.append(problem(error));
      }
      button.disabled = false;
    });
    return form;
  }

  /** Has a folder indexed, and says where it is; a request that took too long is sent again, and goes on. */
  async add(body, tell) {
    for (let before = -1, done = 0; ; before = done) {
      try {
        for await (const [name, data] of events("/v1/folders", body, "indexed")) {
          if (name === "indexed") return data;
          done = data.done;
          tell(data.place);
        }
      } catch (error) {
        if (error.status !== TIMED_OUT || done === before) throw error;
      }
    }
  }

  async card(collection) {
    const head = el("h3", {}, collection.name === "default" ? "Your documents" : fileName(collection.name));
    const path = el("p", { class: "path" }, shown(collection.path));
    if (!collection.exists) {
      return el("section", { class: "card" }, head, path, el("p", {}, "Nothing is indexed here yet."));
    }
    let status;
    try {
      status = await get(`/v1/collections/${encodeURIComponent(collection.name)}`);
    } catch (error) {
      return el("section", { class: "card" }, head, path, problem(error));
    }
    const kinds = Object.entries(status.kinds).map(([kind, number]) => `${kind} ${number}`).join(", ");
    const facts = [
      ["Folders", el("ul", { class: "plain" }, status.roots.map((root) => el("li", {}, shown(root))))],
      ["Searchable", `${count(status.indexed, "document")}, ${count(status.chunks, "passage")}`],
      ["Not read yet", status.pending ? count(status.pending, "file") : ""],
      ["Types of files", kinds],
      ["Size", `${size(status.source_bytes)}; the index takes ${size(status.database_bytes)}`],
    ];
    const details = [
      ["Index", shown(collection.path)],
      ["Model", status.embedder ? String(status.embedder.name || Object.values(status.embedder)[0]) : "none yet"],
      ["Vectors in memory", status.tiers.disk_bytes > 0 && `${size(status.tiers.resident_bytes)}; ${size(status.tiers.disk_bytes)} on disk`],
    ];
    return el(
      "section",
      { class: "card" },
      el("div", { class: "head" }, head, el("span", { class: `tag ${status.health.state}` }, STATES[status.health.state])),
      status.health.troubles.map((trouble) =>
        el("p", { class: DAMAGE.has(trouble.kind) ? "problem" : "notice" }, `${trouble.text} `, trouble.remedy && el("strong", {}, trouble.remedy)),
      ),
      factsList(facts),
      leftOut("failed", status.failed),
      leftOut("skipped", status.skipped),
      this.files(collection.name, status.indexed),
      el("details", {}, el("summary", {}, "Details"), factsList(details)),
    );
  }

  /** The documents, which are listed when somebody wants to see them. */
  files(name, number) {
    const list = el("ul", { class: "plain files" });
    const filter = el("input", { type: "search", "aria-label": `Filter the documents of ${name}`, placeholder: "Filter by path" });
    const said = el("p", { class: "state" });
    let every = null;
    const draw = () => {
      if (!every) return;
      const wanted = filter.value.toLowerCase();
      const found = every.filter((file) => file.path.toLowerCase().includes(wanted));
      said.textContent = `${count(found.length, "document")}${found.length > MOST ? `, the first ${MOST} are listed` : ""}`;
      fill(list, found.slice(0, MOST).map((file) => this.file(name, file)));
    };
    filter.addEventListener("input", draw);
    const details = el("details", {}, el("summary", {}, count(number, "document")), filter, said, list);
    details.addEventListener("toggle", async () => {
      if (!details.open || every) return;
      try {
        every = (await get(`/v1/collections/${encodeURIComponent(name)}/files`)).files;
        draw();
      } catch (error) {
        fill(list, el("li", {}, problem(error)));
      }
    });
    return details;
  }

  file(name, file) {
    const button = el("button", { type: "button", class: "open" }, fileName(file.path));
    button.addEventListener("click", () => this.preview.openFile(name, file.path, button));
    const told = [folder(file.path), file.kind, size(file.size), count(file.chunks, "passage"), file.mtime_ns && day(file.mtime_ns / 1e6)];
    return el("li", {}, button, " ", el("span", { class: "facts" }, told.filter(Boolean).join(" · ")));
  }
}

function leftOut(what, files) {
  if (!files.length) return null;
  return el(
    "details",
    { open: what === "failed" },
    el("summary", {}, `${count(files.length, "file")} ${what}`),
    el("ul", { class: "plain" }, files.slice(0, MOST).map((file) => el("li", {}, el("span", { class: "file" }, shown(file.path)), el("span", { class: "facts" }, ` ${file.reason}`)))),
    files.length > MOST && el("p", { class: "state" }, `and ${files.length - MOST} more`),
  );
}
