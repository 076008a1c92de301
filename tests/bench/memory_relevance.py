"""`memory-relevance`: fits the relevance model of memories on short first-person texts and questions about
their speakers, and measures it on texts and questions that it was not fitted on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench.figures import Column, tabulate
from bench.options import Output, benchmark
from edge.apps.memory.searching import NAME, SIGNALS, first_person
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.models.evidence import Evidence, Logistic, fit, log_odds, save
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker

MEMORIES = Path(__file__).parent / "answers_set" / "memories.jsonl"
HALVES = ("choose", "judge")
"""The model is fitted on one half, and judged on the other."""

_USUAL = 0.1
"""The usual threshold of programs that were written for other memory libraries."""


@benchmark
def memory_relevance(
    *,
    memory: str = "700MB",
    threads: Annotated[int | None, "Compute threads."] = None,
    saved: Annotated[bool, "--save", "Store the fitted values beside the reranker."] = False,
    output: Output,
) -> None:
    """Fit a memory's relevance; how many helpful and other memories reach the usual threshold of 0.1."""
    config = Config.load(flags={"memory": memory, "threads": threads})
    budget = MemoryBudget(parse_size(memory))
    rows = [json.loads(line) for line in MEMORIES.read_text("utf-8").splitlines()]
    report: dict[str, dict[str, Any]] = {}
    with (
        Embedder(budget=budget, config=config) as embedder,
        Reranker(budget=budget, config=config, threshold="inf") as reranker,
    ):
        found: dict[str, list[tuple[list[float], bool]]] = {half: [] for half in HALVES}
        for row in rows:
            same = [other["memory"] for other in rows if other["user"] == row["user"]]
            for question in row["questions"]:
                values = _signals(embedder, reranker, question, row["user"], same)
                found[row["half"]] += [(v, text == row["memory"]) for v, text in zip(values, same, strict=True)]
        examples, right = np.array([v for v, _ in found["choose"]]), np.array([r for _, r in found["choose"]])
        fitted = Evidence(SIGNALS, rising(examples, right), _USUAL, embedder.model.name, len(right))
        if saved:
            save(reranker.model, {NAME: fitted})
    for name, pairs in found.items():
        chance = fitted.model.probability([v for v, _ in pairs])
        before = np.array([1 / (1 + np.exp(-v[0])) for v, _ in pairs])
        there = np.array([r for _, r in pairs])
        report[name] = {
            "helpful": int(there.sum()),
            "others": int((~there).sum()),
            "helpful_found": float((chance[there] >= _USUAL).mean()),
            "helpful_found_before": float((before[there] >= _USUAL).mean()),
            "others_found": float((chance[~there] >= _USUAL).mean()),
            "others_found_before": float((before[~there] >= _USUAL).mean()),
            "auc": _auc(chance, there),
            "auc_before": _auc(before, there),
        }
    columns = {
        "helpful_found": Column("helpful found", "%"), "others_found": Column("others found", "%"),
        "auc": Column("area under the curve"), "auc_before": Column("by the reranker alone"),
        "helpful_found_before": Column("helpful found by it", "%"),
        "others_found_before": Column("others found by it", "%"), "helpful": Column("helpful"),
        "others": Column("others"),
    }  # fmt: skip
    result = {"signals": SIGNALS, **fitted.model.to_json(), "sets": report}
    output.put(result, tabulate(report, columns), f"relevance of at least {_USUAL}")


def rising(values: np.ndarray, right: np.ndarray) -> Logistic:
    """Fits a model without negative weights. Signals that would get a negative weight are left out."""
    kept = np.ones(values.shape[1])
    while True:
        model = fit(values * kept, right)
        falls = np.array(model.weights[:-1]) < -1e-9
        if not falls.any():
            return model
        kept[falls] = 0.0


def _signals(
    embedder: Embedder, reranker: Reranker, question: str, user: str, texts: Sequence[str]
) -> list[list[float]]:
    """The signals of each memory for a question about a user."""
    asked = first_person(question, [user])
    near = embedder.embed(texts) @ embedder.embed([asked], query=True)[0]
    ranked = {result.index: result.relevance for result in reranker.rank(asked, texts)}
    return [[log_odds(ranked[i]), float(near[i])] for i in range(len(texts))]


def _auc(chance: np.ndarray, there: np.ndarray) -> float:
    return float((chance[there][:, None] > chance[~there][None, :]).mean())
