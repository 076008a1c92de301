// Layers by candidates: how the reranker made up its mind.

import { el, svg } from "./dom.js";
import { count } from "./format.js";

const LEVELS = 8;

/** A figure of one reranking: a row for each layer whose scores were looked at, a column for each candidate, in the order
 * in which they were decided. A cell is as dark as the candidate's place among those left. */
export function picture(reranking) {
  const { layers } = reranking;
  if (!layers.length) return el("p", { class: "state" }, `${count(reranking.candidates, "candidate")}: nothing was decided before the last layer.`);
  const columns = order(layers);
  const place = new Map(columns.map((candidate, at) => [candidate, at]));
  const width = Math.max(6, Math.min(20, Math.floor(720 / columns.length)));
  const height = 20;
  const left = 30;
  const drawn = svg("svg", {
    viewBox: `0 0 ${left + columns.length * width + 4} ${layers.length * height + 8}`,
    width: left + columns.length * width + 4,
    role: "img", "aria-label": summary(reranking), class: "picture",
  });
  layers.forEach((layer, row) => {
    const y = row * height + 4;
    drawn.append(svg("text", { x: left - 6, y: y + height / 2 + 4, "text-anchor": "end" }, String(layer.layer)));
    const ranked = Object.entries(layer.scores).sort((one, other) => other[1] - one[1]);
    const selected = new Set(layer.selected.map(String));
    const dropped = new Set(layer.dropped.map(String));
    ranked.forEach(([candidate, score], rank) => {
      const level = LEVELS - Math.floor((rank / ranked.length) * LEVELS);
      const what = dropped.has(candidate) ? ", leaves here" : selected.has(candidate) ? ", is sure to be a result" : "";
      drawn.append(
        svg(
          "rect",
          {
            x: left + place.get(candidate) * width + 1, y: y + 1, width: width - 2, height: height - 2, rx: 2,
            class: `level-${level}${dropped.has(candidate) ? " dropped" : ""}${selected.has(candidate) ? " selected" : ""}`,
          },
          svg("title", {}, `candidate ${Number(candidate) + 1}, layer ${layer.layer}: ${score.toFixed(3)}${what}`),
        ),
      );
    });
  });
  const rows = layers.map((layer) =>
    el("tr", {}, el("th", { scope: "row" }, String(layer.layer)), el("td", {}, String(layer.active)), el("td", {}, String(layer.dropped.length)), el("td", {}, String(layer.selected.length))),
  );
  return el(
    "figure",
    {},
    drawn,
    el("figcaption", {}, `${summary(reranking)} Rows are layers, columns are candidates; darker ones stand higher. A broken outline: leaves here. A whole one: sure to be a result.`),
    el(
      "details",
      {},
      el("summary", {}, "As a table"),
      el("table", {}, el("thead", {}, el("tr", {}, ["Layer", "Candidates", "Left here", "Sure"].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows)),
    ),
  );
}

function summary(reranking) {
  const last = reranking.layers.at(-1);
  return `${reranking.model}: ${count(reranking.candidates, "candidate")}, ${last.active} of them scored at layer ${last.layer}.`;
}

/** Candidates by how long they stayed, then by their last score. */
function order(layers) {
  const last = new Map();
  layers.forEach((layer, row) => {
    for (const [candidate, score] of Object.entries(layer.scores)) last.set(candidate, [row, score]);
  });
  return [...last.keys()].sort((one, other) => {
    const [row, score] = last.get(one);
    const [otherRow, otherScore] = last.get(other);
    return otherRow - row || otherScore - score;
  });
}
