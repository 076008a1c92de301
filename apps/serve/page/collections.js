// The collections: what they hold, what was left out and why, and what is damaged.

import { get } from "./api.js";
import { byId, el, fill, problem } from "./dom.js";
import { count, day, fileName, folder, shown, size } from "./format.js";

const MOST = 300;

export class Collections {
  constructor(preview) {
    this.preview = preview;
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
      fill(byId("collections"), cards, el("p", { class: "state" }, el("code", {}, "edge index FOLDER"), " indexes a folder. ", el("code", {}, "edge status"), " shows the same as this view."));
    } catch (error) {
      fill(byId("collections"), problem(error));
    }
  }

  async card(collection) {
    const head = el("h3", {}, fileName(collection.name));
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
      ["Searched", `${count(status.indexed, "document")}, ${count(status.chunks, "passage")}`],
      ["Kinds", kinds],
      ["Sources", `${size(status.source_bytes)}; the collection takes ${size(status.database_bytes)}`],
      ["Waiting", status.pending ? `${count(status.pending, "file")} for the next edge index` : ""],
      ["Embedder", status.embedder ? String(status.embedder.name || Object.values(status.embedder)[0]) : "none yet"],
      ["Lists in memory", status.tiers.disk_bytes > 0 && `${size(status.tiers.resident_bytes)}; ${size(status.tiers.disk_bytes)} on disk`],
      ["Folders", el("ul", { class: "plain" }, status.roots.map((root) => el("li", {}, shown(root))))],
    ];
    return el(
      "section",
      { class: "card" },
      el("div", { class: "head" }, head, el("span", { class: `tag ${status.health.state}` }, status.health.state)),
      path,
      status.health.troubles.map((trouble) =>
        el("p", { class: "problem" }, `${trouble.text} `, trouble.remedy && el("strong", {}, trouble.remedy)),
      ),
      el("dl", { class: "facts-list" }, facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      leftOut("failed", status.failed),
      leftOut("skipped", status.skipped),
      this.files(collection.name, status.indexed),
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
