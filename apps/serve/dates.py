"""When the documents of search results were last changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from edge.apps.collection.catalog import groups
from edge.apps.collection.hits import Hit
from edge.apps.collection.together import Together


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
