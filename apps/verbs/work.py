"""The work of `edge search`, `ask`, `rerank` and `embed`, for the command's own process and for the server. What one of
them needs is imported in it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edge.apps.console import modelled
from edge.apps.verbs.home import Home
from edge.apps.verbs.requests import POOL, Ask, Embed, Rerank, Search, SearchOptions
from edge.apps.verbs.verb import Listener
from edge.errors import InputError
from edge.scheduling.waiting_line import current_urgency

if TYPE_CHECKING:
    from edge.apps.assistant.answer import Answer
    from edge.apps.assistant.assistant import AnswerStream
    from edge.apps.collection.collection import Together
    from edge.apps.collection.filters import Filters
    from edge.apps.collection.hits import Hit
    from edge.runtimes.passes import RunStats
    from edge.runtimes.reranker import Ranking
    from edge.runtimes.scoring import LayerReport


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Everything that `edge search` prints, by this process or the server. `healths`: of each collection, by name.
    `nothing`: why there may be no hits. `figures`: bytes, seconds, and reads of the index."""

    hits: list[Hit]
    healths: dict[str, Any]
    troubles: list[str] = field(default_factory=list)
    nothing: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: SearchOutcome | dict[str, Any]) -> SearchOutcome:
        if isinstance(found, SearchOutcome):
            return found
        from edge.apps.collection.hits import hit_from_json

        return cls(**{**found, "hits": [hit_from_json(hit) for hit in found["hits"]]})


def search(home: Home, asked: Search, listener: Listener) -> SearchOutcome:
    """The figures of the stages are those of the whole process in that time."""
    started, before = time.perf_counter(), home.trace.snapshot()
    if asked.here:
        home.refresh(asked.here, asked.query)
    with home.collections(asked.collections or {}, max(POOL, 2 * asked.top_k)) as opened:
        found = look(opened, asked.query, asked)
    seconds = time.perf_counter() - started
    found.figures.update(figures(home.trace.snapshot(), before, seconds, home.peak(), home.limit))
    return found


def look(opened: Together, query: str, options: SearchOptions) -> SearchOutcome:
    """Without costs."""
    from edge.apps.collection.query import Query, checked_query
    from edge.apps.store.lexical import respelled

    without = Query.parse(checked_query(query)).without
    opened.check_search(query, options)
    spelled = opened.spelled(query)
    nonsense = opened.is_nonsense(respelled(query, spelled))
    hits = [] if nonsense else opened.search(query, options=options, spelled=spelled)
    return SearchOutcome(
        hits,
        {name: collection.health().to_json() for name, collection in opened.collections.items()},
        [str(trouble) for trouble in opened.health()],
        "" if hits else _nothing(opened, nonsense, options.filters),
        {"spelled": spelled, "without": without},
    )


def figures(
    counters: Mapping[str, float], before: Mapping[str, float], seconds: float, peak: int, limit: int
) -> dict[str, Any]:
    grown = {name: value - before.get(name, 0) for name, value in counters.items()}
    stages = {f"{stage}_s": grown.get(f"search.{stage}_s", 0.0) for stage in ("embed", "search", "rerank")}
    ranked = grown.get("rerank.evaluations_full", 0)
    pruned = 1 - grown.get("rerank.evaluations", 0) / ranked if ranked else None
    index = {name: int(grown.get(f"index.{name}", 0)) for name in ("lists_read", "bytes_read", "hits", "lists_cut")}
    return {
        "seconds": seconds, **stages, "pruned": pruned, "index": index, **modelled(grown), "peak_resident": peak,
        "limit": limit,
    }  # fmt: skip


UNKNOWN = ": no word of the query is in the passages, or known otherwise"


def _nothing(opened: Together, nonsense: bool, where: Filters) -> str:
    from edge.apps.collection.filters import Filters, kinds_present

    searched = opened.collections.values()
    if not any(collection.files() for collection in searched):
        return "; nothing is indexed yet"
    if nonsense:
        return UNKNOWN
    if not where.kinds or any(collection.files(Filters(kinds=where.kinds)) for collection in searched):
        return ""
    present = []
    for collection in searched:
        with collection.database.read() as db:
            present.append(kinds_present(db))
    return f"; no file of type {' or '.join(where.kinds)} is indexed, these are: {', '.join(filter(None, present))}"


def ask(home: Home, asked: Ask, listener: Listener) -> dict[str, Any]:
    """The listener takes the answer's text while it is written."""
    from edge.apps.assistant.answer import figures as costs
    from edge.apps.assistant.answer import notices

    with home.assistant(asked) as assistant:
        health = assistant.collection.health()
        listener.troubles([str(trouble) for trouble in health])
        stream = assistant.chat(options=asked).stream(asked.question)
        with home.ending(stream.cancel):
            answer = written(stream, listener.text)
    peak = max(answer.stats.peak_resident, home.peak())
    answer = replace(answer, stats=replace(answer.stats, peak_resident=peak))
    return {
        "document": answer.to_json() | {"health": health.to_json()},
        "citations": [asdict(citation) for citation in answer.citations],
        "notices": list(notices(answer)),
        "figures": list(costs(answer.stats)),
    }


def written(stream: AnswerStream, show: Callable[[str], None] | None = None) -> Answer:
    """`show` is called with each piece of the text; a withdrawn request ends the writing."""
    urgency = current_urgency()
    with stream, urgency.heard(stream.cancel):
        for text in stream:
            urgency.check()
            if show is not None:
                show(text)
        urgency.check()
        return stream.answer


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
