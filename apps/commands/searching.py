"""The work of `edge search`, for the command's own process and for the server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Together
from edge.apps.collection.filters import Filters, kinds_present
from edge.apps.commands.output import SearchOutcome
from edge.apps.console import modelled
from edge.apps.requests import POOL, SearchOptions
from edge.apps.store.spelling import respelled
from edge.config import Config
from edge.resident import ResidentWatch
from edge.trace import Trace


def searched(
    collections: Sequence[str], config: Config, trace: Path | None, query: str, options: SearchOptions
) -> SearchOutcome:
    """Searches in this process, without a server.

    Args:
        trace: file for a trace.

    Raises:
        The errors of `Together`.
    """
    recorder = Trace(events=trace is not None)
    with ResidentWatch() as resident:
        started = time.perf_counter()
        with Together.opened(collections, config, recorder, candidates=max(POOL, 2 * options.top_k)) as opened:
            found = look(opened, query, options)
            limit = opened.budget.limit
        seconds = time.perf_counter() - started
    found.figures.update(figures(recorder.snapshot(), {}, seconds, resident.high_water, limit))
    if trace is not None:
        recorder.write(trace)
    return found


def look(opened: Together, query: str, options: SearchOptions) -> SearchOutcome:
    """Searches open collections; the result has no costs. Raises as `Together.search` does."""
    spelled = opened.spelled(query)
    hits = [] if opened.is_nonsense(respelled(query, spelled)) else opened.search(query, options=options)
    return SearchOutcome(
        hits,
        {name: collection.health().to_json() for name, collection in opened.collections.items()},
        [str(trouble) for trouble in opened.health()],
        "" if hits else _nothing(opened, query, options.filters),
        {"spelled": spelled},
    )


def figures(
    counters: Mapping[str, float], before: Mapping[str, float], seconds: float, peak: int, limit: int
) -> dict[str, Any]:
    """The costs of a search, from the counters of a trace before and after it."""
    grown = {name: value - before.get(name, 0) for name, value in counters.items()}
    stages = {f"{stage}_s": grown.get(f"search.{stage}_s", 0.0) for stage in ("embed", "search", "rerank")}
    index = {name: int(grown.get(f"index.{name}", 0)) for name in ("lists_read", "bytes_read", "hits")}
    return {
        "seconds": seconds, **stages, "index": index, **modelled(grown), "peak_resident": peak, "limit": limit
    }  # fmt: skip


UNKNOWN = "; neither the passages nor the embedder know a word of the query"
"""The reason for an empty result where the query is nonsense."""


def _nothing(opened: Together, query: str, where: Filters) -> str:
    """A reason for an empty result, if the words, the requested types or an empty collection may be the reason."""
    searched = opened.collections.values()
    if not any(collection.files() for collection in searched):
        return "; nothing is indexed yet"
    if opened.is_nonsense(query):
        return UNKNOWN
    if not where.kinds or any(collection.files(Filters(kinds=where.kinds)) for collection in searched):
        return ""
    present = []
    for collection in searched:
        with collection.database.read() as db:
            present.append(kinds_present(db))
    return f"; no file of type {' or '.join(where.kinds)} is indexed, these are: {', '.join(filter(None, present))}"
