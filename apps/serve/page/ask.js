// Questions and answers: streamed, with citations that open their passages.

import { events, givenUp } from "./api.js";
import { announce, byId, chosenIn, el, factsList, fill, problem } from "./dom.js";
import { count, fileName, mailLine, seconds } from "./format.js";
import { markOf } from "./preview.js";

const CITED = /\[(\d+)\]/g;

export class Ask {
  constructor(preview) {
    this.preview = preview;
    this.turns = [];
    this.asking = null;
    byId("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.field().addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask();
      }
    });
    byId("ask-stop").addEventListener("click", () => this.asking?.abort());
    byId("ask-anew").addEventListener("click", () => this.anew());
  }

  field() {
    return byId("question");
  }

  show(asked) {
    if (asked.get("q") !== null) {
      this.field().value = asked.get("q");
      history.replaceState(null, "", "#ask");
    }
    if (!this.preview.isOpen) this.field().focus();
  }

  escape(target) {
    if (this.asking) this.asking.abort();
    else if (target === this.field()) this.field().value = "";
    this.field().focus();
  }

  anew() {
    this.asking?.abort();
    this.turns = [];
    fill(byId("conversation"));
    byId("ask-hint").hidden = false;
    byId("ask-anew").hidden = true;
    this.field().placeholder = "Ask your documents";
    this.field().focus();
  }

  async ask() {
    const question = this.field().value.trim();
    if (!question || this.asking) return;
    const asking = (this.asking = new AbortController());
    const collections = chosenIn("ask-collection");
    const [collection] = collections;
    const text = el("p", { class: "said" }, "");
    const turn = el("article", { class: "turn", "aria-busy": "true" }, el("h3", {}, question), text);
    byId("conversation").append(turn);
    this.field().value = "";
    this.busy(true);
    turn.scrollIntoView({ block: "nearest" });
    const body = { question, collections, pipeline: byId("pipeline").value, turns: this.turns };
    try {
      for await (const [name, data] of events("/v1/ask", body, "answer", asking.signal)) {
        if (name === "text") text.textContent += data.text;
        else if (name === "answer") this.finish(turn, question, data, collection);
      }
    } catch (error) {
      text.remove();
      turn.append(givenUp(error) ? el("p", { class: "state" }, "Stopped.") : problem(error));
    }
    turn.removeAttribute("aria-busy");
    if (this.asking === asking) {
      this.asking = null;
      this.busy(false);
      this.field().focus();
    }
  }

  busy(on) {
    byId("ask-stop").hidden = !on;
    byId("ask-hint").hidden = true;
    byId("ask-button").disabled = on;
    byId("ask-anew").hidden = on || !byId("conversation").childElementCount;
    this.field().placeholder = byId("conversation").childElementCount ? "Ask a follow-up" : "Ask your documents";
  }

  finish(turn, question, answer, collection) {
    this.turns.push({ question, answer: answer.text, standalone: answer.stats.question || question });
    const quotes = answer.stats.generator === "extractive";
    const text = answer.uncertain && quotes ? answer.text.replace(CLOSEST, "") : answer.text;
    const cited = new Map(answer.citations.map((citation) => [citation.number, citation]));
    fill(
      turn,
      el("h3", {}, question),
      answer.uncertain && el("p", { class: "doubt" }, el("strong", {}, quotes ? "Closest passage. " : "Not certain. "), DOUBT),
      el("p", { class: answer.found ? "said" : "said unfound" }, this.linked(text, cited, collection)),
      cited.size > 0 && this.sources(answer.citations, collection),
      !answer.found && this.nearest(answer, collection),
      answer.unsupported.length > 0 && unsupported(answer.unsupported),
      how(answer),
    );
    turn.classList.add(!answer.found ? "without" : answer.uncertain ? "guess" : "answer");
    const said = answer.uncertain ? "Perhaps answered" : "Answered";
    announce(answer.found ? `${said}, with ${count(cited.size, "citation")}` : "Not found in the documents");
    turn.scrollIntoView({ block: "nearest" });
  }

  /** The places nearest to a question that is not answered. */
  nearest(answer, collection) {
    if (!answer.nearest?.length) return null;
    const rows = answer.nearest.map((place) => {
      const [, path, line, page] = place.match(PLACE);
      const at = page ? `page ${page}` : line ? `line ${line}` : "";
      const button = el("button", { type: "button", class: "open" }, el("bdi", {}, fileName(path)), at && `, ${at}`);
      const target = { collection, path, line: Number(line) || undefined, page: Number(page) || undefined };
      button.addEventListener("click", () => this.preview.open(target, null, button));
      return el("li", {}, button);
    });
    return [el("p", { class: "state" }, "Nearest to the question:"), el("ul", { class: "plain" }, rows)];
  }

  /** The text with a button for each citation. */
  linked(text, cited, collection) {
    const nodes = [];
    let at = 0;
    for (const match of text.matchAll(CITED)) {
      const citation = cited.get(Number(match[1]));
      if (!citation) continue;
      nodes.push(text.slice(at, match.index), this.button(citation, collection));
      at = match.index + match[0].length;
    }
    return [...nodes, text.slice(at)];
  }

  button(citation, collection) {
    const button = el(
      "button",
      { type: "button", class: "cite", "aria-label": `Citation ${citation.number}: ${where(citation)}`, title: where(citation) },
      String(citation.number),
    );
    button.addEventListener("click", () => this.open(citation, collection, button));
    return button;
  }

  open(citation, collection, opener) {
    return this.preview.open({ collection: citation.collection ?? collection, id: citation.id }, markOf(citation), opener);
  }

  sources(citations, collection) {
    const rows = citations.map((citation) => {
      const button = el("button", { type: "button", class: "open" }, placed(citation));
      button.addEventListener("click", () => this.open(citation, collection, button));
      const mail = citation.mail && el("span", { class: "mail" }, mailLine(citation.mail));
      return el("li", { value: citation.number }, button, mail && " ", mail, el("q", {}, citation.snippet));
    });
    return el("ol", { class: "sources", "aria-label": "Citations" }, rows);
  }
}

