"""The work of `edge rerank` and `edge embed`, for the command's own process and for the server."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from edge.apps.verbs.home import Home
from edge.apps.verbs.requests import Embed, Rerank
from edge.apps.verbs.verb import Listener
from edge.errors import InputError
from edge.runtimes.passes import RunStats
from edge.runtimes.reranker import Ranking
from edge.runtimes.scoring import LayerReport


def rerank(home: Home, asked: Rerank, listener: Listener) -> dict[str, Any]:
    """Index, score and relevance of each text, best first, and the figures of the pass. With `explain` also the pruning
    rule, and what was decided after each layer."""
    ranking: Ranking = home.rerank(asked, lambda reranker: reranker.explain(
        asked.query, asked.texts, asked.top_k, retrieved=asked.retrieved, mode=asked.mode,  # type: ignore[arg-type]
        threshold=asked.threshold, every_layer=asked.explain,
    ))  # fmt: skip
    results = [[result.index, result.score, result.relevance] for result in ranking.results]
    found: dict[str, Any] = {"results": results, "stats": _stats(home, ranking.stats)}
    if asked.explain:
        found |= {"layers": [_layer(report) for report in ranking.layers], "rule": _rule(ranking)}
    return found


def _layer(report: LayerReport) -> dict[str, Any]:
    ids, decision = report.ids.tolist(), report.decision
    return {
        "layer": report.layer, "cv": decision.cv,
        "scores": dict(zip(map(str, ids), report.scores.tolist(), strict=True)),
        "clusters": dict(zip(map(str, ids), decision.clusters.tolist(), strict=False)),
        "selected": decision.selected.tolist(), "dropped": decision.dropped.tolist(),
        "deferred": decision.deferred.tolist(),
    }  # fmt: skip


def _rule(ranking: Ranking) -> str:
    if ranking.margin is not None:
        return f"drops candidates more than {ranking.margin:.2f} deviations behind"
    return "never prunes" if ranking.threshold == math.inf else f"prunes above CV {ranking.threshold:.3f}"


def embed(home: Home, asked: Embed, listener: Listener) -> dict[str, Any]:
    """The vectors, and the figures of the last pass."""
    if not asked.texts:
        raise InputError("there is no text to embed")
    passes: list[RunStats] = []
    vectors = home.embed(asked, lambda embedder: embedder.embed(asked.texts, query=asked.query, watch=passes.append))
    return {"vectors": vectors, "stats": _stats(home, passes[-1])}


def _stats(home: Home, stats: RunStats) -> dict[str, Any]:
    """Its peak is that of the whole work."""
    return replace(stats, peak_resident=max(stats.peak_resident, home.peak())).to_json()
