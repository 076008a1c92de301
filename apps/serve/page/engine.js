// The engine room: who holds which bytes of the limit, what waits for what, and the last reranking, live.

import { get, post } from "./api.js";
import { announce, byId, el, fill, problem } from "./dom.js";
import { count, moment, seconds, size } from "./format.js";
import { picture } from "./picture.js";

const EVERY_MS = 1000;

export class Engine {
  constructor() {
    this.timer = 0;
    this.drawn = "";
    this.parts = null;
    this.refused = null;
  }

  show() {
    this.running = true;
    if (!this.parts) this.build();
    this.look();
  }

  hide() {
    this.running = false;
    clearTimeout(this.timer);
  }

  build() {
    const part = (id, title, wide = false) => {
      const body = el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": id });
      return [body, el("section", { class: wide ? "card wide" : "card", "aria-labelledby": id }, el("h3", { id }, title), body)];
    };
    const [memory, memoryCard] = part("engine-memory", "Memory", true);
    const [models, modelsCard] = part("engine-models", "Models");
    const [lanes, lanesCard] = part("engine-lanes", "Waiting for storage");
    const [answers, answersCard] = part("engine-answers", "Answers");
    const [lists, listsCard] = part("engine-lists", "Lists of vectors");
    const [reranking, rerankingCard] = part("engine-reranking", "The last reranking", true);
    const [trace, traceCard] = part("engine-trace", "Trace", true);
    const [counters, countersCard] = part("engine-counters", "Counters", true);
    this.parts = { memory, models, lanes, answers, lists, reranking, trace, counters };
    this.recorder = el("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.trace() }, "Record a trace");
    traceCard.append(this.recorder);
    const table = el("details", {}, el("summary", {}, "All counters since the start"), counters);
    countersCard.replaceChildren(countersCard.firstChild, table, el("button", { type: "button", class: "quiet", onclick: () => this.save() }, "Save this state as JSON"));
    fill(byId("engine"), memoryCard, modelsCard, lanesCard, answersCard, listsCard, rerankingCard, traceCard, countersCard);
  }

  async look() {
    clearTimeout(this.timer);
    try {
      this.state = await get("/v1/engine");
      byId("engine").querySelector(":scope > .problem")?.remove();
      this.draw(this.state);
    } catch (error) {
      if (!byId("engine").querySelector(":scope > .problem")) byId("engine").prepend(problem(error));
    }
    if (this.running) this.timer = setTimeout(() => this.look(), document.hidden ? 5 * EVERY_MS : EVERY_MS);
  }

  draw(state) {
    const { memory, requests } = state;
    const holders = Object.entries(memory.holders).sort((one, other) => other[1] - one[1]);
    const rows = [...holders.filter(([, nbytes]) => nbytes > 0), ["free", memory.free]];
    fill(
      this.parts.memory,
      el("p", {}, el("strong", {}, size(memory.used)), ` of ${size(memory.limit)} reserved; ${size(memory.resident)} resident in this process. `,
        `${count(requests.open, "request")} open, ${requests.working} at work, ${requests.served.toLocaleString("en")} served since ${moment(state.started * 1000)}.`),
      table(["Holder", "Bytes", "Share of the limit"], rows.map(([name, nbytes]) => [name, size(nbytes), bar(nbytes / memory.limit, name === "free")])),
    );
    fill(this.parts.models, state.models.length
      ? table(["Model", "State", "Bytes"], state.models.map((model) => [
          `${model.kind} ${model.name}`,
          model.open ? (model.requests ? `${count(model.requests, "request")}` : "open") : "closed",
          model.open ? size(model.nbytes) : "–",
        ]))
      : el("p", { class: "state" }, "None is open: the first request opens what it needs."));
    const lanes = Object.entries(state.lanes);
    fill(this.parts.lanes, lanes.length
      ? table(["Lane", "Bytes", "Stalled", "Hidden"], lanes.map(([name, lane]) => [name, size(lane.bytes), seconds(lane.stall_s), seconds(lane.hidden_s)]))
      : el("p", { class: "state" }, "Nothing was read from storage in the background yet."));
    fill(this.parts.answers, state.answers.length ? state.answers.map(answering) : el("p", { class: "state" }, "No language model is open in this process."));
    fill(this.parts.lists, state.lists.length
      ? table(["Collection", "In memory", "Held", "Searches in line"], state.lists.map((one) => [
          one.collection,
          `${count(one.parts, "list")}, ${size(one.nbytes)}`,
          one.within ? `${size(one.held)} for ${seconds(one.within)}` : "–",
          one.waiting.toLocaleString("en"),
        ]))
      : el("p", { class: "state" }, "No vectors were searched yet."));
    const text = JSON.stringify(state.reranking);
    if (text !== this.drawn) {
      this.drawn = text;
      fill(this.parts.reranking, state.reranking ? picture(state.reranking) : el("p", { class: "state" }, "Nothing was reranked yet."));
    }
    fill(this.parts.trace, this.refused && problem(this.refused), el("p", { class: "state" }, state.trace.recording
      ? `${count(state.trace.events, "event")} recorded; of more than ${state.trace.most.toLocaleString("en")} the latest are kept.`
      : "Nothing is recorded. A trace shows when each layer was read and computed; ui.perfetto.dev opens it."));
    this.recorder.textContent = state.trace.recording ? "Save the trace" : "Record a trace";
    this.recorder.disabled = false;
    const counters = Object.entries(state.counters).sort(([one], [other]) => (one < other ? -1 : 1));
    fill(this.parts.counters, table(["Counter", "Value"], counters.map(([name, value]) => [name, name.endsWith("_s") ? seconds(value) : value.toLocaleString("en")])));
  }

  /** Downloads what this view shows. */
  save() {
    download("edge-engine.json", JSON.stringify(this.state, null, 1));
  }

  /** Begins a trace, or downloads the one that is recorded and ends it. */
  async trace() {
    this.recorder.disabled = true;
    this.refused = null;
    try {
      if (this.state.trace.recording) {
        download("edge-trace.json", JSON.stringify(await get("/v1/trace")));
        await post("/v1/trace", { record: false });
        announce("The trace was saved");
      } else {
        await post("/v1/trace", { record: true });
        announce("A trace is recorded");
      }
    } catch (error) {
      this.refused = error;
    }
    this.look();
  }
}

/** The sequences of a language model: their tokens as a share of the cells, and their answers. */
function answering(state) {
  const cells = state.cells ?? state.context;
  return el(
    "div",
    {},
    el("p", {}, `${state.model}: at most ${count(state.most, "answer")} at a time; ${state.waiting} waiting, ${state.aside} of them set aside.`),
    table(["Sequence", "Cells", "Answer"], state.sequences.map((one, number) => [
      `${number + 1}`,
      bar(one.tokens / cells, !one.longest),
      one.longest ? `${one.written} of ${count(one.longest, "token")} at most` : "–",
    ])),
  );
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

function table(heads, rows) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell))))),
  );
}

/** A share in 0 … 1 as a bar with its figure. */
function bar(share, free) {
  const part = el("span", { class: free ? "part free" : "part" });
  part.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "bar" }, el("span", { class: "track", "aria-hidden": "true" }, part), el("span", { class: "figure" }, `${(share * 100).toFixed(1)} %`));
}
