// The views, the keys that work everywhere, and what is asked for once.

import { get, tokenFrom } from "./api.js";
import { Ask } from "./ask.js";
import { Collections } from "./collections.js";
import { byId, el, fill, problem } from "./dom.js";
import { Engine } from "./engine.js";
import { fileName, shown as printable } from "./format.js";
import { Memory } from "./memory.js";
import { Preview } from "./preview.js";
import { Search } from "./search.js";

tokenFrom(tokenByDialog);

const preview = new Preview(byId("document"));
const views = {
  search: new Search(preview),
  ask: new Ask(preview),
  memory: new Memory(),
  collections: new Collections(preview),
  engine: new Engine(),
};
let shown = "";

/** The view and what is asked for in it, by the address: `#search?q=river`. */
function route() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  if (name === "main") return; // the skip link
  const wanted = name in views ? name : "search";
  const asked = new URLSearchParams(query);
  if (wanted !== shown) {
    if (shown) {
      views[shown].hide?.();
      preview.close();
    }
    for (const view of Object.keys(views)) byId(`view-${view}`).hidden = view !== wanted;
    for (const link of byId("tabs").querySelectorAll("a")) {
      if (link.hash === `#${wanted}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${byId(`title-${wanted}`).textContent} · edge`;
    shown = wanted;
  }
  views[wanted].show(asked);
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
    return;
  }
  const field = event.target.matches("input:not([type=checkbox]), textarea, select");
  const empty = field && !event.target.value;
  if (event.key === "Escape") {
    if (!preview.close()) {
      if (empty && !(shown === "ask" && views.ask.asking)) event.target.blur();
      else views[shown].escape?.(event.target);
    }
    event.preventDefault();
    return;
  }
  const begins = empty && event.key === "?"; // nobody begins a text with it
  if ((!field || begins) && act(event.key)) event.preventDefault();
}

/** Does what a key is for, outside of fields; whether it is for anything. */
function act(key) {
  const names = Object.keys(views);
  if (key === "/") views[shown].field?.().focus();
  else if (key === "?") byId("help").showModal();
  else if (key === "c" && preview.isOpen) preview.copy();
  else if (key === "e" && preview.isOpen) preview.edit();
  else if (key >= "1" && key <= String(names.length)) location.hash = names[Number(key) - 1];
  else return false;
  return true;
}

/** Asks for the token in a dialog. */
function tokenByDialog() {
  const dialog = byId("token");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    byId("token-form").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        const given = byId("token-text").value.trim();
        byId("token-text").value = "";
        dialog.close();
        resolve(given);
      },
      { once: true },
    );
  });
}

/** Fills the choices of collections and pipelines. Only collections that exist are offered. */
async function choices() {
  const { collections } = await get("/v1/collections");
  const here = collections.filter((collection) => collection.exists).reverse(); // one may have two names: the first counts
  const names = [...new Map(here.map((collection) => [collection.path, collection.name])).values()].reverse();
  for (const id of ["search-collection", "ask-collection"]) {
    fill(byId(id), names.length > 1 && el("option", { value: "" }, "all"), names.map((name) => el("option", { value: name }, fileName(name))));
    byId(id).closest("label").hidden = names.length < 2;
  }
  if (!names.length) {
    byId("views").prepend(el("p", { id: "no-collection", class: "notice" }, "No documents are indexed yet. In a terminal, ",
      el("code", {}, "edge index FOLDER"), " adds a folder. Then load this page again."));
  }
  const { pipelines, editor, examples: found, adds_folders: addsFolders } = await get("/v1/offers");
  views.collections.addsFolders = addsFolders;
  preview.editor = editor;
  byId("editor-key").hidden = !editor;
  fill(byId("pipeline"), pipelines.map((name) => el("option", { value: name }, name)));
  byId("pipeline").closest("label").hidden = pipelines.length < 2;
  examples("search", found.map(({ heading }) => heading));
  examples("ask", found.map(({ heading, title }) => {
    if (heading.endsWith("?")) return heading;
    return heading === title ? `What does “${title}” say?` : `What does “${title}” say about “${heading}”?`;
  }));
}

/** Headings of this person's documents, as things to begin with. */
function examples(view, texts) {
  byId(`${view}-examples`).hidden = !texts.length;
  const address = (text) => `#${view}?${new URLSearchParams({ q: text })}`;
  fill(byId(`${view}-examples`), "For example:", texts.map((text) => el("a", { href: address(text) }, el("bdi", {}, printable(text)))));
}

addEventListener("hashchange", route);
addEventListener("keydown", onKey);
byId("help-button").addEventListener("click", () => byId("help").showModal());
try {
  await choices();
} catch (error) {
  byId("views").prepend(problem(error));
}
route();
