"""Passages and parts of documents in the collections, and what else the server offers.

`/v1/search` finds passages of the collections, at once or stage by stage. The other paths list the collections, their
files, parts of their documents, the pipelines, and the scopes of the memory.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.catalog import groups
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import POOL
from edge.apps.collection.together import Together
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.serve.endpoint import Call
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.json_values import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal, plain
from edge.runtimes.scoring import LayerReport
from edge.scheduling.urgency import PERSON

if TYPE_CHECKING:
    from edge.apps.serve.documents import Editor


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


class Collections:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def every(self, call: Call) -> dict[str, Any]:
        """The names, with the directory of each and whether it holds a collection yet."""
        names = self._library.names()
        return {
            "collections": [
                {"name": name, "path": str(path), "exists": Collection.exists(path)} for name, path in names.items()
            ]
        }

    async def one(self, call: Call) -> dict[str, Any]:
        """What one holds, what was left out and why, and the state of its index."""
        name = call.request.path_params["name"]
        found: dict[str, Any] = await call.done(lambda: self._status(name))
        return found

    async def files(self, call: Call) -> dict[str, Any]:
        """The indexed files of one, in the order of their paths."""
        name = call.request.path_params["name"]

        def read() -> list[dict[str, Any]]:
            return [asdict(file) for file in self._library.collection(name).files()]

        return {"files": await call.done(read)}

    async def documents(self, call: Call) -> dict[str, Any]:
        """The indexed text of documents or of parts of them: `targets` as `edge get` takes them."""
        fields = Fields(await call.json())
        names, targets = fields.texts("collections", fields.texts("collection", [])), fields.paths("targets")
        lines, most = fields.optional_whole("lines"), fields.whole("max_bytes", _MOST_BYTES)

        def read() -> list[dict[str, Any]]:
            found = self._library.together(names).read(targets, lines=lines, max_bytes=min(most, _MOST_BYTES))
            return [asdict(excerpt) for excerpt in found]

        return {"documents": await call.done(read)}

    def _status(self, name: str) -> dict[str, Any]:
        collection = self._library.collection(name)
        status = collection.status().to_json()
        return {"name": name, **status, "descriptions": collection.descriptions()}


_MOST_BYTES = 1 << 20


class Offers:
    """The endpoints of one server."""

    def __init__(self, library: Library, editor: Editor) -> None:
        self._library = library
        self._editor = editor

    async def get(self, call: Call) -> dict[str, Any]:
        """The version, the names of the pipelines that answer questions, and whether documents can be opened in an
        editor."""
        return {
            "version": importlib.metadata.version("edge-rag"),
            "pipelines": list(PIPELINES),
            "editor": self._editor.is_named,
        }

    async def scopes(self, call: Call) -> Any:
        """The scopes that memories are stored under, with how many memories each holds, hidden ones included."""
        names = ", ".join(SCOPE_FIELDS)

        def read() -> list[dict[str, Any]]:
            with self._library.memory().store.read() as db:
                rows = db.execute(
                    f"SELECT {names}, count(*) FROM memories GROUP BY {names} ORDER BY {names}"
                ).fetchall()
            return [dict(zip((*SCOPE_FIELDS, "memories"), row, strict=True)) for row in rows]

        return {"scopes": await call.done(read)}
