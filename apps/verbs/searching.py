"""The work of `edge search`, for the command's own process and for the server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from edge.apps.collection.collection import Together
from edge.apps.collection.filters import Filters, kinds_present
from edge.apps.collection.query import Query, checked_query
from edge.apps.commands.output import SearchOutcome
from edge.apps.console import modelled
from edge.apps.store.lexical import respelled
from edge.apps.verbs.home import Home
from edge.apps.verbs.requests import POOL, Search, SearchOptions
from edge.apps.verbs.verb import Listener


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
    index = {name: int(grown.get(f"index.{name}", 0)) for name in ("lists_read", "bytes_read", "hits")}
    return {
        "seconds": seconds, **stages, "pruned": pruned, "index": index, **modelled(grown), "peak_resident": peak,
        "limit": limit,
    }  # fmt: skip


UNKNOWN = ": no word of the query is in the passages, or known otherwise"


def _nothing(opened: Together, nonsense: bool, where: Filters) -> str:
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
