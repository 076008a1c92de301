"""`/v1/search`: passages of the collections, at once or stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from edge.apps.collection.catalog import groups
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import POOL
from edge.apps.collection.together import Together
from edge.apps.serve.endpoint import Call
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.fields import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal, plain
from edge.runtimes.scoring import LayerReport
from edge.scheduling.urgency import PERSON


def modified(mtime_ns: int) -> str | None:
    """A file's time as ISO 8601 in UTC; None for a text that never was a file."""
    if not mtime_ns:
        return None
    return datetime.fromtimestamp(mtime_ns // 10**9, timezone.utc).isoformat()


def with_dates(collections: Together, hits: Sequence[Hit], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of hits, each with `modified`."""
    found: dict[tuple[str, int], str | None] = {}
    for name in {hit.collection for hit in hits}:
        files = list(dict.fromkeys(hit.file for hit in hits if hit.collection == name))
        with collections.collections[name].database.read() as db:
            for group in groups(files):
                marks = ", ".join("?" * len(group))
                for file, mtime_ns in db.execute(f"SELECT id, mtime_ns FROM files WHERE id IN ({marks})", group):
                    found[name, file] = modified(mtime_ns)
    return [
        {**record, "modified": found.get((hit.collection, hit.file))} for hit, record in zip(hits, records, strict=True)
    ]


class Search:
    """The endpoint of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def post(self, call: Call) -> Any:
        """Answers with all results, or with events where `stream` is true: `fused`, one `layer` after each layer whose
        scores were looked at, `final`."""
        fields = Fields(await call.json())
        query, names = fields.text("query"), fields.texts("collections", fields.texts("collection", []))
        top_k, pool = fields.whole("top_k", 10), fields.whole("pool", POOL)
        rerank, where = fields.flag("rerank", True), Filters.parse(fields.texts("filters", []))
        least, least_blended = fields.number("min_score", 0.0), fields.number("min_blended", 0.0)
        urgency = call.urgency(PERSON)

        def search(events: Events | None) -> dict[str, Any]:
            collections = self._library.together(names)
            hits = collections.search(
                query, top_k, rerank=rerank, pool=pool, where=where, min_score=least, min_blended=least_blended,
                seen=None if events is None else Stages(events, collections),
            )  # fmt: skip
            return {"results": records(collections, hits), "health": collections.health().to_json()}

        if fields.flag("stream", False):
            return EventResponse(call.workers, urgency, lambda events: events.put("final", search(events)), failed)
        return await call.done(lambda: search(None), urgency)


class Stages:
    """Sends what the stages of a search find."""

    def __init__(self, events: Events, collections: Together) -> None:
        self._events = events
        self._collections = collections

    def fused(self, hits: list[Hit]) -> None:
        """Sends the results in the order of words and vectors."""
        self._events.put("fused", {"results": records(self._collections, hits)})

    def judged(self, hits: Sequence[Hit], report: LayerReport) -> None:
        """Sends the candidates in the order of their provisional scores."""
        order = sorted(
            zip(report.scores.tolist(), report.ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        found = [{"id": hits[i].id, "collection": hits[i].collection, "score": round(score, 5)} for score, i in order]
        left = {"dropped": len(report.decision.dropped), "active": len(report.ids)}
        self._events.offer("layer", {"layer": report.layer, "results": found, **left})


def records(collections: Together, hits: Sequence[Hit]) -> list[dict[str, Any]]:
    """Results, each with the date of its document."""
    return with_dates(collections, hits, [record(hit) for hit in hits])


def record(hit: Hit) -> dict[str, Any]:
    """A result, with its text and the marks in its snippet."""
    more = {"text": hit.text, "kind": hit.kind, "citation": hit.citation, "file": hit.file}
    return {**hit.to_json(explain=True), **more, "marks": [list(mark) for mark in hit.marks]}


def failed(events: Events, error: Refusal) -> None:
    """Tells the client of an error that comes after the first event."""
    events.tell("error", plain(error.status, error.message))