const DOUBT = "It may be about something else than the question: read it before you rely on it.";
const CLOSEST = /^The nearest passage:\n/;
const PLACE = /^(.*?)(?::(\d+)| p\. (\d+))?$/s;

const placeIn = (found) => (found.page ? `page ${found.page}` : `line ${found.line || found.line_start}`);
const where = (found) => `${fileName(found.path)}, ${placeIn(found)}`;

/** The same as nodes. A name that is read from right to left does not turn what stands beside it. */
const placed = (found) => [el("bdi", {}, fileName(found.path)), `, ${placeIn(found)}`];

function unsupported(sentences) {
  return el(
    "details",
    {},
    el("summary", {}, `${count(sentences.length, "sentence")} that no passage holds`),
    el("ul", {}, sentences.map((found) => el("li", {}, Object.values(found).filter((v) => typeof v === "string").join(" → ")))),
  );
}

/** How an answer came about: pipeline, times, what was searched for and found. */
function how(answer) {
  const stats = answer.stats;
  const facts = [
    ["Method", stats.pipeline],
    ["Written by", stats.generator === "extractive" ? "nobody: these are sentences of the documents" : stats.generator],
    ["Searched for", stats.question],
    ["Time", `${seconds(stats.seconds)} (search ${seconds(stats.search_s)}, reading the results ${seconds(stats.rerank_s)}, writing ${seconds(stats.generate_s)})`],
  ];
  const rounds = answer.rounds.map((round, place) =>
    el(
      "li",
      {},
      el("p", {}, `Search ${place + 1}: `, round.queries.map((query) => el("q", {}, query))),
      el(
        "ul",
        {},
        round.passages.map((hit) =>
          el("li", {}, placed(hit), hit.relevance === null ? "" : `, relevance ${hit.relevance.toFixed(2)}`),
        ),
      ),
      round.below ? el("p", {}, `${count(round.below, "passage")} left out as too far from the question`) : null,
    ),
  );
  return el(
    "details",
    { class: "how" },
    el("summary", {}, "How this was answered"),
    factsList(facts),
    el("ol", { class: "rounds" }, rounds),
  );
}
